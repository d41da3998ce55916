"""Functions with the signatures of others, given what somebody will pass by mistake: refused in words, or done."""

from contextlib import contextmanager

import jaxtyping
import pytest
import torch

from multihead.error import MultiheadError
from multihead.interop.compat import (
    MultiheadAttention,
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    multi_head_attention_forward,
    scaled_dot_product_attention,
)
from multihead.position import permute_rows

NAN = float("nan")
ODD = [
    *(
        None,
        "x",
        3,
        -1,
        2**70,
        -(2**70),
        1.5,
        NAN,
        True,
        1j,
        b"a",
        object(),
        {},
        [],
        [1],
        (1, 2, 3),
        (NAN, 1),
        ("a", "b"),
    ),
    *(torch.tensor(3), torch.tensor([1.0]), torch.ones(1, 2, 3, 4, 5), torch.ones(2, 2, dtype=torch.bool)),
    *(torch.ones(2, 3, device="meta"), torch.ones(2, 3, 2).to_sparse(), torch.ones(2, 3, 2) + 1j),
    *(torch.ones(2, 2, 3, 4).long(), torch.ones(2, 3, 2, 4).double(), torch.tensor([[1, 2]]), torch.tensor([-1, 2])),
]


@pytest.fixture(autouse=True)
def _unhooked():
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def sdpa():
    x = torch.ones(2, 3, 2, 4)
    flags = {"is_causal": False, "enable_gqa": False}
    return scaled_dot_product_attention, {"query": x, "key": x, "value": x, "attn_mask": None, "scale": None} | flags


def flash():
    x = torch.ones(2, 3, 2, 4)
    return flash_attn_func, {
        "q": x,
        "k": x,
        "v": x,
        "dropout_p": 0.0,
        "softmax_scale": None,
        "causal": False,
        "window_size": (-1, -1),
        "softcap": 0.0,
        "alibi_slopes": None,
        "deterministic": False,
        "return_attn_probs": False,
    }


def varlen():
    x, ends = torch.ones(7, 2, 4), torch.tensor([0, 3, 7])
    return flash_attn_varlen_func, {
        "q": x,
        "k": x,
        "v": x,
        "cu_seqlens_q": ends,
        "cu_seqlens_k": ends,
        "max_seqlen_q": 4,
        "max_seqlen_k": 4,
        "dropout_p": 0.0,
        "causal": False,
        "window_size": (-1, -1),
        "softcap": 0.0,
        "alibi_slopes": None,
        "return_attn_probs": False,
        "block_table": None,
    }


def kvcache():
    x = torch.ones(2, 1, 2, 4)
    return flash_attn_with_kvcache, {
        "q": x,
        "k_cache": torch.ones(2, 8, 2, 4),
        "v_cache": torch.ones(2, 8, 2, 4),
        "k": x,
        "v": x,
        "rotary_cos": None,
        "cache_seqlens": 3,
        "cache_batch_idx": None,
        "softmax_scale": None,
        "causal": False,
        "window_size": (-1, -1),
        "softcap": 0.0,
        "alibi_slopes": None,
        "return_softmax_lse": False,
    }


def forward():
    x = torch.ones(5, 2, 8)
    return multi_head_attention_forward, {
        "query": x,
        "key": x,
        "value": x,
        "embed_dim_to_check": 8,
        "num_heads": 2,
        "in_proj_bias": None,
        "in_proj_weight": torch.ones(24, 8),
        "bias_k": None,
        "bias_v": None,
        "add_zero_attn": False,
        "dropout_p": 0.0,
        "out_proj_weight": torch.eye(8),
        "out_proj_bias": None,
        "training": True,
        "key_padding_mask": None,
        "need_weights": True,
        "attn_mask": None,
        "use_separate_proj_weight": False,
        "static_k": None,
        "static_v": None,
        "average_attn_weights": True,
        "is_causal": False,
    }


def built():
    sizes = {"embed_dim": 8, "num_heads": 2, "dropout": 0.0, "kdim": None, "vdim": None, "device": None, "dtype": None}
    flags = ("bias", "add_bias_kv", "add_zero_attn", "batch_first")
    return MultiheadAttention, sizes | dict.fromkeys(flags, False)


def called():
    x = torch.ones(5, 2, 8)
    flags = {"need_weights": True, "average_attn_weights": True, "is_causal": False}
    masks = {"key_padding_mask": None, "attn_mask": None}
    return MultiheadAttention(8, 2), {"query": x, "key": x, "value": x} | masks | flags


def permuted():
    return permute_rows, {"weight": torch.ones(6, 4), "head_dim": 2, "source": "half", "target": "half", "dim": None}


EVERY = [sdpa, flash, varlen, kvcache, forward, built, called, permuted]
FLAGS = {"is_causal", "causal", "enable_gqa", "need_weights", "training", "bias", "batch_first", "return_attn_probs"}


@contextmanager
def refusing():
    """What was refused within, if anything was: with all three parts of its message."""
    errors = []
    try:
        yield errors
    except MultiheadError as error:
        errors.append(error)
    for error in errors:
        assert error.asked
        assert error.arrived
        assert error.remedy


@pytest.mark.filterwarnings("ignore")  # of masks that shut most rows, and of layouts in beta
@pytest.mark.parametrize(("make", "name"), [(make, name) for make in EVERY for name in make()[1]])
def test_each_argument_of_another_kind_is_refused_or_taken(make, name):
    refused = 0
    for odd in ODD:
        function, given = make()
        if odd is given[name]:
            continue
        with refusing() as errors:
            function(**given | {name: odd})
        refused += len(errors)
    # What counts for nothing here may be anything.
    assert refused >= 5 or name in ("max_seqlen_q", "max_seqlen_k")
    if name in FLAGS:
        assert refused >= len(ODD) - 1


@pytest.mark.parametrize(
    ("make", "change", "told"),
    [
        (sdpa, {"query": None}, "query: a dense tensor (..., heads, length, head_dim)\n  got: NoneType 'None'"),
        (sdpa, {"attn_mask": [[True]]}, "attn_mask: a dense tensor"),
        (sdpa, {"is_causal": 1}, "is_causal as True or False"),
        (flash, {"q": torch.ones(2, 3, 8)}, "q: a dense tensor (batch, length, heads, head_dim)\n  got: q of shape"),
        (flash, {"window_size": 4}, "window_size=(before, after): numbers of keys"),
        (flash, {"window_size": (4, NAN)}, "got: window_size=(4, nan)"),
        (flash, {"softcap": -1.0}, "softcap: a finite number of at least 0\n  got: softcap=-1.0"),
        (flash, {"alibi_slopes": torch.ones(2, 2).long()}, "alibi_slopes of floating numbers\n  got: torch.int64"),
        (varlen, {"cu_seqlens_q": torch.tensor([0.0, 7.0])}, "cu_seqlens_q: whole numbers, with values"),
        (varlen, {"cu_seqlens_k": torch.tensor([0, 7])}, "cu_seqlens_q for 2 and cu_seqlens_k for 1"),
        (varlen, {"alibi_slopes": torch.ones(3, 2)}, "of 2 sequences\n  got: shape (3, 2)"),
        (varlen, {"block_table": 3}, "got: block_table=3"),
        (kvcache, {"cache_seqlens": -1}, "cache_seqlens: keys that count, from 0, one number or (2,) of them"),
        (kvcache, {"cache_seqlens": torch.tensor([2.0, 2.0])}, "cache_seqlens: keys that count"),
        (kvcache, {"k": torch.ones(2, 1, 2, 4).double()}, "differ from them in length alone"),
        (kvcache, {"v_cache": torch.ones(2, 6, 2, 4)}, "caches of one length and batch"),
        (forward, {"out_proj_weight": torch.ones(8, 4)}, "got: out_proj_weight (8, 4)"),
        (forward, {"in_proj_bias": torch.ones(8)}, "got: in_proj_bias (8,)"),
        (forward, {"bias_k": torch.ones(1, 1, 8)}, "bias_k and bias_v both or neither\n  got: bias_k (1, 1, 8)"),
        (forward, {"in_proj_weight": torch.ones(24, 8).double()}, "got: in_proj_weight of torch.float64 on cpu"),
        (built, {"kdim": 2.5}, "sizes that are whole numbers\n  got: kdim=2.5"),
        (built, {"device": "nowhere"}, "device of the parameters: one that torch knows, or None"),
        (built, {"dtype": torch.int8}, "dtype of the parameters: a floating one, or None\n  got: dtype=torch.int8"),
        (called, {"query": torch.ones(5, 2, 8).double()}, "got: query of torch.float64 on cpu"),
        (called, {"attn_mask": torch.ones(5, 5, device="meta")}, "attn_mask on the device of the query, cpu"),
        (permuted, {"weight": [1.0]}, "weight=list '[1.0]'"),
        (permuted, {"head_dim": 0}, "head_dim=0"),
        (permuted, {"head_dim": 2.0}, "head_dim=2.0"),
    ],
)
def test_what_they_are_told(make, change, told):
    function, given = make()
    with pytest.raises(MultiheadError) as refused:
        function(**given | change)
    assert told in str(refused.value)


def test_a_cache_that_refuses_is_left_as_it_was():
    function, given = kvcache()
    before = given["k_cache"].clone()
    with pytest.raises(MultiheadError):
        function(**given | {"k": 2 * given["k"], "v": torch.ones(2, 1, 2, 3)})
    assert torch.equal(given["k_cache"], before)
