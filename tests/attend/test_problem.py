"""What a problem holds, what it computes, and every message of `make_problem`."""

import math

import pytest
import torch

from attend.oracle import near, qkv
from multihead.attend import Entmax, Sigmoid, Softmax, define, make_problem
from multihead.error import MultiheadError, check_kinds
from multihead.pattern import causal, document, everything, padding, per_head, sliding_window
from multihead.position import ALiBi, RelativeTable, alibi_slopes


def test_sizes_and_defaults():
    q, k, v = qkv(batch=3, heads=6, kv_heads=2, q_len=5, kv_len=7, head_dim=16, v_head_dim=10)
    p = make_problem(q, k, v)
    assert (p.batch, p.heads, p.kv_heads, p.group) == (3, 6, 2, 3)
    assert (p.q_len, p.kv_len, p.head_dim, p.v_head_dim) == (5, 7, 16, 10)
    assert (p.mask, p.bias, p.scale, p.softcap, p.dropout, p.q_offset) == (None, None, 0.25, None, 0.0, None)
    assert p.normaliser.plain
    assert p.q is q


def test_the_scale_without_a_head_dim_is_one():
    q, k, v = qkv(head_dim=0)
    assert make_problem(q, k, v).scale == 1.0


@pytest.mark.parametrize("offset", [None, 0, 3, -2])
def test_positions(offset):
    q, k, v = qkv()
    p = make_problem(q, k, v, q_offset=offset)
    assert p.q_offset == offset
    assert p.q_positions().tolist() == [i + (offset or 0) for i in range(6)]
    assert p.k_positions().tolist() == list(range(7))
    assert make_problem(q, k[:, :, :6], v[:, :, :6]).q_offset == 0


def test_two_dimensional_masks_and_biases_become_four_dimensional_views():
    q, k, v = qkv()
    mask, bias = torch.ones(6, 7, dtype=torch.bool), torch.randn(6, 7)
    p = make_problem(q, k, v, mask=mask, bias=bias)
    assert p.mask.shape == p.bias.shape == (1, 1, 6, 7)
    assert p.mask.data_ptr() == mask.data_ptr()
    assert p.bias.data_ptr() == bias.data_ptr()


ROWS = [slice(None), slice(1, 3), slice(5, 6), slice(2, 2), slice(0, 6, 2), torch.tensor([4, 0])]


@pytest.mark.parametrize("rows", ROWS, ids=str)
@pytest.mark.parametrize("masked", ["none", "tensor", "broadcast", "pattern", "rows"])
def test_scores_allowed_and_bias_of_some_rows(rows, masked):
    q, k, v = qkv()
    mask = {
        "none": None,
        "tensor": torch.rand(2, 4, 6, 7) < 0.6,
        "broadcast": torch.rand(2, 1, 1, 7) < 0.6,
        "pattern": sliding_window(3),
        "rows": padding(torch.rand(2, 7) < 0.5),
    }[masked]
    p = make_problem(q, k, v, mask=mask, bias=torch.randn(1, 4, 6, 1), softcap=1.5, q_offset=1)
    scores = 1.5 * torch.tanh(q @ k.repeat_interleave(2, 1).mT * 8**-0.5 / 1.5) + p.bias
    if masked != "none":
        dense = mask if isinstance(mask, torch.Tensor) else mask.mask(6, 7, q_offset=1)
        scores = scores.masked_fill(~dense, -math.inf)
        expected = dense.expand(-1, -1, 6, 7)[:, :, rows]
        allowed = p.allowed(rows)
        # A pattern may say that all of it is allowed instead of spelling it out.
        assert torch.equal(allowed, expected) if allowed is not None else expected.all()
    else:
        assert p.allowed(rows) is None
    assert near(p.scores(rows), scores[:, :, rows])
    assert torch.equal(p.bias_rows(rows), p.bias.expand(1, 4, 6, 7)[:, :, rows])
    heads = torch.tensor([3, 0, 2])
    assert near(p.scores(rows, heads=heads), scores[:, heads][:, :, rows])
    cols = torch.tensor([6, 1, 2])
    assert near(p.scores(rows, cols), scores[:, :, rows][..., cols])
    assert near(p.scores(rows, slice(2, 5)), scores[:, :, rows][..., 2:5])


@pytest.mark.parametrize("mask", [everything(), causal(), sliding_window(9)])
def test_allowed_is_none_where_a_pattern_allows_all(mask):
    q, k, v = qkv(kv_len=6)
    p = make_problem(q, k, v, mask=mask)
    assert p.allowed(slice(5, 6)) is None
    assert (p.allowed(slice(0, 6)) is None) == (mask == everything())


@pytest.mark.parametrize("bias", ["alibi", "table"])
def test_scores_with_a_bias_of_positions(bias):
    q, k, v = qkv()
    bias = ALiBi(torch.rand(4)) if bias == "alibi" else RelativeTable(torch.randn(8, 4), max_distance=9)
    p = make_problem(q, k, v, bias=bias, q_offset=2)
    expected = bias.scores(torch.arange(2, 8), torch.arange(7))
    assert near(p.bias_rows(slice(1, 4)), expected[:, :, 1:4])
    raw = q @ k.repeat_interleave(2, 1).mT * 8**-0.5
    assert near(p.scores(heads=torch.tensor([1, 3])), (raw + expected)[:, [1, 3]])


def test_products_of_a_short_dtype_are_summed_in_float32():
    q, k, v = qkv(dtype=torch.bfloat16, head_dim=512)
    p = make_problem(q, k, v)
    exact = q.double() @ k.repeat_interleave(2, 1).mT.double() * 512**-0.5
    assert p.scores().dtype == torch.float32
    assert near(p.scores(), exact, 1e-5)
    wide = p.widen()
    assert wide.q.dtype == wide.k.dtype == wide.v.dtype == torch.float32
    assert torch.equal(wide.scores(), p.scores())
    double = make_problem(*qkv(dtype=torch.float64))
    assert double.widen().q is double.q
    assert double.scores().dtype == torch.float64


def test_slopes_of_a_short_dtype_are_multiplied_in_float32():
    q, k, v = qkv(heads=1, kv_heads=1, q_len=1, kv_len=3000, dtype=torch.bfloat16)
    slope = torch.tensor([0.01], dtype=torch.bfloat16)
    bias = make_problem(q, k, v, bias=ALiBi(slope), q_offset=2999).bias_rows()
    assert near(bias, -slope.double() * torch.arange(2999, -1, -1)[None, None, None], 1e-5)


def test_scores_carry_gradients():
    q, k, v = qkv(dtype=torch.float64, grad=True)
    bias = torch.randn(1, 4, 6, 7, dtype=torch.float64, requires_grad=True)
    grads = torch.autograd.grad(make_problem(q, k, v, bias=bias).scores(slice(1, 3)).sum(), (q, k, bias))
    assert near(grads[0][:, :, 1:3], (k.repeat_interleave(2, 1).sum(2, keepdim=True) * 8**-0.5).expand(2, 4, 2, 8))
    assert grads[2].sum() == 2 * 4 * 2 * 7


def test_in_words():
    q, k, v = qkv()
    p = make_problem(q, k, v, mask=causal(), bias=torch.zeros(6, 7), softcap=30.0, dropout=0.1, q_offset=1)
    assert str(p) == (
        "q (2, 4, 6, 8), k (2, 2, 7, 8), v (2, 2, 7, 8), float32 on cpu, mask causal, bias of shape (1, 1, 6, 7), "
        "softcap 30, dropout 0.1, q_offset 1"
    )
    told = str(make_problem(q, k, v, normaliser=Softmax(off_by_one=True), mask=torch.ones(6, 7, dtype=torch.bool)))
    assert told.endswith("float32 on cpu, mask of shape (1, 1, 6, 7), Softmax(off_by_one)")


def refused(*args, asked, got, fix, **options):
    """The error of make_problem, held against the three lines it has to say."""
    with pytest.raises(MultiheadError) as raised:
        make_problem(*args, **options)
    first, second, third = str(raised.value).split("\n")
    assert asked in first
    assert got in second
    assert fix in third


def test_message_dimensions():
    q, k, v = qkv()
    told = {"asked": "four dimensions", "fix": "`q[None]` for a batch of 1"}
    refused(q[0], k, v, got="q (4, 6, 8) float32 on cpu", **told)
    refused(q, k, v[..., None], got="v (2, 2, 7, 8, 1)", **told)


def test_message_dtypes():
    q, k, v = qkv()
    told = {"asked": "one floating dtype", "fix": "`k.to(q.dtype)`"}
    refused(q, k.double(), v, got="k (2, 2, 7, 8) float64", **told)
    refused(q.long(), k.long(), v.long(), got="q (2, 4, 6, 8) int64", **told)


def test_message_devices():
    q, k, v = qkv()
    refused(q, k.to("meta"), v, asked="on one device", got="k (2, 2, 7, 8) float32 on meta", fix="`k.to(q.device)`")
    mask = torch.ones(6, 7, dtype=torch.bool, device="meta")
    refused(
        q, k, v, mask=mask, asked="a mask on the device of q", got="mask on meta, q on cpu", fix="`mask.to(q.device)`"
    )
    bias = torch.ones(6, 7, device="meta")
    refused(q, k, v, bias=bias, asked="a bias on the device of q", got="bias on meta", fix="`bias.to(q.device)`")
    sinks = Softmax(sinks=torch.zeros(4, device="meta"))
    refused(q, k, v, normaliser=sinks, asked="sinks on the device of q", got="meta, q on cpu", fix="`.to('cpu')`")
    slopes = ALiBi(alibi_slopes(4).to("meta"))
    refused(q, k, v, bias=slopes, q_offset=0, asked="ALiBi(4 heads) on the device", got="meta", fix="`.to('cpu')`")


def test_message_batch():
    q, k, v = qkv()
    told = {"asked": "one batch size", "fix": "`k.expand(q.shape[0], -1, -1, -1)`"}
    refused(q, k[:1], v[:1], got="q (2, 4, 6, 8) float32 on cpu, k (1, 2, 7, 8)", **told)
    refused(q.transpose(0, 1), k, v, got="q (4, 2, 6, 8)", **told)


def test_message_keys_and_values():
    q, k, v = qkv()
    told = {"asked": "each key has one value", "fix": "like k"}
    refused(q, k[:, :, :5], v, got="kv_heads 2 and 2, kv_len 5 and 7", **told)
    refused(q, k, v[:, :1], got="kv_heads 2 and 1, kv_len 7 and 7", **told)


def test_message_head_dim():
    q, k, v = qkv()
    refused(q[..., :6], k, v, asked="q and k of one head_dim", got="head_dim 6 and 8", fix="only v may have another")


@pytest.mark.parametrize(("heads", "kv_heads", "legal"), [(6, 4, "1, 2, 3, 6"), (7, 2, "1, 7"), (4, 0, "1, 2, 4")])
def test_message_groups(heads, kv_heads, legal):
    q, k, v = qkv(heads=heads, kv_heads=kv_heads)
    refused(
        q, k, v, asked="divide heads", got=f"heads={heads}, kv_heads={kv_heads}", fix=f"pass kv_heads of {legal}; for"
    )


@pytest.mark.parametrize("scale", [math.inf, -math.inf, math.nan])
def test_message_scale(scale):
    refused(*qkv(), scale=scale, asked="a finite scale", got=f"scale={scale}", fix="None for head_dim ** -0.5")


@pytest.mark.parametrize("softcap", [0.0, -1.0, math.inf, math.nan])
def test_message_softcap(softcap):
    refused(*qkv(), softcap=softcap, asked="softcap above 0", got=f"softcap={softcap}", fix="None for no softcap")


@pytest.mark.parametrize("dropout", [-0.1, 1.0, 1.5, math.nan])
def test_message_dropout(dropout):
    refused(*qkv(), dropout=dropout, asked="0 <= dropout < 1", got=f"dropout={dropout}", fix="0 outside of training")


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.int32])
def test_message_whole_number_masks(dtype):
    mask = torch.ones(6, 7, dtype=dtype)
    got = f"mask of {dtype}, shape (6, 7)"
    refused(*qkv(), mask=mask, asked="True = this query may attend", got=got, fix="`mask.bool()` if 1 stood for attend")


def test_message_masks_of_numbers():
    got = "mask of torch.float32, shape (6, 7)"
    refused(*qkv(), mask=torch.zeros(6, 7), asked="a boolean mask", got=got, fix="added to the scores as `bias=`")


@pytest.mark.parametrize("name", ["mask", "bias"])
def test_message_three_dimensions(name):
    given = {"mask": torch.ones(4, 6, 7, dtype=torch.bool), "bias": torch.zeros(4, 6, 7)}[name]
    refused(
        *qkv(batch=4),
        **{name: given},
        asked="(q_len, kv_len) = (6, 7) or (batch, heads, q_len, kv_len) = (4, 4, 6, 7); any size may be 1",
        got=f"{name} of shape (4, 6, 7)",
        fix=f"`{name}[:, None]` if the first is the batch, `{name}[None]` if it is the heads",
    )


def test_message_shapes():
    told = {"asked": "(q_len, kv_len) = (6, 7)"}
    padded = torch.ones(2, 7, dtype=torch.bool)
    refused(*qkv(), mask=padded, got="mask of shape (2, 7)", fix="`padding(mask)` or `mask[:, None, None]`", **told)
    wrong = torch.ones(2, 3, 6, 7, dtype=torch.bool)
    refused(*qkv(), mask=wrong, got="mask of shape (2, 3, 6, 7)", fix="reshape or expand the mask", **told)
    refused(*qkv(), bias=torch.zeros(7), got="bias of shape (7,)", fix="reshape or expand the bias", **told)


def test_message_bias_dtype():
    bias = torch.zeros(6, 7, dtype=torch.bool)
    refused(*qkv(), bias=bias, asked="a floating bias", got="bias of torch.bool", fix="a boolean tensor as `mask=`")


def test_message_patterns_of_another_batch_or_other_heads():
    keep = padding(torch.ones(3, 7, dtype=torch.bool))
    refused(*qkv(), mask=keep, asked="for batch=2, like q", got="for batch=3", fix="build it for batch=2")
    heads = per_head([causal(), everything()])
    told = {"got": "for heads=2", "fix": "heads=4 (query heads, not kv_heads)"}
    refused(*qkv(), mask=heads, q_offset=0, asked="for heads=4, like q", **told)


@pytest.mark.parametrize("heads", [1, 2, 5])
def test_message_heads_of_biases_and_sinks(heads):
    told = {"got": f"heads={heads}", "fix": "build it for heads=4 (query heads, not kv_heads)"}
    refused(*qkv(), normaliser=Softmax(sinks=torch.zeros(heads)), asked="tensor of sinks for heads=4", **told)
    refused(*qkv(), bias=ALiBi(torch.ones(heads)), asked=f"bias ALiBi({heads} heads) for heads=4", **told)
    refused(*qkv(), bias=RelativeTable(torch.ones(8, heads)), asked="RelativeTable(8 buckets", **told)


@pytest.mark.parametrize(
    "options",
    [
        {"mask": causal()},
        {"mask": document(torch.zeros(9, dtype=torch.long))},
        {"bias": ALiBi(alibi_slopes(4))},
        {"bias": RelativeTable(torch.zeros(8, 4))},
    ],
    ids=["causal", "document", "alibi", "table"],
)
def test_message_alignment(options):
    refused(
        *qkv(q_len=3, kv_len=7),
        **options,
        asked="with q_len != kv_len: the answer depends on the positions of the queries",
        got="q_len=3, kv_len=7, q_offset=None",
        fix="pass q_offset=0 (top-left: queries at positions 0..2, the first query at the first key) or "
        "q_offset=kv_len-q_len=4 (bottom-right: positions 4..6, the last query at the last key, as with a cache)",
    )
    assert make_problem(*qkv(q_len=3, kv_len=7), **options, q_offset=4).q_offset == 4
    assert make_problem(*qkv(q_len=7, kv_len=7), **options).q_offset == 0


def test_nothing_positional_needs_no_offset():
    keep = padding(torch.ones(2, 7, dtype=torch.bool))
    for mask in (None, keep, everything(), torch.ones(3, 7, dtype=torch.bool)):
        assert make_problem(*qkv(q_len=3), mask=mask, bias=torch.zeros(3, 7)).q_offset is None


def test_messages_of_normalisers():
    for wrong in (torch.zeros(2, 2), torch.zeros(2, dtype=torch.long)):
        softmax = object.__new__(Softmax)
        object.__setattr__(softmax, "sinks", wrong)
        object.__setattr__(softmax, "off_by_one", False)
        with pytest.raises(MultiheadError, match=r"shape \(heads,\)\n  got: shape .*\n  fix: pass a floating tensor"):
            softmax.__post_init__()
    with pytest.raises(MultiheadError, match=r"finite bias of Sigmoid\n  got: bias=inf\n  fix: pass a number"):
        Sigmoid(math.inf)
    for alpha in (1.0, 0.5, math.inf, math.nan):
        with pytest.raises(MultiheadError, match=r"alpha above 1\n  got: alpha=.*\n  fix: .*Softmax\(\) for alpha = 1"):
            Entmax(alpha)


def test_the_same_mask_as_pattern_tensor_and_bias():
    q, k, v = qkv(kv_len=6)
    dense = causal().mask(6, 6)
    patterned = define(make_problem(q, k, v, mask=causal()))[0]
    assert torch.equal(patterned, define(make_problem(q, k, v, mask=dense))[0])
    added = torch.zeros(6, 6).masked_fill(~dense[0, 0], -math.inf)
    assert torch.equal(patterned, define(make_problem(q, k, v, bias=added))[0])


def test_arguments_of_another_kind_are_named():
    with pytest.raises(MultiheadError, match=r"mask='causal' \(str\)\n  fix: .*parse_pattern"):
        check_kinds({"mask": "causal"}, (torch.Tensor,), "a pattern or a boolean tensor")
    with pytest.raises(MultiheadError, match=r"k as a tensor\n  got: k=3 \(int\)\n  fix: pass a tensor"):
        check_kinds({"q": torch.zeros(1), "k": 3}, (torch.Tensor,), "a tensor")
