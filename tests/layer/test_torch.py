"""The weights of nn.MultiheadAttention give the outputs of nn.MultiheadAttention."""

import pytest
import torch
from torch import nn

from multihead.error import MultiheadError
from multihead.layer import MultiHeadAttention
from multihead.pattern import padding

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("widths", [{}, {"kdim": 10, "vdim": 14}, {"vdim": 6}])
def test_outputs_are_those_of_torch(randomise, bias, widths):
    theirs = randomise(nn.MultiheadAttention(12, 4, bias=bias, batch_first=True, **widths))
    ours = MultiHeadAttention.from_torch(theirs)
    query = torch.randn(2, 5, 12)
    key, value = torch.randn(2, 7, widths.get("kdim", 12)), torch.randn(2, 7, widths.get("vdim", 12))
    want, _ = theirs(query, key, value)
    torch.testing.assert_close(ours(query, key, value), want, **CLOSE)
    if not widths:
        torch.testing.assert_close(ours(query), theirs(query, query, query)[0], **CLOSE)


def test_masks_say_the_opposite(randomise):
    theirs = randomise(nn.MultiheadAttention(12, 4, batch_first=True))
    ours = MultiHeadAttention.from_torch(theirs)
    x = torch.randn(3, 6, 12)
    padded = torch.arange(6) >= torch.randint(1, 7, (3, 1))
    want, _ = theirs(x, x, x, key_padding_mask=padded)
    torch.testing.assert_close(ours(x, mask=padding(~padded)), want, **CLOSE)

    hidden = torch.rand(6, 6) < 0.5
    hidden.fill_diagonal_(False)
    want, _ = theirs(x, x, x, attn_mask=hidden)
    torch.testing.assert_close(ours(x, mask=~hidden), want, **CLOSE)

    want, _ = theirs(x, x, x, attn_mask=hidden, key_padding_mask=padded)
    seen = ~hidden & ~padded[:, None, None]
    some = seen.any(-1).all(1)  # torch gives NaN to rows that see nothing
    torch.testing.assert_close(ours(x, mask=seen)[some], want[some], **CLOSE)

    scores = torch.randn(6, 6)
    want, _ = theirs(x, x, x, attn_mask=scores)
    torch.testing.assert_close(ours(x, bias=scores), want, **CLOSE)


def test_length_first_modules_give_the_same_weights(randomise):
    theirs = randomise(nn.MultiheadAttention(12, 4))
    x = torch.randn(2, 5, 12)
    want, _ = theirs(*[x.transpose(0, 1)] * 3)
    torch.testing.assert_close(MultiHeadAttention.from_torch(theirs)(x), want.transpose(0, 1), **CLOSE)


def test_what_goes_along_and_what_stays(randomise):
    theirs = randomise(nn.MultiheadAttention(12, 4, dropout=0.25).to(torch.bfloat16)).eval()
    theirs.out_proj.weight.requires_grad_(False)
    before = {name: value.clone() for name, value in theirs.state_dict().items()}
    ours = MultiHeadAttention.from_torch(theirs, backend="tiled")
    assert (ours.dropout, ours.backend, ours.training) == (0.25, "tiled", False)
    assert {p.dtype for p in ours.parameters()} == {torch.bfloat16}
    assert all(p.requires_grad for p in ours.parameters())
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(1)
    assert all(torch.equal(value, before[name]) for name, value in theirs.state_dict().items())
    assert MultiHeadAttention.from_torch(theirs.train()).training


@pytest.mark.parametrize("extra", ["add_bias_kv", "add_zero_attn"])
def test_keys_that_no_input_has_are_refused(extra):
    with pytest.raises(MultiheadError, match=f"{extra}=True: another key"):
        MultiHeadAttention.from_torch(nn.MultiheadAttention(12, 4, **{extra: True}))
