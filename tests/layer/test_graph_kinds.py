"""What of each kind goes into a graph: exported for one length or any, on meta; or a refusal in words."""

import pytest
import torch
from torch import nn

from multihead.error import MultiheadError
from multihead.layer.family_table import ROWS
from multihead.pattern import causal

CHOOSING = ("lsh", "top_blocks", "native_sparse", "indexed")
"""Whose keys are chosen by what is in them."""
SCANS = ("linear", "performer", "retention", "gated_linear", "gated_delta")
"""In chunks that follow each other."""
NAMES = [row.name for row in ROWS]
HERE = ("linear", "top_blocks", "switch_head")
"""In the default suite: one of each kind of answer."""
META = (*HERE, "lsh", "native_sparse", "indexed", "mixture_of_attention", "gated_delta")
KINDS = [name if name in HERE else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]


class Model(nn.Module):
    """A kind of attention, causal, at random weights and biases."""

    def __init__(self, name):
        super().__init__()
        self.attention = next(row for row in ROWS if row.name == name).build(32, 4)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.add_(torch.randn(parameter.shape) * 0.1)

    def forward(self, x):
        return self.attention(x, mask=causal())


@pytest.fixture(autouse=True)
def _unhooked(monkeypatch):
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)


@pytest.mark.parametrize(
    "name", [name if name in META else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_on_meta_a_call_tells_its_shape(name):
    found = Model(name).eval().to("meta")(torch.empty(2, 12, 32, device="meta"))
    assert found.is_meta
    assert found.shape == (2, 12, 32)


@pytest.mark.parametrize("name", KINDS)
def test_a_graph_of_one_length_gives_what_the_layer_gives(name):
    model, x = Model(name).eval(), torch.randn(2, 12, 32)
    if name in CHOOSING:
        with pytest.raises(MultiheadError, match=r"(?s)sizes depend on no numbers.*chooses keys.*fix: export a model"):
            torch.export.export(model, (x,))
        return
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_a_graph_of_any_length_gives_what_the_layer_gives(name):
    model, sizes = Model(name).eval(), {"x": {1: torch.export.Dim("length")}}
    if name in CHOOSING + SCANS:
        told = "chooses keys" if name in CHOOSING else r"(?s)any length.*a scan.*fix: export it for one length"
        with pytest.raises(MultiheadError, match=told):
            torch.export.export(model, (torch.randn(2, 12, 32),), dynamic_shapes=sizes)
        return
    made = torch.export.export(model, (torch.randn(2, 12, 32),), dynamic_shapes=sizes).module()
    for length in (5, 64, 150):
        x = torch.randn(2, length, 32)
        torch.testing.assert_close(made(x), model(x), rtol=1e-5, atol=1e-5)
