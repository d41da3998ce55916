"""Models as ONNX files: one Attention node a call, the same numbers under onnxruntime, at other lengths too."""

import jaxtyping
import pytest
import torch
from torch import nn

from multihead.attend import Sigmoid
from multihead.error import MultiheadError
from multihead.interop import export_onnx
from multihead.layer import HeadGroup, MultiHeadAttention, QKNorm, Scoring, build_attention
from multihead.pattern import causal, document, padding, prefix, sliding_window
from multihead.position import ALiBi, RelativeTable, Rotary, alibi_slopes

# What torch's exporter says of itself.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:# 'dynamic_axes'"),
]


class Model(nn.Module):
    """An attention layer with its mask."""

    def __init__(self, heads, mask=None):
        super().__init__()
        self.attention, self.mask = MultiHeadAttention(24, heads), mask
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape) * 0.4)

    def forward(self, x, keep=None):
        mask = self.mask
        if keep is not None:
            mask = padding(keep) if mask is None else mask & padding(keep)
        return self.attention(x, mask=mask)


WINDOW = HeadGroup(2, 6, mask=sliding_window(3))
CASES = {
    "causal, grouped, rotary, norms": lambda: Model(
        HeadGroup(4, 6, kv_heads=2, position=Rotary(100.0), scoring=Scoring(norm=QKNorm())), causal()
    ),
    "two groups, window, padding": lambda: Model([WINDOW, HeadGroup(2, 4, kv_heads=1, v_head_dim=6)], causal()),
    "sinks, softcap, scale": lambda: Model(
        HeadGroup(4, 6, scoring=Scoring(sinks=True, softcap=2.0, scale=0.7)), causal()
    ),
}
MORE = {
    "table, padding": lambda: Model(HeadGroup(4, 6, position=RelativeTable(torch.randn(8, 4)))),
    "ALiBi": lambda: Model(HeadGroup(4, 6, position=ALiBi(alibi_slopes(4))), causal()),
    "prefix or window": lambda: Model(4, prefix(2) | sliding_window(4)),
    "documents": lambda: Model(4, causal() & ~document(torch.tensor([0] * 4 + [1] * 20))),
    "everything": lambda: Model(4),
}


@pytest.mark.parametrize("name", [*CASES, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)])
def test_a_file_gives_what_the_model_gives_at_any_length(name, tmp_path, monkeypatch):
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    runtime = pytest.importorskip("onnxruntime")
    model, padded = (CASES | MORE)[name]().eval(), "padding" in name
    inputs = [torch.randn(2, 7, 24)] + [torch.rand(2, 7) < 0.6] * padded
    sizes = {"x": {1: "length"}} | ({"keep": {1: "length"}} if padded else {})
    program = export_onnx(model, inputs, tmp_path / "model.onnx", dynamic=sizes)
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]
    nodes = [node.op_type for node in program.model.graph]
    assert nodes.count("Attention") == len(model.attention.groups)
    assert "Softmax" not in nodes
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    for length in (7, 12):
        x, keep = torch.randn(2, length, 24), torch.rand(2, length) < 0.5
        keep[0] = False  # nothing at all to attend to
        given = {"x": x, "keep": keep} if padded else {"x": x}
        (got,) = session.run(None, {name: tensor.numpy() for name, tensor in given.items()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(got), model(**given), rtol=1e-5, atol=2e-5)


class Kind(nn.Module):
    """A kind of attention by name, causal, at random weights and biases."""

    def __init__(self, name):
        super().__init__()
        self.attention = build_attention(name, 24, heads=4)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.add_(torch.randn(parameter.shape) * 0.2)

    def forward(self, x):
        return self.attention(x, mask=causal())


@pytest.mark.parametrize(
    ("name", "lengths"),
    [
        ("switch_head", (7, 70)),
        pytest.param("gated_delta", (70,), marks=pytest.mark.slow),
        pytest.param("mixture_of_heads", (7, 70), marks=pytest.mark.slow),
        pytest.param("mixture_of_attention", (7, 70), marks=pytest.mark.slow),
        pytest.param("talking_heads", (7,), marks=pytest.mark.slow),
        pytest.param("retention", (70,), marks=pytest.mark.slow),
        pytest.param("gated_linear", (70,), marks=pytest.mark.slow),
    ],
)
def test_kinds_without_an_attention_node_give_what_they_give(name, lengths, tmp_path, monkeypatch):
    """Experts of a token by a product with all of them, triangular systems of a chunk by inverses of halves."""
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    runtime = pytest.importorskip("onnxruntime")
    model, path = Kind(name).eval(), tmp_path / "model.onnx"
    dynamic = {"x": {1: "length"}} if len(lengths) > 1 else None
    export_onnx(model, [torch.randn(2, lengths[0], 24)], path, dynamic=dynamic)
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for length in lengths:
        x = torch.randn(2, length, 24)
        with torch.no_grad():
            want = model(x)
        (got,) = session.run(None, {"x": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(got), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["top_blocks", pytest.param("lsh", marks=pytest.mark.slow)])
def test_keys_chosen_by_content_are_refused_in_words(name, tmp_path, monkeypatch):
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    with pytest.raises(MultiheadError, match=r"(?s)sizes depend on no numbers.*chooses keys.*fix: export a model"):
        export_onnx(Kind(name).eval(), [torch.randn(2, 70, 24)], tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("model", "options", "told"),
    [
        (lambda: Model(4), {}, "call model.eval"),
        (lambda: Model(4).eval(), {"opset": 18}, "23 or later"),
    ],
)
def test_models_that_cannot_be_written_are_refused(model, options, told, tmp_path):
    with pytest.raises(MultiheadError, match=told):
        export_onnx(model(), [torch.randn(2, 7, 24)], tmp_path / "model.onnx", **options)
    assert not list(tmp_path.iterdir())


def test_a_call_that_is_no_node_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    model = Model(HeadGroup(4, 6, scoring=Scoring(normaliser=Sigmoid()))).eval()
    with pytest.raises(Exception, match=r"(?s)one node of an ONNX file.*sigmoid as normaliser"):
        export_onnx(model, [torch.randn(2, 7, 24)], tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", ["", ".", "no/such/folder/model.onnx", None, 3])
def test_a_path_that_takes_no_file_is_refused_before_the_work(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    monkeypatch.setattr(torch.export, "export", lambda *_, **__: pytest.fail("the graph was made"))
    with pytest.raises(MultiheadError, match="a file in a folder that there is, to write the model to"):
        export_onnx(MultiHeadAttention(16, 4).eval(), (torch.randn(1, 3, 16),), path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "told"), [({"model": "a"}, "model as a torch"), ({"opset": "23"}, "opset as a whole")]
)
def test_what_is_no_model_and_no_opset_is_refused(given, told, tmp_path, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    options = {"model": MultiHeadAttention(16, 4).eval(), "inputs": (torch.randn(1, 3, 16),), "path": tmp_path / "a"}
    with pytest.raises(MultiheadError, match=told):
        export_onnx(**options | given)


@pytest.mark.parametrize("dynamic", [{"quer": {1: "length"}}, ["query"], "query"])
def test_open_sizes_of_inputs_that_there_are_not_are_refused(dynamic, tmp_path, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(MultiheadError, match=r"open sizes of the model's inputs query"):
        export_onnx(MultiHeadAttention(16, 4).eval(), (torch.randn(1, 3, 16),), tmp_path / "a", dynamic=dynamic)
    assert list(tmp_path.iterdir()) == []


class Two(torch.nn.Module):
    """Two inputs, of which one may be left out."""

    def forward(self, x, keep=None):
        return x if keep is None else x * keep


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"inputs": []}, r"\(x\)\n  got: 0 inputs"),
        ({"inputs": None}, "inputs=NoneType 'None'"),
        ({"inputs": torch.ones(2, 3)}, "inputs=Tensor"),
        ({"inputs": "x"}, "inputs=str 'x'"),
        ({"inputs": [torch.ones(2)] * 3}, "got: 3 inputs"),
        ({"names": ["a", "b"]}, r"names=\['a', 'b'\]"),
        (
            {"names": ["a", "a"], "inputs": [torch.ones(2)] * 2},
            r"names: 2 different words.*\n  got: names=\['a', 'a'\]",
        ),
        ({"names": [""]}, r"names=\[''\]"),
        ({"names": [3]}, r"names=\[3\]"),
        ({"names": "x"}, "names='x'"),
        ({"names": []}, r"names=\[\]"),
        ({"opset": 99}, "23 or later, up to 25\n  got: opset=99"),
        ({"opset": -1}, "opset=-1"),
        ({"opset": True}, "opset=True"),
        ({"dynamic": {"x": {2: "n"}}}, r"of shape \(2, 3\): a dimension.*\n  got: x: \{2: 'n'\}"),
        ({"dynamic": {"x": {-1: "n"}}}, r"got: x: \{-1: 'n'\}"),
        ({"dynamic": {"x": {"1": "n"}}}, r"got: x: \{'1': 'n'\}"),
        ({"dynamic": {"x": {1: 5}}}, r"got: x: \{1: 5\}"),
        ({"dynamic": {"x": {1: "a b"}}}, r"got: x: \{1: 'a b'\}"),
        ({"dynamic": {"x": 1}}, "got: x: 1"),
        ({"dynamic": {"x": None}}, "got: x: None"),
        ({"inputs": [3], "dynamic": {"x": {0: "n"}}}, "open sizes of x: a dimension"),
    ],
)
def test_inputs_names_and_sizes_that_are_none_are_refused_before_the_work(options, told, tmp_path, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    monkeypatch.setattr(torch.export, "export", lambda *_, **__: pytest.fail("the graph was made"))
    with pytest.raises(MultiheadError, match=told):
        export_onnx(Two().eval(), path=tmp_path / "a.onnx", **{"inputs": [torch.ones(2, 3)]} | options)
    assert list(tmp_path.iterdir()) == []
