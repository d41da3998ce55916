"""The public functions: weights of any slice, derivatives beyond the first, calls without gradients."""

import inspect
import math

import jaxtyping
import pytest
import torch

from attend.oracle import near, qkv
from multihead.attend import Entmax, Sigmoid, Softmax, attention, attention_lse, define, explain_backend, make_problem
from multihead.error import MultiheadError
from multihead.pattern import causal, everything, per_head, sliding_window
from multihead.position import ALiBi, RelativeTable, alibi_slopes

# What torch itself loads for forward-mode derivatives warns of being old.
TORCH_WARNS = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")

OPTIONS = {
    "plain": dict,
    "pattern": lambda: {"mask": sliding_window(3), "q_offset": 1},
    "pattern of heads": lambda: {
        "mask": per_head([causal(), everything(), sliding_window(2), causal()]),
        "q_offset": 1,
    },
    "tensor": lambda: {"mask": torch.rand(2, 4, 6, 7) < 0.5},
    "keys": lambda: {"mask": torch.rand(2, 1, 1, 7) < 0.5},
    "bias": lambda: {"bias": torch.randn(1, 4, 6, 7), "softcap": 1.0},
    "alibi": lambda: {"bias": ALiBi(alibi_slopes(4)), "q_offset": 1},
    "table": lambda: {"bias": RelativeTable(torch.randn(8, 4), max_distance=9), "q_offset": 1},
    "sinks": lambda: {"normaliser": Softmax(sinks=torch.randn(4), off_by_one=True)},
    "sigmoid": lambda: {"normaliser": Sigmoid(-1.0)},
    "entmax": lambda: {"normaliser": Entmax()},
    "dropout": lambda: {"dropout": 0.5},
}
SLICES = [
    (None, None),
    (slice(1, 4), None),
    ([5, 0, -1], [2]),
    (slice(None, None, 2), slice(2, None)),
    ([], [1, 3]),
    (range(2, 4), (3, 3)),
]


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize(("rows", "heads"), SLICES, ids=str)
def test_weights_of_a_slice_are_the_slice_of_the_weights(name, rows, heads):
    q, k, v = qkv()
    options = OPTIONS[name]()
    attended = attention_lse(q, k, v, **options)
    full = define(make_problem(q, k, v, **options | {"dropout": 0.0}))[2]
    every_row, every_head = torch.arange(6), torch.arange(4)
    rows_chosen = every_row if rows is None else every_row[rows if isinstance(rows, slice) else list(rows)]
    heads_chosen = every_head if heads is None else every_head[heads if isinstance(heads, slice) else list(heads)]
    expected = full[:, heads_chosen][:, :, rows_chosen]
    assert near(attended.weights(rows=rows, heads=heads), expected)
    assert attended.weights(rows, heads).dtype == torch.float32


def test_weights_are_made_of_the_lse():
    q, k, v = qkv(grad=True)
    attended = attention_lse(q, k, v, normaliser=Softmax(sinks=torch.randn(4)))
    scores = attended.problem.scores()
    assert near(attended.weights(), torch.exp(scores - attended.lse[..., None]))
    assert near(attended.weights() @ v.repeat_interleave(2, 1), attended.out)


def test_weights_carry_gradients():
    q, k, v = qkv(dtype=torch.float64, grad=True)
    weights = attention_lse(q, k, v).weights(rows=[1], heads=[0])
    (grad,) = torch.autograd.grad(weights[..., 0].sum(), k)
    full = torch.softmax(q @ k.repeat_interleave(2, 1).mT * 8**-0.5, -1)
    (expected,) = torch.autograd.grad(full[:, 0, 1, 0].sum(), k)
    assert near(grad, expected, 1e-12)


@pytest.mark.parametrize(("which", "wrong", "limit"), [("rows", [2, 6], 6), ("rows", [-7], 6), ("heads", [4], 4)])
def test_message_indices(which, wrong, limit):
    attended = attention_lse(*qkv())
    with pytest.raises(MultiheadError) as raised:
        attended.weights(**{which: wrong})
    told = str(raised.value).splitlines()
    assert told[0] == f"weights of {which} {wrong}"
    assert told[1] == f"  got: [{wrong[-1]}] out of range, there are {limit} {which}"
    assert told[2] == f"  fix: pass indices from 0 to {limit - 1} (or from -{limit}), or a slice"


def test_the_log_sum_exp_is_none_where_there_is_none():
    assert attention_lse(*qkv(), normaliser=Sigmoid()).lse is None
    assert attention_lse(*qkv(dtype=torch.float64)).lse.dtype == torch.float64
    assert attention_lse(*qkv(dtype=torch.bfloat16)).lse.dtype == torch.float32
    assert attention_lse(*qkv(dtype=torch.bfloat16)).out.dtype == torch.bfloat16


def test_the_arguments_are_checked_behind_the_annotations():
    """Tests check shapes at the door; users meet the message."""
    q, k, v = qkv()
    for call in (attention, attention_lse, explain_backend):
        with pytest.raises(MultiheadError, match="each key has one value"):
            inspect.unwrap(call)(q, k, v[:, :, :5])
        with pytest.raises(MultiheadError, match="four dimensions each"):
            inspect.unwrap(call)(q[0], k, v)


def test_the_three_functions_take_the_same_arguments():
    names = [list(inspect.signature(call).parameters) for call in (attention, attention_lse, explain_backend)]
    assert names[0] == names[1] == names[2]
    assert names[0][3:] == [*list(inspect.signature(make_problem).parameters)[3:], "backend"]


@pytest.mark.parametrize("backend", ["sdpa", "tiled"])
class Test33BeyondTheFirstDerivative:
    """What a backend does not have is refused with the backend that has it."""

    message = r'of an attention call\n  got: .*\n  fix: call it with backend="reference", which has all of them'

    def call(self, backend):
        q, k, v = qkv(kv_len=6, dtype=torch.float64)
        return q, lambda q: attention(q, k, v, mask=causal(), backend=backend)

    def test_second_derivative(self, backend):
        q, f = self.call(backend)
        q.requires_grad_()
        (grad,) = torch.autograd.grad(f(q).square().sum(), q, create_graph=True)
        (plain,) = torch.autograd.grad(f(q).square().sum(), q)
        assert torch.equal(grad, plain)
        with pytest.raises(MultiheadError, match="second derivatives " + self.message):
            grad.sum().backward()

    @TORCH_WARNS
    def test_jvp(self, backend):
        q, f = self.call(backend)
        with pytest.raises(MultiheadError, match=r"forward-mode derivatives \(jvp\) " + self.message):
            torch.func.jvp(f, (q,), (q,))

    def test_vmap(self, backend):
        q, f = self.call(backend)
        with pytest.raises(MultiheadError, match=r"torch\.func\.vmap " + self.message):
            torch.func.vmap(f)(q[None])

    def test_functional_gradient_works(self, backend):
        q, f = self.call(backend)
        grad = torch.func.grad(lambda x: f(x).square().sum())(q)
        q.requires_grad_()
        assert near(grad, torch.autograd.grad(f(q).square().sum(), q)[0], 1e-12)


HIDDEN = {
    "bias": lambda: (torch.randn(3, 4, 6, 6), lambda x: {"bias": x[None]}),
    "slopes": lambda: (torch.rand(3, 4), lambda x: {"bias": ALiBi(x)}),
    "mask": lambda: (torch.rand(3, 6, 6) < 0.7, lambda x: {"mask": x}),
    "sinks": lambda: (torch.randn(3, 4), lambda x: {"normaliser": Softmax(sinks=x)}),
}


@TORCH_WARNS
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", HIDDEN)
def test_vmap_over_what_stands_beside_q_k_and_v(name, grad, monkeypatch):
    """Every backend but the reference refuses it, with and without gradients, and names the reference."""
    monkeypatch.setattr(
        jaxtyping.config, "jaxtyping_disable", True
    )  # a tensor vmap goes over says it has another shape
    q, k, v = qkv(kv_len=6, grad=grad)
    many, options = HIDDEN[name]()
    word = "bias" if name == "slopes" else name
    with torch.set_grad_enabled(grad):
        for backend in ("auto", "sdpa", "tiled"):
            with pytest.raises(MultiheadError) as caught:
                torch.func.vmap(lambda x, backend=backend: attention(q, k, v, **options(x), backend=backend))(many)
            assert f"torch.func.vmap over the {word}" in caught.value.arrived
            assert caught.value.remedy.endswith("one that can run it: reference")
        got = torch.func.vmap(lambda x: attention(q, k, v, **options(x), backend="reference"))(many)
    assert near(got, torch.stack([attention(q, k, v, **options(x)) for x in many]))


@TORCH_WARNS
def test_the_reference_has_them_all():
    q, k, v = qkv(
        batch=1, heads=2, kv_heads=1, q_len=3, kv_len=3, head_dim=2, v_head_dim=2, dtype=torch.float64, grad=True
    )

    def f(q):
        return attention(q, k.detach(), v.detach(), mask=causal(), backend="reference")

    assert torch.autograd.gradgradcheck(f, (q,))
    q = q.detach()
    tangent = torch.randn_like(q)
    step = 1e-6 * tangent
    assert near(torch.func.jvp(f, (q,), (tangent,))[1], (f(q + step) - f(q - step)) / 2e-6, 1e-7)
    assert torch.equal(torch.func.vmap(f)(torch.stack([q, q + 1]))[1], f(q + 1))


@pytest.mark.parametrize("backend", ["sdpa", "tiled", "reference"])
def test_the_same_values_in_every_mode(backend):
    q, k, v = qkv(kv_len=6)
    results = [attention(q, k, v, mask=causal(), backend=backend)]
    with torch.no_grad():
        results.append(attention(q, k, v, mask=causal(), backend=backend))
    with torch.inference_mode():
        results.append(attention_lse(q, k, v, mask=causal(), backend=backend).out.clone())
    results.append(attention(q.requires_grad_(), k, v, mask=causal(), backend=backend))
    assert all(torch.equal(result, results[0]) for result in results)


def test_dropout_is_drawn_from_torchs_generator():
    q, k, v = qkv()
    torch.manual_seed(3)
    first = attention(q, k, v, dropout=0.5)
    second = attention(q, k, v, dropout=0.5)
    torch.manual_seed(3)
    assert torch.equal(attention(q, k, v, dropout=0.5), first)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    attention(q, k, v)
    assert torch.equal(torch.rand(2), expected)


def test_huge_scores_stay_finite():
    q, k, v = qkv()
    for normaliser in (Softmax(), Softmax(off_by_one=True), Sigmoid(), Entmax()):
        for height in (1e4, -1e4):
            out = attention(q, k, v, bias=torch.full((6, 7), height), scale=100.0, normaliser=normaliser)
            assert out.isfinite().all()
            assert near(
                out,
                define(
                    make_problem(
                        q.double(),
                        k.double(),
                        v.double(),
                        bias=torch.full((6, 7), height),
                        scale=100.0,
                        normaliser=normaliser,
                    )
                )[0],
                0.05,
            )
    assert math.isfinite(attention_lse(q, k, v, scale=1e4).lse.sum())
