"""Ten traps that attention falls into, by the numbers of one survey, on every backend that claims the problem."""

import itertools
import math

import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, repeat_kv
from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention

from attend.oracle import attend_slowly, full, near, qkv
from built import NATIVE
from multihead.attend import (
    Entmax,
    Sigmoid,
    Softmax,
    Sparsemax,
    attention,
    attention_lse,
    explain_backend,
    make_problem,
)
from multihead.error import MultiheadError
from multihead.layer import (
    DifferentialAttention,
    HeadGroup,
    Int8,
    Latent,
    LatentAttention,
    LayerLambda,
    MultiHeadAttention,
    OutputGate,
    QKNorm,
    Scoring,
    Sliding,
    TalkingHeadsAttention,
)
from multihead.pattern import bigbird, causal, global_tokens, neighbourhood, pairs, random_blocks, sliding_window
from multihead.position import DynamicNTK, Rotary, ShawRelative, TransformerXLRelative, YaRN

WIDE = torch.float64
TRAINED = pytest.mark.parametrize("backend", ["reference", "tiled", "sdpa"])
FLEX = pytest.param("flex", marks=pytest.mark.slow)  # seconds of it; its laws are in the default suite
EVERY = pytest.mark.parametrize("backend", ["reference", "tiled", "sdpa", NATIVE, FLEX])
KINDS = [Softmax(), Softmax(off_by_one=True), Sigmoid(), Sparsemax(), Entmax(1.5)]


def able(backend, q, k, v, **given):
    return explain_backend(q, k, v, **given, backend=backend).chosen == backend


def randomised(layer):
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape) * (1.0 if parameter.ndim == 1 else 0.4))
    return layer


@TRAINED
@pytest.mark.parametrize("rows", [slice(2, 3), slice(0, 256), slice(128, 300)], ids=["row", "tile", "tiles"])
def test_trap_01_rows_that_see_nothing_forward_and_backward(rows, backend):
    mask = torch.rand(300, 300) < 0.5
    mask[rows] = False
    seen = torch.ones(300, dtype=torch.bool)
    seen[rows] = False
    for normaliser in KINDS:
        q, k, v = qkv(1, 2, 1, 300, 300, 4, 4, dtype=WIDE, grad=True)
        if not able(backend, q, k, v, mask=mask, normaliser=normaliser):
            continue
        for given in ({"mask": mask}, {"bias": torch.zeros(300, 300, dtype=WIDE).masked_fill(~mask, -math.inf)}):
            got = attention_lse(q, k, v, **given, normaliser=normaliser, backend=backend)
            pull = torch.randn_like(got.out)
            grads = torch.autograd.grad(got.out, (q, k, v), pull)
            few = attention(q[:, :, seen], k, v, mask=mask[seen], normaliser=normaliser, backend=backend)
            want = torch.autograd.grad(few, (q, k, v), pull[:, :, seen])
            assert not got.out[:, :, rows].any()
            assert not got.weights(rows=rows).any()
            assert not grads[0][:, :, rows].any()
            assert near(got.out[:, :, seen], few, 1e-9)
            assert all(near(mine, theirs, 1e-8) for mine, theirs in zip(grads, want, strict=True))


@EVERY
def test_trap_02_chunks_of_every_split_and_lengths_0_and_1(backend):
    q, k, v = qkv(q_len=6, kv_len=6)
    for mask in (causal(), sliding_window(2)) if backend != "flex" else (causal(),):
        whole = attention(q, k, v, mask=mask, backend="reference")
        for a, b in list(itertools.combinations(range(7), 2))[
            :: 4 if backend == "flex" else 1
        ]:  # chunks of every split
            got = attention(q[:, :, a:b], k[:, :, :b], v[:, :, :b], mask=mask, q_offset=a, backend=backend)
            assert near(got, whole[:, :, a:b], 1e-5)
    for none in (q[:, :, :0], q):
        kept = (k, v) if none is not q else (k[:, :, :0], v[:, :, :0])
        assert not attention(none, *kept, mask=causal(), q_offset=0).any()
    with pytest.raises(MultiheadError, match="q_offset"):
        attention(q[:, :, :2], k, v, mask=causal(), backend=backend)


@TRAINED
@pytest.mark.parametrize("window", [1, 2, 5])
def test_trap_02_a_ring_that_wraps_around(window, backend):
    group = HeadGroup(2, 4, mask=sliding_window(window), position=Rotary(50.0))
    layer = randomised(MultiHeadAttention(8, group, backend=backend)).double()
    x = torch.randn(1, 6 * window + 3, 8, dtype=WIDE)
    for sizes in (1, 2, window, window + 1):
        cache = layer.cache(batch=1, kind=Sliding(window))
        got = torch.cat([layer(part, cache=cache) for part in x.split(sizes, 1)], 1)
        assert near(got, layer(x), 1e-10)


@EVERY
def test_trap_03_true_attends_behind_the_cap_and_a_window_has_w_keys(backend):
    q, k, v = qkv()
    allowed = torch.rand(2, 4, 6, 7) < 0.6
    given = {"mask": allowed} | ({} if backend == "sdpa" else {"softcap": 0.4})
    want = attend_slowly(q, k, v, allowed=allowed, softcap=given.get("softcap"))[0]
    assert near(attention(q, k, v, **given, backend=backend), want)
    eye = torch.eye(7).expand(2, 2, 7, 7)
    square = attention(k, k, eye, mask=sliding_window(3), backend=backend)
    assert (square > 0).sum(-1)[0, 0].tolist() == [min(i + 1, 3) for i in range(7)]


def test_trap_03_the_mask_comes_behind_the_mixing_of_talking_heads():
    layer = randomised(TalkingHeadsAttention(8, 2)).double()
    x = torch.randn(1, 5, 8, dtype=WIDE)
    wild = torch.cat([x[:, :3], 1e3 * torch.randn(1, 2, 8, dtype=WIDE)], 1)
    assert torch.equal(layer(x, mask=causal())[:, :3], layer(wild, mask=causal())[:, :3])
    assert layer(x, mask=causal()).isfinite().all()


@EVERY
def test_trap_04_key_heads_and_rotary_layout_as_in_transformers(backend):
    q, k, v = qkv(heads=6, kv_heads=3, q_len=7)
    angles = torch.arange(7)[:, None] * 50.0 ** (-torch.arange(0, 8, 2) / 8)
    cos, sin = (torch.cat([t, t], -1)[None] for t in (angles.cos(), angles.sin()))
    theirs, their_keys = apply_rotary_pos_emb(q, k, cos, sin)
    want = torch.softmax(theirs @ repeat_kv(their_keys, 2).mT * 8**-0.5, -1) @ repeat_kv(v, 2)
    turned, keys = (Rotary(50.0).rotate(x, torch.arange(7)) for x in (q, k))
    got = attention(turned, keys, v, backend=backend)
    assert near(got, want)
    wrong = torch.softmax(theirs @ their_keys.repeat(1, 2, 1, 1).mT * 8**-0.5, -1) @ v.repeat(1, 2, 1, 1)
    assert not near(got, wrong, 1e-2)


def test_trap_04_maps_of_a_differential_head_lie_side_by_side():
    """Rows 2 h and 2 h + 1 of the queries are head h; its values are those of the kv head both its keys lie in."""
    layer = randomised(DifferentialAttention(8, 4, kv_heads=2, head_dim=3, lambdas=LayerLambda(start=0.4))).double()
    x = torch.randn(1, 5, 8, dtype=WIDE)
    q, k = (project(x[0]).unflatten(-1, (-1, 2, 3)) for project in (layer.q_proj, layer.k_proj))
    v = layer.v_proj(x[0]).unflatten(-1, (2, 6))
    first, second = (torch.exp((a * b).sum()) for a, b in layer.vectors)

    def told(pair):
        heads = []
        for h in range(4):
            maps = [torch.softmax(q_map @ k_map.T * 3**-0.5, -1) for q_map, k_map in pair(h)]
            out = (maps[0] - (first - second + 0.4) * maps[1]) @ v[:, h // 2]
            out = out / torch.sqrt(out.square().mean(-1, keepdim=True) + 1e-5) * layer.norm.weight
            heads.append(0.6 * out)
        return layer.out_proj(torch.cat(heads, -1))

    def beside(h):
        return [(q[:, h, m], k[:, h // 2, m]) for m in range(2)]

    def apart(h):  # all first maps, then all second ones: the same rows read another way
        rows, keys = q.flatten(1, 2), k.flatten(1, 2)
        return [(rows[:, h + 4 * m], keys[:, h // 2 + 2 * m]) for m in range(2)]

    assert near(layer(x)[0], told(beside), 1e-10)
    assert not near(layer(x)[0], told(apart), 1e-2)


def test_trap_04_queries_and_gates_of_qwen_alternate_by_head():
    """Of its fused projection each head has its query rows, then its gate rows; not all queries, then all gates."""
    sizes = {"hidden_size": 12, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8}
    theirs = randomised(Qwen3NextAttention(Qwen3NextConfig(**sizes, attn_implementation="eager"), 0)).eval()
    scoring = Scoring(norm=QKNorm(eps=theirs.config.rms_norm_eps))
    gate, position = OutputGate(per="channel"), Rotary(50.0, dim=4)
    group = HeadGroup(6, 8, kv_heads=3, position=position, scoring=scoring, gate=gate)
    ours, given = MultiHeadAttention(12, group, bias=False), theirs.state_dict()
    x, angles = torch.randn(2, 7, 12), torch.arange(7)[:, None] * 50.0 ** (-torch.arange(0, 4, 2) / 4)
    turns = tuple(torch.cat([t, t], -1)[None] for t in (angles.cos(), angles.sin()))
    seen = torch.where(causal().mask(7, 7), 0.0, torch.finfo(torch.float32).min)
    want = theirs(x, turns, seen)[0]

    def loaded(q, gates):
        ours.load_state_dict(
            {f"{name}_proj.weight": given[f"{name}_proj.weight"] for name in "kv"}
            | {f"parts.0.{name}_norm.weight": 1 + given[f"{name}_norm.weight"] for name in "qk"}
            | {"q_proj.weight": q, "parts.0.gate.weight": gates, "out_proj.weight": given["o_proj.weight"]}
        )
        return ours(x, mask=causal())

    by_head = given["q_proj.weight"].unflatten(0, (6, 2, 8))
    assert near(loaded(by_head[:, 0].flatten(0, 1), by_head[:, 1].flatten(0, 1)), want, 1e-5)
    assert not near(loaded(*given["q_proj.weight"].chunk(2)), want, 1e-2)


@EVERY
@pytest.mark.parametrize(("width", "v_width"), [(5, 12), (24, 40), (40, 7)])
def test_trap_05_the_scale_is_of_the_true_width(width, v_width, backend):
    q, k, v = qkv(head_dim=width, v_head_dim=v_width)
    bias = torch.randn(1, 4, 6, 7)
    want = attend_slowly(q, k, v, bias=bias.expand(2, 4, 6, 7), scale=width**-0.5)[0]
    assert near(attention(q, k, v, bias=bias, backend=backend), want)


def test_trap_05_absorbed_latents_and_yarn():
    for position in (None, Rotary(50.0, scaling=YaRN(4.0, trained_length=8, mscale_all_dim=1.0))):
        made = []
        for form in ("expanded", "absorbed"):
            latent = Latent(9, nope_dim=5, rope_dim=4, v_dim=3, form=form)
            made.append(LatentAttention(8, 2, latent, position=position).double())
        made[1].load_state_dict(randomised(made[0]).state_dict())
        x = torch.randn(2, 6, 8, dtype=WIDE)
        assert near(made[0](x, mask=causal()), made[1](x, mask=causal()), 1e-10)
        assert made[1].scale == pytest.approx(9**-0.5 * (1 if position is None else position.score_factor))


@pytest.mark.parametrize("scale", [None, 0.83])
@TRAINED
def test_trap_05_terms_of_relative_vectors_are_scaled_too(scale, backend):
    """A bias is not multiplied by the scale, but these terms are products: they come scaled."""
    q, k, v = (x.double() for x in qkv(heads=2, kv_heads=2, q_len=5, kv_len=5))
    factor = 8**-0.5 if scale is None else scale
    shaw = ShawRelative(keys=torch.randn(5, 8, dtype=WIDE))
    u, w = torch.randn(2, 2, 8, dtype=WIDE), torch.randn(16, 6, dtype=WIDE)
    long = TransformerXLRelative(content=u[0], position=u[1], projection=w)
    for queries, bias, term in (
        (q, shaw.bias(q, scale=scale), lambda h, i, j: q[:, h, i] @ shaw.keys[min(max(i - j, -2), 2) + 2]),
        (
            long.queries(q),
            long.bias(q, scale=scale),
            lambda h, i, j: (q[:, h, i] + u[1, h]) @ (w[8 * h : 8 * h + 8] @ sinusoid_of(i - j, 6)),
        ),
    ):
        dots = queries @ k.mT
        for h, i, j in itertools.product(range(2), range(5), range(5)):
            dots[:, h, i, j] += term(h, i, j)
        want = torch.softmax(factor * dots, -1) @ v
        assert near(attention(queries, k, v, bias=bias, scale=scale, backend=backend), want, 1e-10)
        unscaled = torch.softmax(factor * (queries @ k.mT) + bias / factor, -1) @ v
        assert not near(unscaled, want, 1e-3)


def sinusoid_of(distance, width):
    waves = [(distance * 10000.0 ** (-2 * k / width)) for k in range(width // 2)]
    return torch.tensor([f(wave) for wave in waves for f in (math.sin, math.cos)], dtype=WIDE)


REPEATED = {
    "pairs": lambda: pairs([(i, j) for i in range(12) for j in (i % 5, i % 5, 3)]),
    "global": lambda: global_tokens([2, 2, 7]) | sliding_window(3),
    "blocks": lambda: random_blocks(3, 2, seed=4, length=12) | random_blocks(3, 2, seed=4, length=12) | causal(),
    "bigbird": lambda: bigbird(1, 2, length=12, seed=1),
    "edges": lambda: neighbourhood(3, 4, 3),
}


@EVERY
@pytest.mark.parametrize("name", REPEATED)
def test_trap_06_a_key_named_twice_counts_once(name, backend):
    mask = REPEATED[name]()
    k, v = torch.randn(1, 1, 12, 4), torch.eye(12)[None, None]
    got = attention(torch.zeros(1, 1, 12, 4), k, v, mask=mask, backend=backend)[0, 0]
    for i in range(12):
        seen = [j for j in range(12) if bool(mask.allows(torch.tensor([i]), torch.tensor([j])))]
        assert near(got[i, seen], torch.full((len(seen),), 1 / max(len(seen), 1)), 1e-6)
        assert near(got[i].sum(), torch.tensor(float(bool(seen))), 1e-5)


def test_trap_07_the_kernel_taken_is_the_one_that_is_told():
    q, k, v = qkv(grad=True)
    learned = torch.randn(1, 4, 6, 7, requires_grad=True)
    for given, backend in (
        ({}, "sdpa"),
        ({"bias": learned.detach()}, "sdpa"),
        ({"mask": causal(), "q_offset": 1}, "sdpa"),
        ({"bias": learned}, "tiled"),
        ({"dropout": 0.3}, "tiled"),
        ({"softcap": 2.0}, "tiled"),
        ({"normaliser": Sparsemax()}, "tiled"),
    ):
        assert explain_backend(q, k, v, **given).chosen == backend
        got = attention_lse(q, k, v, **given)
        assert got.backend == backend
        assert type(got.out.grad_fn).__name__ == {"sdpa": "_FlashBackward", "tiled": "_TiledBackward"}[backend]
    wide = qkv(v_head_dim=12, grad=True)
    assert attention_lse(*wide).backend == "sdpa"
    with pytest.raises(MultiheadError, match="four dimensions"):
        make_problem(q[0], k[0], v[0])


@EVERY
def test_trap_08_huge_neighbours_in_time_and_batch_change_no_bit(backend):
    q, k, v = qkv(batch=3, q_len=7)
    for mask in (causal(), causal() & ~random_blocks(2, 1, seed=3)):
        before = attention(q, k, v, mask=mask, backend=backend)
        later = [torch.cat([x[:, :, :4], 1e4 * torch.randn_like(x[:, :, 4:])], 2) for x in (q, k, v)]
        assert torch.equal(attention(*later, mask=mask, backend=backend)[:, :, :4], before[:, :, :4])
        mates = [torch.cat([x[:1], 1e4 * torch.randn_like(x[1:])]) for x in (q, k, v)]
        assert torch.equal(attention(*mates, mask=mask, backend=backend)[:1], before[:1])


@pytest.mark.parametrize("over", ["head", "each", "all"])
def test_trap_08_norms_and_bytes_look_at_one_token(over):
    scoring = Scoring(norm=QKNorm(over=over), sinks=True)
    layer = randomised(MultiHeadAttention(8, HeadGroup(2, 4, scoring=scoring))).double()
    x = torch.randn(2, 6, 8, dtype=WIDE)
    wild = x.clone()
    wild[1], wild[0, 4:] = 1e5, 1e5
    outs = [layer(y, mask=causal(), cache=layer.cache(batch=2, kind=Int8())) for y in (x, wild)]
    assert torch.equal(outs[0][0, :4], outs[1][0, :4])


def test_trap_09_caches_keep_their_own_state():
    """Inputs and earlier results stay as they were; a memory of another batch is refused; factors stay wide."""
    position = Rotary(50.0, scaling=DynamicNTK(4.0, trained_length=3))
    layer = randomised(MultiHeadAttention(8, HeadGroup(2, 4, position=position))).eval()
    x = torch.randn(2, 9, 8)
    copied, cache, outs = x.clone(), layer.cache(batch=2), []
    with torch.no_grad():
        for t in range(9):
            out = layer(x[:, t : t + 1], mask=causal(), cache=cache)
            outs.append((out, cache.groups[0].rows.parts[0].clone()))
        for t, (out, keys) in enumerate(outs):
            assert near(out, layer(x[:, : t + 1], mask=causal())[:, -1:], 1e-5)
            assert torch.equal(keys, cache.groups[0].rows.parts[0][:, :, : t + 1])
    assert torch.equal(x, copied)
    with pytest.raises(MultiheadError, match="batch of 2"):
        layer(x[:1], cache=layer.remember(x))
    short = layer.bfloat16().cache(batch=2, kind=Int8())
    layer(x.bfloat16(), mask=causal(), cache=short)
    assert short.groups[0].rows.parts[1].dtype == torch.float32
    low = attention_lse(*(y.bfloat16() for y in qkv()))
    assert low.lse.dtype == low.weights().dtype == torch.float32


def test_trap_09_beams_of_a_latent_cache_and_tensors_that_change_later():
    """Rows go where they are sent, vectors and turned keys alike; what the caller writes to later is not in it."""
    latent = Latent(6, nope_dim=4, rope_dim=4, v_dim=3)
    layer = randomised(LatentAttention(8, 2, latent, position=Rotary(50.0))).eval()
    prompt, nexts = torch.randn(3, 4, 8), torch.randn(3, 2, 8)
    rows, given = torch.tensor([2, 0, 2]), prompt.clone()
    with torch.no_grad():
        cache = layer.cache(batch=3)
        layer(given, mask=causal(), cache=cache)
        given.fill_(1e4)
        cache.select(rows)
        outs = []
        for t in range(2):
            step = nexts[:, t : t + 1].clone()
            out = layer(step, mask=causal(), cache=cache)
            outs.append(out.clone())
            step.fill_(-1e4)
            out.fill_(1e4)
        want = layer(torch.cat([prompt[rows], nexts], 1), mask=causal())[:, 4:]
    assert near(torch.cat(outs, 1), want, 1e-5)
    assert not near(want, layer(torch.cat([prompt, nexts], 1), mask=causal())[:, 4:], 1e-2)


def test_trap_10_biases_norms_and_dropout_are_seen_by_these_tests():
    """A module whose biases or norms were left at their start would pass where it should not: none of them is."""
    layer = randomised(MultiHeadAttention(8, HeadGroup(2, 4, scoring=Scoring(norm=QKNorm(), sinks=True))))
    x = torch.randn(2, 5, 8)
    want = layer.eval()(x)
    for name, parameter in layer.named_parameters():
        kept = parameter.detach().clone()
        assert kept.unique().numel() == kept.numel(), name
        with torch.no_grad():
            parameter.fill_(1.0 if "norm" in name else 0.0)
            moved = not near(layer(x), want, 1e-4)
            parameter.copy_(kept)
        assert moved or name == "k_proj.bias", name


@EVERY
def test_trap_10_three_oracles_that_share_no_code_agree(backend):
    q, k, v = qkv()
    mask = torch.rand(2, 4, 6, 7) < 0.7
    mask[..., 0] = True
    theirs = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double().repeat_interleave(2, 1), v.double().repeat_interleave(2, 1), attn_mask=mask
    )
    assert near(attend_slowly(q, k, v, allowed=full(mask, 2, 4, 6, 7))[0], theirs, 1e-10)
    assert near(attention(q, k, v, mask=mask, backend=backend), theirs)
