"""Faults that users of other attention modules reported; the numbers are those of the survey of libraries."""

import types

import jaxtyping
import pytest
import torch

from multihead.attend import attention_lse
from multihead.error import MultiheadError
from multihead.layer import MultiHeadAttention
from multihead.pattern import causal, distance, padding


class Seen(MultiHeadAttention):
    """Keeps the problems it was asked and the heads it gave."""

    def attend(self, problem):
        heads = super().attend(problem)
        self.asked, self.gave = problem, heads
        return heads

    def weights(self):
        p = self.asked
        return attention_lse(p.q, p.k, p.v, mask=p.mask, bias=p.bias, scale=p.scale, q_offset=p.q_offset).weights()


def gradients(layer, loss):
    layer.zero_grad()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in layer.named_parameters()}


@pytest.mark.parametrize("training", [True, False])
def test_01_a_fully_padded_sample_harms_nobody(randomise, training):
    layer = randomise(Seen(12, heads=4, kv_heads=2)).train(training)
    x = torch.randn(2, 5, 12)
    keep = torch.tensor([[True] * 5, [False] * 5])
    out = layer(x, mask=padding(keep))
    assert out.isfinite().all()
    assert not layer.gave[1].any()
    assert torch.equal(out[1], layer.out_proj.bias.expand(5, 12))
    assert not layer.weights()[1].any()
    torch.testing.assert_close(layer.weights()[0].sum(-1), torch.ones(4, 5))
    got = gradients(layer, out[0].sum())
    want = gradients(layer, layer(x[:1])[0].sum())
    for name, gradient in got.items():
        assert gradient.isfinite().all(), name
        torch.testing.assert_close(gradient, want[name], rtol=1e-5, atol=1e-5, msg=name)


def test_01_gradients_of_the_padded_sample_itself_are_zero(randomise):
    layer = randomise(MultiHeadAttention(12, heads=4))
    x = torch.randn(2, 5, 12, requires_grad=True)
    layer(x, mask=padding(torch.tensor([[True] * 5, [False] * 5])))[1].sum().backward()
    assert not x.grad.any()
    assert not layer.q_proj.weight.grad.any()


def test_05_true_means_attend():
    layer = MultiHeadAttention(6, heads=1)
    with torch.no_grad():
        layer.v_proj.weight.copy_(torch.eye(6))
        layer.out_proj.weight.copy_(torch.eye(6))
    x = torch.eye(6)[None]
    for mask in (torch.eye(6, dtype=torch.bool), distance(0)):
        torch.testing.assert_close(layer(x, mask=mask), x)
    with pytest.raises(TypeError, match="key_padding_mask"):
        layer(x, key_padding_mask=torch.zeros(1, 6, dtype=torch.bool))


def test_06_training_evaluation_and_no_grad_agree_at_every_position(randomise):
    layer = randomise(MultiHeadAttention(12, heads=4, kv_heads=2))
    x = torch.randn(3, 6, 12)
    mask = padding(torch.arange(6) < torch.tensor([[6], [2], [0]]))
    trained = layer.train()(x, mask=mask)
    with torch.no_grad():
        ungraded = layer(x, mask=mask)
        evaluated_ungraded = layer.eval()(x, mask=mask)
    assert trained.shape == (3, 6, 12)
    for other in (ungraded, evaluated_ungraded, layer(x, mask=mask)):
        torch.testing.assert_close(other, trained, rtol=1e-6, atol=1e-6)


# The compiler looks at `.grad` of every tensor it meets, its own intermediate results among them.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_06_compiled_and_plain_agree(randomise, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # the compiler would trace the checks of types
    layer = randomise(MultiHeadAttention(12, heads=4, kv_heads=2))
    compiled = torch.compile(layer, backend="eager", fullgraph=True, dynamic=True)
    x = torch.randn(2, 6, 12)
    for mask in (None, causal(), causal() & padding(torch.arange(6) < torch.tensor([[6], [0]]))):
        torch.testing.assert_close(compiled(x, mask=mask), layer(x, mask=mask), rtol=1e-6, atol=1e-6)
    assert torch._dynamo.explain(layer)(x, mask=causal()).graph_count == 1


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_06_who_looks_at_a_compiled_module_sees_the_problem(randomise, monkeypatch):
    """Also one that was compiled before; the graph then ends where the problem is looked at."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    layer, asked = randomise(MultiHeadAttention(12, heads=4, kv_heads=2)), []
    compiled, x = torch.compile(layer, backend="eager"), torch.randn(2, 6, 12)
    want = compiled(x, mask=causal())

    def attend(self, problem):
        asked.append(problem)
        return type(self).attend(self, problem)

    vars(layer)["attend"] = types.MethodType(attend, layer)
    torch.testing.assert_close(compiled(x, mask=causal()), want, rtol=1e-6, atol=1e-6)
    assert [problem.mask for problem in asked] == [causal()]
    graphs = torch._dynamo.explain(layer)(x, mask=causal()).graphs
    assert ["linear" in graph.code for graph in graphs] == [True]
    assert not any("multihead" in graph.code for graph in graphs)
    del vars(layer)["attend"], asked[:]
    assert torch.equal(compiled(x, mask=causal()), want)
    assert not asked
    seen = randomise(Seen(12, heads=4))
    torch.testing.assert_close(torch.compile(seen, backend="eager")(x), seen(x), rtol=1e-6, atol=1e-6)


def test_06_an_exported_module_is_one_graph_for_any_length(randomise, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    layer = randomise(MultiHeadAttention(12, heads=4, kv_heads=2)).eval()

    class Causal(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x, mask=causal())

    shapes = ({1: torch.export.Dim("length", min=2, max=30)},)
    program = torch.export.export(Causal(), (torch.randn(2, 6, 12),), dynamic_shapes=shapes)
    assert sum("multihead.attention" in str(node.target) for node in program.graph.nodes) == 1
    for length in (6, 3, 17):
        x = torch.randn(2, length, 12)
        with torch.no_grad():
            assert torch.equal(program.module()(x), layer(x, mask=causal()))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("batch", [2, 4])  # 4 sequences and 4 heads: nobody could guess what the 4 of (4, 5, 5) is
def test_07_masks_of_three_dimensions_are_refused_with_the_fix(randomise, training, batch):
    layer = randomise(MultiHeadAttention(12, heads=4)).train(training)
    x = torch.randn(batch, 5, 12)
    table = torch.rand(batch, 1, 5, 5) < 0.7
    want = layer(x, mask=table)
    assert torch.equal(layer(x, mask=table.expand(batch, 4, 5, 5)), want)
    same = table[0, 0]
    torch.testing.assert_close(layer(x, mask=same), layer(x, mask=same[None, None].expand(batch, 4, 5, 5)))
    with pytest.raises(MultiheadError) as caught:
        layer(x, mask=table[:, 0])
    assert f"({batch}, 5, 5)" in caught.value.arrived
    assert "[:, None]" in caught.value.remedy


def test_18_weights_are_those_of_each_head(randomise):
    layer = randomise(Seen(12, heads=4, kv_heads=2))
    layer(torch.randn(2, 6, 12), mask=causal())
    weights = layer.weights()
    assert weights.shape == (2, 4, 6, 6)
    values = layer.asked.v.repeat_interleave(2, dim=1)
    torch.testing.assert_close(weights @ values, layer.gave, rtol=1e-5, atol=1e-6)


def test_23_head_dim_is_free_of_embed_dim(randomise):
    layer = randomise(MultiHeadAttention(640, heads=4, head_dim=256))
    assert layer(torch.randn(1, 3, 640)).shape == (1, 3, 640)
    with pytest.raises(MultiheadError) as caught:
        MultiHeadAttention(10, heads=3)
    assert "embed_dim=10, heads=3" in caught.value.arrived
    assert "heads=1, 2, 5 or 10" in caught.value.remedy
    assert "head_dim=" in caught.value.remedy
    assert MultiHeadAttention(10, heads=3, head_dim=4)(torch.randn(1, 2, 10)).shape == (1, 2, 10)


def test_27_inputs_are_batch_first():
    layer = MultiHeadAttention(8, heads=2)
    with pytest.raises(MultiheadError) as caught:
        layer(torch.randn(2, 5, 8), torch.randn(5, 2, 8))
    assert "query (2, 5, 8), key (5, 2, 8)" in caught.value.arrived
    assert "transpose(0, 1)" in caught.value.remedy


def test_27_batch_rows_do_not_meet(randomise):
    layer = randomise(MultiHeadAttention(8, heads=2))
    x = torch.randn(3, 5, 8)
    changed = x.clone()
    changed[1] = torch.randn(5, 8)
    assert torch.equal(layer(changed)[[0, 2]], layer(x)[[0, 2]])


def test_28_dropout_is_off_in_evaluation(randomise):
    layer = randomise(MultiHeadAttention(12, heads=4, dropout=0.5)).eval()
    plain = MultiHeadAttention(12, heads=4).eval()
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(2, 6, 12)
    assert torch.equal(layer(x), layer(x))
    assert torch.equal(layer(x), plain(x))


def test_28_dropout_is_on_in_training_and_keeps_the_mean(randomise):
    layer = randomise(MultiHeadAttention(12, heads=4, dropout=0.5)).train()
    x = torch.randn(1, 6, 12)
    assert not torch.equal(layer(x), layer(x))
    torch.manual_seed(5)
    first = layer(x)
    torch.manual_seed(5)
    assert torch.equal(layer(x), first)
    with torch.no_grad():
        many = torch.cat([layer(x.expand(500, -1, -1)) for _ in range(4)])
        error = (many.mean(0) - layer.eval()(x)[0]).abs()
    assert (error <= 6 * many.std(0) / len(many) ** 0.5).all()
