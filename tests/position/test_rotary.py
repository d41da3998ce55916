"""Rotary positions against complex numbers, transformers, and what they promise."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from multihead.error import MultiheadError
from multihead.position import DynamicNTK, Linear, LongRoPE, Rotary, Rotation, YaRN, permute_rows

LAYOUTS = ["half", "interleaved"]
SCALINGS = [None, Linear(3.0), YaRN(4.0, 16), DynamicNTK(2.0, 7)]


def turned(x, positions, *, base, dim, layout, factor=1.0):
    """Pairs as complex numbers times e^(i angle), one place at a time."""
    out = x.clone()
    for k in range(dim // 2):
        one, two = (k, k + dim // 2) if layout == "half" else (2 * k, 2 * k + 1)
        pair = torch.complex(x[..., one], x[..., two])
        angle = positions.double() * base ** (-2 * k / dim)
        turn = torch.polar(torch.full_like(angle, factor), angle)
        pair = pair * (turn if positions.ndim == 1 else turn[:, None])
        out[..., one], out[..., two] = pair.real, pair.imag
    return out


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dim", [None, 2, 6])
@pytest.mark.parametrize("shape", [(5,), (2, 5), (1, 5)])
def test_pairs_are_complex_numbers_times_a_turn(layout, dim, shape):
    x = torch.randn(2, 3, 5, 10, dtype=torch.float64)
    positions = torch.randint(-50, 1000, shape)
    ours = Rotary(500.0, dim=dim, layout=layout).rotate(x, positions)
    expected = turned(x, positions, base=500.0, dim=dim or 10, layout=layout)
    assert torch.allclose(ours, expected, rtol=0, atol=1e-12)
    assert torch.equal(ours[..., dim or 10 :], x[..., dim or 10 :])
    assert ours.dtype == x.dtype


def test_the_factor_of_yarn_is_on_cos_and_sin():
    rotary = Rotary(scaling=YaRN(8.0, 32, attention_factor=1.25))
    q, k = torch.randn(2, 1, 2, 4, 8, dtype=torch.float64)
    positions = torch.arange(4)
    plain = Rotary(scaling=YaRN(8.0, 32, attention_factor=1.0))
    assert rotary.factor == 1.25
    assert torch.allclose(rotary.rotate(q, positions), 1.25 * plain.rotate(q, positions))
    scores = rotary.rotate(q, positions) @ rotary.rotate(k, positions).mT
    assert torch.allclose(scores, 1.25**2 * (plain.rotate(q, positions) @ plain.rotate(k, positions).mT))
    assert Rotary().factor == Rotary().score_factor == 1.0


# How cos and sin are laid out for the function of each model: where not here, the angles of all pairs twice in a row.
LAID = {"cohere": lambda a: a.repeat_interleave(2, -1), "cohere2": lambda a: a.repeat_interleave(2, -1)}
LAID["gpt_oss"] = lambda a: a
MODELS = ["llama", "mistral", "qwen3", "gemma2", "gpt_oss", "cohere", "cohere2", "glm", "glm4", "helium", "ernie4_5"]


@pytest.mark.parametrize("name", MODELS)
def test_apply_rotary_pos_emb_of_transformers(name):
    modeling = pytest.importorskip(f"transformers.models.{name}.modeling_{name}", reason="it is the oracle")
    rotary = Rotary.from_config({"model_type": name, "rope_theta": 300.0})
    q, k = torch.randn(2, 2, 3, 5, 8, dtype=torch.float64)
    positions = torch.randint(0, 99, (2, 5))
    angles = positions[..., None] * 300.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    angles = LAID.get(name, lambda a: torch.cat([a, a], -1))(angles)
    theirs = modeling.apply_rotary_pos_emb(q, k, angles.cos(), angles.sin())
    # Two of them compute in float32 whatever they are given.
    within = 2e-6 if name in ("cohere", "cohere2", "ernie4_5") else 1e-12
    for x, expected in zip((q, k), theirs, strict=True):
        assert torch.allclose(rotary.rotate(x, positions), expected.double(), rtol=0, atol=within)


@pytest.mark.parametrize("name", ["deepseek_v2", "llama4"])
def test_models_that_use_complex_numbers(name):
    modeling = pytest.importorskip(f"transformers.models.{name}.modeling_{name}", reason="it is the oracle")
    rotary = Rotary.from_config({"model_type": name.replace("llama4", "llama4_text")})
    q, k = torch.randn(2, 2, 3, 5, 8)
    angles = torch.arange(5)[:, None] * 10000.0 ** (-torch.arange(0, 8, 2) / 8)
    turns = torch.polar(torch.ones(1, 5, 4), angles[None])
    if name == "llama4":  # heads behind the length
        theirs = (x.transpose(1, 2) for x in modeling.apply_rotary_emb(q.transpose(1, 2), k.transpose(1, 2), turns))
    else:
        theirs = modeling.apply_rotary_emb(q, k, turns)
    for x, expected in zip((q, k), theirs, strict=True):
        assert torch.allclose(rotary.rotate(x, torch.arange(5)), expected, rtol=0, atol=2e-6)


def test_gpt_j_and_codegen():
    for name in ("gptj", "codegen"):
        modeling = pytest.importorskip(f"transformers.models.{name}.modeling_{name}", reason="it is the oracle")
        config = {"model_type": name, "rotary_dim": 6, "n_embd": 16, "n_head": 2}
        rotary = Rotary.from_config(config)
        assert rotary == Rotary(dim=6, layout="interleaved")
        x, positions = torch.randn(1, 2, 5, 8), torch.arange(30, 35)
        sin, cos = modeling.create_sinusoidal_positions(64, 6)[positions][None].chunk(2, -1)
        theirs = modeling.apply_rotary_pos_emb(x[..., :6].transpose(1, 2), sin, cos).transpose(1, 2)
        assert torch.allclose(rotary.rotate(x, positions)[..., :6], theirs, rtol=0, atol=1e-5)


def test_scores_of_deepseek_v3():
    modeling = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3", reason="it is the oracle")
    rotary = Rotary.from_config({"model_type": "deepseek_v3", "rope_interleave": True, "qk_rope_head_dim": 8})
    q, k = torch.randn(2, 1, 2, 5, 8, dtype=torch.float64)
    positions = torch.arange(5) + 7
    angles = positions[:, None] * 10000.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    both = torch.cat([angles, angles], -1)[None]
    one, two = modeling.apply_rotary_pos_emb_interleave(q, k, both.cos(), both.sin())
    # Theirs leaves the numbers in another order, alike in q and k, which products do not see.
    assert torch.allclose(rotary.rotate(q, positions) @ rotary.rotate(k, positions).mT, one @ two.mT, atol=1e-12)


@given(
    first=st.integers(-1000, 100_000),
    far=st.integers(0, 5000),
    layout=st.sampled_from(LAYOUTS),
    dim=st.sampled_from([None, 2, 4]),
    scaling=st.sampled_from(SCALINGS[:3]),
    base=st.floats(1.5, 1e7),
)
def test_scores_depend_on_distances_alone(first, far, layout, dim, scaling, base):
    rotary = Rotary(base, dim=dim, layout=layout, scaling=scaling)
    q, k = torch.randn(2, 1, 2, 6, 8, dtype=torch.float64)

    def scores(shift):
        positions = torch.arange(6) + shift
        return rotary.rotate(q, positions) @ rotary.rotate(k, positions).mT

    # An angle is off by half a last digit of its size: position x 1e-16.
    assert torch.allclose(scores(first), scores(first + far), rtol=0, atol=1e-9)


@given(split=st.integers(0, 6), layout=st.sampled_from(LAYOUTS), scaling=st.sampled_from(SCALINGS))
def test_an_offset_continues(split, layout, scaling):
    rotary = Rotary(100.0, layout=layout, scaling=scaling)
    x, positions = torch.randn(2, 2, 6, 8), torch.arange(6) + 4
    parts = [rotary.rotate(x[:, :, part], positions[part], length=10) for part in (slice(0, split), slice(split, None))]
    assert torch.equal(torch.cat(parts, 2), rotary.rotate(x, positions, length=10))


@pytest.mark.parametrize("scaling", SCALINGS)
def test_a_sequence_does_not_depend_on_others_of_its_batch(scaling):
    rotary = Rotary(scaling=scaling)
    x, positions = torch.randn(3, 2, 4, 8), torch.randint(0, 40, (3, 4))
    whole = rotary.rotate(x, positions)
    for row in range(3):
        assert torch.equal(whole[row : row + 1], rotary.rotate(x[row : row + 1], positions[row]))


@given(
    heads=st.integers(1, 3),
    head_dim=st.integers(2, 9),
    pairs=st.integers(1, 4),
    source=st.sampled_from(LAYOUTS),
    target=st.sampled_from(LAYOUTS),
)
def test_layouts_are_equal_after_permuting_rows(heads, head_dim, pairs, source, target):
    dim = min(2 * pairs, head_dim - head_dim % 2)
    x = torch.randn(2, 5, 7, dtype=torch.float64)
    weights, biases = torch.randn(2, heads * head_dim, 7).double(), torch.randn(2, heads * head_dim).double()
    changed = [permute_rows(w, head_dim=head_dim, source=source, target=target, dim=dim) for w in (*weights, *biases)]

    def scores(wq, wk, bq, bk, layout):
        q, k = ((x @ w.T + b).unflatten(-1, (heads, head_dim)).transpose(1, 2) for w, b in ((wq, bq), (wk, bk)))
        rotary = Rotary(50.0, dim=dim, layout=layout)
        return rotary.rotate(q, torch.arange(5) + 3) @ rotary.rotate(k, torch.arange(5) + 3).mT

    assert torch.allclose(scores(*changed, target), scores(*weights, *biases, source), rtol=0, atol=1e-10)
    back = [permute_rows(w, head_dim=head_dim, source=target, target=source, dim=dim) for w in changed]
    assert all(torch.equal(one, two) for one, two in zip(back, (*weights, *biases), strict=True))


def test_rows_are_permuted_as_llama_was_for_transformers():
    # The published conversion, written out: every head's rows as (pairs, 2) turned to (2, pairs).
    weight = torch.randn(4 * 6, 5)
    theirs = weight.view(4, 3, 2, 5).transpose(1, 2).reshape(24, 5)
    assert torch.equal(permute_rows(weight, head_dim=6, source="interleaved", target="half"), theirs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_dtypes_are_rounded_once(dtype):
    x, positions = torch.randn(2, 2, 9, 16).to(dtype), torch.arange(9) * 211
    ours = Rotary().rotate(x, positions)
    assert ours.dtype == dtype
    assert torch.equal(ours, Rotary().rotate(x.float(), positions).to(dtype))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients(layout):
    x = torch.randn(2, 2, 3, 7, dtype=torch.float64, requires_grad=True)
    rotary, positions = Rotary(dim=6, layout=layout, scaling=YaRN(4.0, 16)), torch.randint(0, 99, (2, 3))
    assert torch.autograd.gradcheck(lambda x: rotary.rotate(x, positions), x)
    assert torch.autograd.gradgradcheck(lambda x: rotary.rotate(x, positions), x)


def test_angles_made_once_turn_queries_and_keys():
    rotary, positions = Rotary(dim=4), torch.arange(5)
    angles = rotary.rotation(positions, 8)
    for x in (torch.randn(2, 6, 5, 8), torch.randn(2, 2, 5, 8)):
        assert torch.equal(angles.apply(x), rotary.rotate(x, positions))
    fine = torch.randn(1, 1, 5, 8, dtype=torch.float64)
    assert angles.apply(fine).dtype == torch.float64


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dim", [0, 4])
@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_tables_of_onnx(layout, dim, shape):
    onnx = pytest.importorskip("onnx.reference.ops.op_rotary_embedding", reason="it is the oracle")
    x, tables, positions = torch.randn(2, 4, 3, 8), torch.randn(2, 50, (dim or 8) // 2), torch.randint(0, 50, shape)
    theirs = onnx.rotary_embedding(
        x.numpy(),
        *tables.numpy(),
        positions.expand(2, 3).numpy(),
        interleaved=int(layout == "interleaved"),
        rotary_embedding_dim=dim,
    )
    cos, sin = tables[:, positions]
    ours = Rotation.of(cos, sin, layout=layout).apply(x)
    assert torch.allclose(ours, torch.from_numpy(theirs), rtol=0, atol=1e-5)


@pytest.mark.parametrize("scaling", [DynamicNTK(2.0, 8), LongRoPE((1.0,) * 4, (1.0, 2.0, 3.0, 9.0), 8, factor=4.0)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_a_cache_does_where_the_length_matters(scaling, layout):
    rotary = Rotary(100.0, layout=layout, scaling=scaling)
    assert rotary.depends_on_length
    keys, positions = torch.randn(2, 2, 12, 8, dtype=torch.float64), torch.arange(12)
    early = rotary.rotate(keys[:, :, :9], positions[:9], length=8)
    now = rotary.rotate(keys, positions)
    assert torch.equal(now, rotary.rotate(keys, positions, length=12))
    assert not torch.allclose(early, now[:, :, :9])  # what a cache holds is stale
    again = rotary.retune(early, positions[:9], seen=8, length=12)
    assert torch.allclose(again, now[:, :, :9], rtol=0, atol=1e-12)
    each = rotary.retune(early, positions[:9], seen=torch.tensor([8, 8]), length=torch.tensor([12, 12]))
    assert torch.equal(each, again)


def test_where_the_length_does_not_matter():
    assert not any(Rotary(scaling=scaling).depends_on_length for scaling in SCALINGS[:3])
    assert not LongRoPE((2.0,), (2.0,), 8).depends_on_length
    x = torch.randn(1, 1, 3, 4)
    assert torch.equal(Rotary().rotate(x, torch.arange(3), length=999), Rotary().rotate(x, torch.arange(3)))


def test_equal_numbers_make_equal_objects():
    assert Rotary(scaling=Linear(2.0)) == Rotary(10000.0, scaling=Linear(2.0))
    assert len({Rotary(), Rotary(layout="interleaved"), Rotary()}) == 2


@pytest.mark.parametrize("scaling", SCALINGS)
def test_nothing_at_all(scaling):
    assert Rotary(scaling=scaling).rotate(torch.randn(2, 2, 0, 8), torch.arange(0)).shape == (2, 2, 0, 8)


@pytest.mark.parametrize(("layout", "scaling"), list(zip(LAYOUTS, SCALINGS[2:], strict=True)))
def test_compiled_as_one_graph(layout, scaling, unchecked):
    rotary = Rotary(dim=6, layout=layout, scaling=scaling)

    def run(x, positions):
        return rotary.rotate(x, positions) * 2

    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (3, 9):
        x, positions = torch.randn(2, 2, length, 8, requires_grad=True), torch.randint(0, 50, (2, length))
        expected, out = run(x, positions), compiled(x, positions)
        assert torch.allclose(out, expected, rtol=0, atol=1e-6)
        grads = [torch.autograd.grad(y.square().sum(), x)[0] for y in (out, expected)]
        assert torch.allclose(*grads, rtol=0, atol=1e-5)


def test_exported_for_any_length(unchecked):
    class Turn(torch.nn.Module):
        def forward(self, x, positions):
            return Rotary(scaling=DynamicNTK(2.0, 4)).rotate(x, positions)

    length = torch.export.Dim("length", min=2, max=64)
    shapes = {"x": {2: length}, "positions": {0: length}}
    program = torch.export.export(Turn(), (torch.randn(2, 2, 5, 8), torch.arange(5)), dynamic_shapes=shapes)
    x, positions = torch.randn(2, 2, 11, 8), torch.arange(11) + 20
    assert torch.allclose(program.module()(x, positions), Turn()(x, positions), rtol=0, atol=1e-6)


X = torch.zeros(2, 3, 5, 8)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Rotary(1.0), r"base above 1\n  got: base=1.0\n  fix: pass rope_theta"),
        (lambda: Rotary(layout="neox"), r"a rotary layout.*\n  got: layout='neox'\n  fix: pass \"half\""),
        (lambda: Rotary(dim=7), r"Rotary\(dim=...\): an even number.*\n  got: dim=7.*\n  fix: pass Rotary\(dim=6\)"),
        (lambda: Rotary(dim=0), r"an even number of rotated dimensions.*\n  got: dim=0"),
        (
            lambda: Rotary().rotate(X[..., :5], torch.arange(5)),
            r"whole heads: an even number.* 2 to head_dim=5\n  got: dim=5, head_dim=5\n  fix: .*dim=4\), which leaves",
        ),
        (
            lambda: Rotary().rotate(X[..., :1], torch.arange(5)),
            r"got: dim=1, head_dim=1\n  fix: use heads of at least 2 dimensions",
        ),
        (
            lambda: Rotary(dim=10).rotate(X, torch.arange(5)),
            r"Rotary\(dim=...\).* to head_dim=8\n  got: dim=10, head_dim=8",
        ),
        (
            lambda: Rotary().rotation(torch.arange(5), 10).apply(X),
            r"angles for more dimensions than x has.*\n  got: dim=10, head_dim=8",
        ),
        (
            lambda: Rotary().rotate(X, torch.arange(5.0)),
            r"positions as integers.*\n  got: shape \(5,\), torch.float32\n  fix: pass torch.arange",
        ),
        (lambda: Rotary().rotate(X, torch.ones(5) > 0), r"positions as integers.*\n  got: shape \(5,\), torch.bool"),
        (lambda: Rotary().rotate(X, torch.arange(5)[None, None]), r"positions as integers.*\n  got: shape \(1, 1, 5\)"),
        (
            lambda: Rotary().rotate(X, torch.arange(4)),
            r"one position for each place.*\n  got: x \(2, 3, 5, 8\), positions for batch=1, length=4\n"
            r"  fix: pass positions of shape \(5,\) or \(2, 5\)",
        ),
        (lambda: Rotary().rotate(X, torch.zeros(3, 5).long()), r"one position.*\n  got: .* batch=3, length=5"),
        (
            lambda: Rotary().rotate(X[0], torch.arange(5)),
            r"x \(batch, heads, length, head_dim\).*\n  got: shape \(3, 5, 8\), torch.float32\n  fix: split the heads",
        ),
        (lambda: Rotary().rotate(X.long(), torch.arange(5)), r"of a floating dtype\n  got: shape .*, torch.int64"),
        (
            lambda: Rotary().rotate(X.to("meta"), torch.arange(5)),
            r"on one device\n  got: x on meta, positions on cpu\n  fix: pass `positions.to\('meta'\)`",
        ),
        (
            lambda: Rotation.of(torch.ones(5, 4), torch.ones(5, 8), layout="half"),
            r"cos and sin of each pair.*\n  got: cos \(5, 4\), sin \(5, 8\)\n  fix: pass one number for each pair",
        ),
        (lambda: Rotation.of(X, X, layout="half"), r"cos and sin of each pair.*\n  got: cos \(2, 3, 5, 8\)"),
        (lambda: Rotation.of(X[0], X[0], layout="neox"), r"a rotary layout.*\n  got: layout='neox'"),
        (
            lambda: permute_rows(X[0, 0], head_dim=4, source="half", target="interleaved"),
            r"a multiple of head_dim=4\n  got: weight of shape \(5, 8\)\n  fix: pass the weight as",
        ),
        (
            lambda: permute_rows(X[0, 0], head_dim=5, source="half", target="interleaved"),
            r"permute_rows: an even number.*\n  got: dim=5, head_dim=5",
        ),
        (
            lambda: permute_rows(X[0, 0], head_dim=5, source="half", target="gptj"),
            r"a rotary layout.*\n  got: layout='gptj'",
        ),
    ],
)
def test_bad_input(wrong, message, unchecked):
    with pytest.raises(MultiheadError, match=message):
        wrong()
