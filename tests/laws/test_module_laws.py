"""Laws of the module: every option alone, in pairs and many at once, on every path and backend."""

import copy
import itertools

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch.autograd import gradcheck
from torch.func import functional_call

from attend.oracle import near
from laws.module_options import NAMES, WIDTH, compose, group_of, kind, module_of, options
from multihead.attend import attention_lse
from multihead.error import BackendRefused
from multihead.layer import MultiHeadAttention
from multihead.pattern import causal, padding

WIDE = torch.float64
PAIRS = [(a, b) for a, b in itertools.combinations(NAMES, 2) if kind(a) != kind(b)]


def inputs(batch=2, length=5):
    return torch.randn(batch, length, WIDTH, dtype=WIDE)


def on_every_backend(layer, *args, **given):
    """The outputs of those that claim the call."""
    made = {}
    for backend in ("auto", "reference", "tiled", "sdpa"):
        layer.backend = backend
        try:
            made[backend] = layer(*args, **given)
        except BackendRefused:
            if backend != "sdpa":
                raise
    layer.backend = "auto"
    with torch.no_grad():  # our own kernel, where it is built
        made["float32"] = copy.deepcopy(layer).float()(*(x.float() for x in args), **given)
    return made


@pytest.mark.parametrize("name", NAMES)
def test_an_option_counts_alone_and_beside_every_other_one(name):
    values, x = options(), inputs()
    for first, second in [(name, name), *((a, b) for a, b in PAIRS if a == name)]:
        chosen = {first, second}
        layer = module_of(group_of(values, chosen))
        want = compose(layer, x, lambda b, h, i, j: j <= i)
        for backend, got in on_every_backend(layer, x, mask=causal()).items():
            assert near(got, want, 1e-4 if backend == "float32" else 1e-9), (second, backend)
        for left_out in chosen - {"kv", "values"}:  # without them other weights would be needed
            other = module_of(group_of(values, chosen - {left_out}))
            other.load_state_dict({k: v for k, v in layer.state_dict().items() if k in other.state_dict()})
            assert not near(other(x, mask=causal()), want, 1e-4), (second, left_out)


@st.composite
def layouts(draw, most=2):
    """Names of options for one group or several."""
    groups = []
    for _ in range(draw(st.integers(1, most))):
        chosen = []
        for each in sorted({kind(name) for name in NAMES}):
            chosen += draw(st.lists(st.sampled_from([n for n in NAMES if kind(n) == each]), max_size=1))
        groups.append((draw(st.sampled_from([2, 4])), draw(st.sampled_from([4, 6])), chosen))
    return groups


def built(layout, **more):
    """A module with these groups."""
    return module_of(*(group_of(options(heads), chosen, heads, width) for heads, width, chosen in layout), **more)


@settings(max_examples=25)
@given(layouts(), st.booleans(), st.booleans(), st.integers(1, 6))
def test_any_options_in_several_groups(layout, bias, fused, length):
    layer, x = built(layout, bias=bias), inputs(length=length)
    want = compose(layer, x, lambda b, h, i, j: j <= i)
    layer = layer.fuse() if fused else layer
    for backend, got in on_every_backend(layer, x, mask=causal()).items():
        assert near(got, want, 1e-4 if backend == "float32" else 1e-9), backend


@settings(max_examples=15)
@given(layouts(), st.integers(1, 5), st.integers(0, 3))
def test_other_keys_than_queries(layout, kv_len, offset):
    """Cross-attention, whose positions go on from `q_offset`: rows of self-attention over the longer of the two."""
    layer, key = built(layout), inputs(length=kv_len)
    x = inputs(length=3)
    shifted = torch.cat([inputs(length=offset), x], 1)
    want = compose(layer, shifted, key=key)[:, offset:]
    for backend, got in on_every_backend(layer, x, key, q_offset=offset).items():
        assert near(got, want, 1e-4 if backend == "float32" else 1e-9), backend
    memory = layer.remember(key)
    assert near(layer(x, cache=memory, q_offset=offset), want, 1e-9)


class Watched(MultiHeadAttention):
    """Hands on what the weights give."""

    def attend(self, problem):
        p = problem
        given = {"scale": p.scale, "softcap": p.softcap, "normaliser": p.normaliser, "q_offset": p.q_offset}
        attended = attention_lse(p.q, p.k, p.v, mask=p.mask, bias=p.bias, **given, backend=self.backend)
        return attended.weights() @ p.v.repeat_interleave(p.group, 1)


@settings(max_examples=20)
@given(layouts())
def test_every_path_gives_the_same(layout):
    """Training and evaluation, with gradients and without, with weights, fused, copied, saved and loaded."""
    layer, x = built(layout), inputs()
    want = layer.train()(x, mask=causal())
    paths = {"evaluation": layer.eval()(x, mask=causal())}
    with torch.no_grad():
        paths["no gradients"] = layer(x, mask=causal())
    with torch.inference_mode():
        paths["inference"] = layer(x, mask=causal()) + 0
    paths["a tensor as mask"] = layer(x, mask=torch.ones(5, 5, dtype=torch.bool).tril())
    watched = Watched(WIDTH, list(layer.groups)).double()
    watched.load_state_dict(layer.state_dict())
    paths["weights"] = watched(x, mask=causal())
    paths["fused"] = copy.deepcopy(layer).fuse()(x, mask=causal())
    paths["key and value said"] = layer(x, x.clone(), x.clone(), mask=causal())
    learned = x.clone().requires_grad_()
    paths["gradients of the input"] = layer(learned, mask=causal())
    for name, got in paths.items():
        assert near(got, want, 1e-9), name


@settings(max_examples=20)
@given(layouts())
def test_what_is_not_looked_at_changes_nothing(layout):
    """The future, padding behind, and the other rows of the batch, whatever stands there."""
    layer, x = built(layout), inputs(batch=3, length=6)
    wild = x.clone()
    wild[:, 4:] = 1e3 * torch.randn(3, 2, WIDTH, dtype=WIDE)
    whole = layer(x, mask=causal())
    assert torch.equal(layer(wild, mask=causal())[:, :4], whole[:, :4])
    keep = (torch.arange(6) < 4).expand(3, 6)
    assert near(layer(wild, mask=padding(keep))[:, :4], layer(x[:, :4]), 1e-9)
    mates = x.clone()
    mates[1:] = 1e3 * torch.randn(2, 6, WIDTH, dtype=WIDE)
    assert torch.equal(layer(mates, mask=causal())[:1], whole[:1])
    order = torch.randperm(3)
    assert near(layer(x[order], mask=causal()), whole[order], 1e-10)


def moved(tensor, by, size, dim=0):
    """Pieces of this size in another order."""
    return tensor.unflatten(dim, (len(by), size)).index_select(dim, by).flatten(dim, dim + 1)


def rearranged(group, order, groups):
    """How each parameter of a module of one group goes with its heads in another order."""
    _, _, width, v_width = group.sizes
    moves = {
        "q_proj": lambda p: moved(p, order, width),
        "k_proj": lambda p: moved(p, groups, width),
        "v_proj": lambda p: moved(p, groups, v_width),
        "out_proj.weight": lambda p: moved(p, order, v_width, 1),
        "parts.0.sinks": lambda p: p[order],
        "parts.0.bias": lambda p: p[..., order],
    }
    if group.gate is not None:
        moves["parts.0.gate"] = lambda p: moved(p, order, 1 if group.gate.per == "head" else v_width)
    if (norm := group.scoring.norm) is not None and norm.over != "head":
        one = width if norm.over == "all" else 1
        for name, by in (("q", order), ("k", groups)):
            moves[f"parts.0.{name}_norm"] = lambda p, by=by: (
                moved(p, by, one) if norm.over == "all" else p.index_select(0, by)
            )
    return moves


@settings(max_examples=15)
@given(layouts(most=1))
def test_heads_may_stand_in_any_order(layout):
    """Rows of the projections, parts of the group and columns of the output moved together."""
    ((heads, width, chosen),) = layout
    layer, x = built([(heads, width, [name for name in chosen if name != "mask heads"])]), inputs()
    want = layer(x, mask=causal())
    kv_heads = layer.groups[0].sizes[1]
    groups, each = torch.randperm(kv_heads), heads // kv_heads
    moves = rearranged(layer.groups[0], (groups[:, None] * each + torch.arange(each)).flatten(), groups)
    with torch.no_grad():
        for name, tensor in [*layer.named_parameters(), *layer.named_buffers()]:
            for start, move in moves.items():
                if name.startswith(start):
                    tensor.copy_(move(tensor.clone()))
    assert near(layer(x, mask=causal()), want, 1e-9)


@pytest.mark.parametrize("backend", ["reference", "tiled", "sdpa"])
@pytest.mark.parametrize("name", ["", *NAMES])
def test_gradients_are_those_of_differences(name, backend):
    """Of the input and of every parameter."""
    values = options(2)
    layer = module_of(group_of(values, [name] if name else [], 2, 4), backend=backend)
    names = [n for n, _ in layer.named_parameters()]

    def run(x, *weights):
        return functional_call(layer, dict(zip(names, weights, strict=True)), (x,), {"mask": causal()})

    x = inputs(1, 3).requires_grad_()
    weights = [p.detach().clone().requires_grad_() for p in layer.parameters()]
    try:
        assert gradcheck(run, (x, *weights), fast_mode=True)
    except BackendRefused:
        assert backend == "sdpa"
        assert kind(name) in ("softcap", "normaliser") or name == "position table"


# The compiler looks at `.grad` of every tensor it meets, its own intermediate results among them.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_module_gives_the_same(monkeypatch):
    """Everything at once; other combinations are in the tests of the layer."""
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)  # the compiler would trace the checks of types
    values, x = options(), inputs()
    chosen = ["kv", "values", "mask window", "position half", "norm rms", "scale", "normaliser sinks", "gate channel"]
    layer = module_of(group_of(values, chosen), group_of(values, ["softcap", "position table"]))
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    assert near(compiled(x, mask=causal()), layer(x, mask=causal()), 1e-10)


def test_dropout_of_a_module_is_by_the_seed_and_off_in_evaluation():
    values, x = options(), inputs()
    for name in ["", *(n for n in NAMES if kind(n) in ("position", "normaliser", "gate", "mask"))]:
        layer = module_of(group_of(values, [name] if name else []))
        clean = layer(x)
        layer.dropout = 0.5
        runs = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            runs.append(layer.train()(x))
        assert torch.equal(runs[0], runs[1])
        assert not torch.equal(runs[0], runs[2])
        assert torch.equal(layer.eval()(x), clean)
