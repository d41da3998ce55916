"""What no module can be built of or called with: refused in words, before anything is computed or kept."""

import copy
import re

import pytest
import torch
from torch import nn

from multihead.error import MultiheadError
from multihead.layer import (
    DifferentialAttention,
    Full,
    HeadGroup,
    Int8,
    Latent,
    LatentAttention,
    LayerLambda,
    LongformerAttention,
    MultiHeadAttention,
    OutputGate,
    QKNorm,
    Scoring,
    Sliding,
    Static,
    TalkingHeadsAttention,
)
from multihead.pattern import causal, global_tokens, sliding_window
from multihead.position import Rotary

pytestmark = pytest.mark.usefixtures("unhooked")

LATENT = Latent(8, nope_dim=4, rope_dim=4, v_dim=4)
CACHED = [
    lambda: MultiHeadAttention(16, 4),
    lambda: LatentAttention(16, 4, LATENT),
    lambda: DifferentialAttention(16, 2),
    lambda: TalkingHeadsAttention(16, 4),
]
EVERY = [*CACHED, lambda: LongformerAttention(16, 4, window=2)]


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (lambda: MultiHeadAttention(16, 8.0), "heads: a number, a HeadGroup"),
        (lambda: MultiHeadAttention(16, None), "heads: a number, a HeadGroup"),
        (lambda: MultiHeadAttention(16, torch.tensor(4)), "heads: a number, a HeadGroup"),
        (lambda: MultiHeadAttention(None, 4), "embed_dim=None"),
        (lambda: MultiHeadAttention(16, 4, kv_embed_dim=8.0), "kv_embed_dim=8.0"),
        (lambda: MultiHeadAttention(16, 4, kv_embed_dim=(8, 8, 8)), "kv_embed_dim=(8, 8, 8)"),
        (lambda: MultiHeadAttention(16, 4, kv_embed_dim=[]), "kv_embed_dim=[]"),
        (lambda: MultiHeadAttention(16, 4, bias="no"), "bias as True or False"),
        (lambda: MultiHeadAttention(16, 4, dropout="a"), "dropout=a"),
        (lambda: MultiHeadAttention(16, 4, dropout=float("nan")), "dropout=nan"),
        (lambda: HeadGroup(None), "heads=None"),
        (lambda: HeadGroup(4, mask="causal"), "mask='causal' (str)"),
        (lambda: HeadGroup(4, mask=torch.ones(3, 3, dtype=torch.bool)), "mask as a pattern"),
        (lambda: HeadGroup(4, position=Rotary), "position as Rotary()"),
        (lambda: HeadGroup(4, position="rotary"), "position='rotary' (str)"),
        (lambda: HeadGroup(4, scoring=None), "scoring=None"),
        (lambda: HeadGroup(4, gate=True), "gate=True (bool)"),
        (lambda: Scoring(norm=QKNorm), "norm as QKNorm(...) or None"),
        (lambda: Scoring(sinks=torch.zeros(4)), "sinks as True for learned ones"),
        (lambda: QKNorm(eps="a"), "QKNorm with eps above 0"),
        (lambda: QKNorm(eps=float("inf")), "eps=inf"),
        (lambda: OutputGate(bias="no"), "bias='no' (str)"),
        (lambda: Latent(8, nope_dim=4, rope_dim=4, v_dim=4, eps=None), "Latent with eps above 0"),
        (lambda: LatentAttention(16, 4, 8), "latent=8 (int)"),
        (lambda: LatentAttention(16, 4, LATENT, position="rotary"), "position as Rotary(...) or None"),
        (lambda: LatentAttention(16, 4, LATENT, scoring=1), "scoring=1 (int)"),
        (lambda: DifferentialAttention(16, 2, position=Rotary), "position as Rotary(...) or None"),
        (lambda: DifferentialAttention(16, 2, lambdas=0.5), "lambdas=0.5 (float)"),
        (lambda: LayerLambda(depth="a"), "depth='a'"),
        (lambda: LayerLambda(start="a"), "start=a"),
        (lambda: LayerLambda(eps=None), "LayerLambda with eps above 0"),
        (lambda: Sliding(2, spare="a"), "spare='a'"),
        (lambda: Sliding(2, spare=None), "spare=None"),
        (lambda: Int8("full"), "kind='full' (str)"),
        (lambda: Int8(Int8()), "kind as Full()"),
        (lambda: MultiHeadAttention(16, 4).cache(batch=1, kind=Full), "kind as Full(), Static(length)"),
        (lambda: LatentAttention(16, 4, LATENT).cache(batch=1, kind="full"), "kind='full' (str)"),
        (lambda: MultiHeadAttention.from_torch(nn.Linear(2, 2)), "module as an nn.MultiheadAttention"),
    ],
)
def test_parts_of_another_kind_build_nothing(build, told):
    with pytest.raises(MultiheadError, match=re.escape(told)):
        build()


@pytest.mark.parametrize("build", EVERY)
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"query": "a"}, "query as a tensor (batch, length, width)"),
        ({"query": None}, "query=None"),
        ({"mask": "causal"}, "parse_pattern"),
        ({"mask": True}, "mask=True (bool)"),
        ({"mask": causal}, "a pattern is what causal() gives"),
        ({"mask": causal}, "mask as a pattern, a boolean tensor, or None"),
    ],
)
def test_arguments_of_another_kind_are_refused(build, given, told):
    with pytest.raises(MultiheadError, match=re.escape(told)):
        build()(**{"query": torch.randn(1, 3, 16)} | given)


@pytest.mark.parametrize("build", CACHED)
@pytest.mark.parametrize(
    ("given", "told"),
    [({"cache": (1, 2)}, "cache"), ({"positions": [0, 1, 2]}, "positions as a tensor of one position")],
)
def test_what_is_no_cache_and_no_position_is_refused(build, given, told):
    with pytest.raises(MultiheadError, match=re.escape(told)):
        build()(torch.randn(1, 3, 16), **given)


@pytest.mark.parametrize("offset", ["a", 2**62, 2**64])
def test_an_offset_that_no_position_can_have_is_refused(offset):
    layer = MultiHeadAttention(16, HeadGroup(4, position=Rotary()))
    with pytest.raises(MultiheadError, match=r"q_offset: the position of the first query"):
        layer(torch.randn(1, 3, 16), q_offset=offset)


@pytest.mark.parametrize("build", EVERY)
@pytest.mark.parametrize("change", [torch.Tensor.half, torch.Tensor.double, torch.Tensor.long])
def test_inputs_in_another_dtype_than_the_weights_are_refused(build, change):
    layer, x = build(), torch.randn(1, 3, 16)
    told = f"query of {change(x).dtype} on cpu"
    with pytest.raises(MultiheadError, match=rf"(?s)torch.float32 on cpu\n.*{re.escape(told)}"):
        layer(change(x))


@pytest.mark.parametrize("build", EVERY)
def test_inputs_on_another_device_than_the_weights_are_refused(build):
    layer, x = build(), torch.randn(1, 3, 16, device="meta")
    with pytest.raises(MultiheadError, match=r"query of torch\.float32 on meta"):
        layer(x)
    assert layer.to("meta")(x).shape == (1, 3, 16)


def test_inputs_that_autocast_or_a_hook_brings_into_line_are_taken():
    layer, x = MultiHeadAttention(16, 4), torch.randn(1, 3, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x.bfloat16()).dtype == torch.bfloat16
    want = layer(x)
    for linear in (layer.q_proj, layer.k_proj, layer.v_proj):
        linear.register_forward_pre_hook(lambda _, given: (given[0].float(),))
    torch.testing.assert_close(layer(x.double().clone()), want)


@pytest.mark.parametrize("build", CACHED)
def test_a_sliding_cache_refuses_to_forget_what_the_mask_still_sees(build):
    layer, x = build(), torch.randn(1, 9, 16)
    tensor = torch.ones(9, 9, dtype=torch.bool).tril()
    reaching = causal() & (sliding_window(4) | global_tokens([0]))
    for mask in (None, causal(), sliding_window(5), reaching, tensor):
        cache = layer.cache(batch=1, kind=Sliding(4))
        for place in range(4):
            seen = mask[place : place + 1, : place + 1] if mask is tensor else mask
            got = layer(x[:, place : place + 1], mask=seen, cache=cache)
            want = layer(x[:, : place + 1], mask=tensor[: place + 1, : place + 1])[:, -1:]
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        with pytest.raises(MultiheadError, match=r"(?s)queries from position 4 the first 1 tokens are not kept any"):
            layer(x[:, 4:5], mask=tensor[4:5, :5] if mask is tensor else mask, cache=cache)
        assert cache.length == 4
    with pytest.raises(MultiheadError, match=r"(?s)by 4 tokens.*kind=Sliding\(5\)"):
        layer(x, mask=sliding_window(5), cache=_filled(layer, x, Sliding(4)))


def _filled(layer, x, kind):
    cache = layer.cache(batch=1, kind=kind)
    for place in range(4):
        layer(x[:, place : place + 1], mask=sliding_window(4), cache=cache)
    return cache


def test_a_sliding_cache_goes_with_a_tensor_that_keeps_to_the_window():
    layer, x = MultiHeadAttention(16, 4).double(), torch.randn(1, 9, 16, dtype=torch.float64)
    mask, cache = sliding_window(4).mask(9, 9), layer.cache(batch=1, kind=Sliding(4))
    got = [layer(x[:, i : i + 1], mask=mask[..., i : i + 1, : i + 1], cache=cache) for i in range(9)]
    torch.testing.assert_close(torch.cat(got, 1), layer(x, mask=mask), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("build", CACHED)
@torch.no_grad()
def test_a_cache_is_of_one_layer(build):
    first, second, x = build(), build(), torch.randn(1, 3, 16)
    cache = first.cache(batch=1)
    first(x, mask=causal(), cache=cache)
    with pytest.raises(MultiheadError, match=r"(?s)with 3 tokens of another \w+ of the same sizes.*each layer its own"):
        second(x, mask=causal(), cache=cache)
    assert cache.length == 3
    twin, copied = copy.deepcopy((first, cache))
    torch.testing.assert_close(
        twin(x, mask=causal(), cache=copied), first(x, mask=causal(), cache=cache), rtol=1e-4, atol=1e-5
    )
    cache.cut(0)
    second(x, mask=causal(), cache=cache)
    assert cache.length == 3


def test_a_cut_that_is_refused_leaves_every_group_as_it_was():
    layer, x = MultiHeadAttention(16, [HeadGroup(2, 4), HeadGroup(2, 4, mask=sliding_window(3))]), torch.randn(1, 9, 16)
    cache = layer.cache(batch=1)
    for token in x.split(1, 1):
        layer(token, mask=causal(), cache=cache)
    for length in (4, 2.0, True, "a", None, -1, 10, float("nan"), 2**62):
        with pytest.raises(MultiheadError, match="cut"):
            cache.cut(length)
        assert [group.rows.length for group in cache.groups] == [9, 9]
    cache.cut(torch.tensor(9))
    assert cache.length == 9


@pytest.mark.parametrize("index", ["a", None, {0, 1}, [2**70], torch.tensor([0], device="meta")])
def test_rows_that_are_none_are_refused(index):
    cache = MultiHeadAttention(16, 4).cache(batch=2)
    with pytest.raises(MultiheadError, match="rows of the batch: at least one whole number"):
        cache.select(index)
    assert cache.batch == 2


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_rows_may_be_whole_numbers_of_any_width(dtype):
    layer, x = MultiHeadAttention(16, 4), torch.randn(2, 3, 16)
    cache = layer.cache(batch=2)
    layer(x, mask=causal(), cache=cache)
    cache.select(torch.tensor([1], dtype=dtype))
    got = layer(x[1:], mask=causal(), cache=cache)
    torch.testing.assert_close(got, layer(x[1:].repeat(1, 2, 1), mask=causal())[:, 3:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [Full(), Static(9), Sliding(9), Int8()])
def test_a_cache_goes_in_and_out_of_inference_mode(kind):
    layer, x = MultiHeadAttention(16, 4), torch.randn(1, 9, 16)
    cache, got = layer.cache(batch=1, kind=kind), []
    for place, token in enumerate(x.split(1, 1)):
        with torch.inference_mode(place % 2 == 0), torch.no_grad():
            got.append(layer(token, mask=causal(), cache=cache).clone())
    bound = 0.1 if isinstance(kind, Int8) else 1e-5
    torch.testing.assert_close(torch.cat(got, 1), layer(x, mask=causal()), rtol=0, atol=bound)


def test_a_cache_keeps_one_dtype():
    layer, x = MultiHeadAttention(16, 4), torch.randn(1, 4, 16)
    cache = layer.cache(batch=1)
    layer(x[:, :3], mask=causal(), cache=cache)
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(MultiheadError, match=r"(?s)bfloat16 on cpu, the 3 tokens in it are torch.float32 on cpu"),
    ):
        layer(x[:, 3:], mask=causal(), cache=cache)
    torch.testing.assert_close(
        layer(x[:, 3:], mask=causal(), cache=cache), layer(x, mask=causal())[:, 3:], rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("listed", ["a", 0, None, [0.0], [True], ["a"], [-1], [99]])
def test_global_tokens_that_are_no_places_are_refused(listed):
    layer = LongformerAttention(16, 4, window=2)
    with pytest.raises(MultiheadError, match="global_tokens: positions from 0 to 2"):
        layer(torch.randn(1, 3, 16), global_tokens=listed)
