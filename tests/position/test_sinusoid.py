"""Sinusoids against transformers' tables and the paper's formula."""

import math

import pytest
import torch

from multihead.error import MultiheadError
from multihead.position import sinusoid

LAYOUTS = ["interleaved", "split", "split_log", "cos_first"]


def test_the_paper_by_a_loop():
    table = sinusoid(7, 6, dtype=torch.float64)
    for position in range(7):
        for k in range(3):
            angle = position / 10000 ** (2 * k / 6)
            assert table[position, 2 * k].item() == pytest.approx(math.sin(angle), abs=1e-14)
            assert table[position, 2 * k + 1].item() == pytest.approx(math.cos(angle), abs=1e-14)


@pytest.mark.parametrize("dim", [16, 17])
def test_marian_and_pegasus(dim):
    for name, kind in (("marian", "MarianSinusoidal"), ("pegasus", "PegasusSinusoidal")):
        modeling = pytest.importorskip(f"transformers.models.{name}.modeling_{name}", reason="it is the oracle")
        table = getattr(modeling, f"{kind}PositionalEmbedding")(300, dim).create_weight()
        assert torch.allclose(sinusoid(300, dim, layout="split"), table, rtol=0, atol=1e-7)


def test_xlm():
    modeling = pytest.importorskip("transformers.models.xlm.modeling_xlm", reason="it is the oracle")
    table = modeling.create_sinusoidal_embeddings(300, 16, torch.empty(300, 16))
    assert torch.allclose(sinusoid(300, 16), table, rtol=0, atol=1e-7)


# The rest is computed in float32 there: off by the last digit of the angle, which is the position.
def test_speecht5():
    modeling = pytest.importorskip("transformers.models.speecht5.modeling_speecht5", reason="it is the oracle")
    table = modeling.SpeechT5ScaledPositionalEncoding(0.0, 16, max_len=300).pe[0]
    assert torch.allclose(sinusoid(300, 16), table, rtol=0, atol=300 * 2e-7)


def test_whisper():
    modeling = pytest.importorskip("transformers.models.whisper.modeling_whisper", reason="it is the oracle")
    table = modeling.sinusoids(1500, 16)
    assert torch.allclose(sinusoid(1500, 16, layout="split_log"), table, rtol=0, atol=1500 * 2e-7)


@pytest.mark.parametrize("dim", [16, 17])
def test_musicgen(dim):
    modeling = pytest.importorskip("transformers.models.musicgen.modeling_musicgen", reason="it is the oracle")
    table = modeling.MusicgenSinusoidalPositionalEmbedding.get_embedding(300, dim)
    assert torch.allclose(sinusoid(300, dim, layout="cos_first"), table, rtol=0, atol=300 * 2e-7)


@pytest.mark.parametrize("dim", [16, 17])
def test_fairseq_counts_from_behind_the_padding(dim):
    modeling = pytest.importorskip("transformers.models.speech_to_text.modeling_speech_to_text", reason="the oracle")
    theirs = modeling.Speech2TextSinusoidalPositionalEmbedding(50, dim, padding_idx=1)
    tokens = torch.tensor([[5, 6, 7, 8], [5, 6, 1, 1]])
    real = tokens != 1
    positions = 2 + torch.arange(4)
    ours = torch.where(real[..., None], sinusoid(positions, dim, layout="split_log"), 0.0)
    assert torch.allclose(ours, theirs(tokens), rtol=0, atol=2e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dim", [8, 9])
def test_positions_are_those_of_the_table(layout, dim):
    table = sinusoid(20, dim, layout=layout, base=77.0)
    assert table.shape == (20, dim)
    assert table.dtype == torch.float32
    positions = torch.randint(0, 20, (2, 3))
    assert torch.equal(sinusoid(positions, dim, layout=layout, base=77.0), table[positions])
    assert sinusoid(0, dim, layout=layout).shape == (0, dim)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_other_way_sines_change_sign(layout):
    ahead, behind = (sinusoid(sign * torch.arange(9), 8, layout=layout, dtype=torch.float64) for sign in (1, -1))
    sines = {"interleaved": slice(0, None, 2), "cos_first": slice(4, None)}.get(layout, slice(0, 4))
    assert torch.equal(ahead[:, sines], -behind[:, sines])
    assert torch.allclose(ahead.square().sum(-1), torch.full((9,), 4.0, dtype=torch.float64))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda: sinusoid(4, 8, layout="bert"),
            r"a layout of sinusoids: interleaved, .*\n  got: layout='bert'\n  fix: p",
        ),
        (
            lambda: sinusoid(4, 0),
            r"at least 1 dimensions in the layout 'interleaved'\n  got: dim=0\n  fix: pass dim >= 1",
        ),
        (lambda: sinusoid(4, 3, layout="split_log"), r"at least 4 dimensions in the layout 'split_log'\n  got: dim=3"),
        (lambda: sinusoid(-1, 8), r"a number of positions.*\n  got: -1\n  fix: pass how many"),
        (lambda: sinusoid(torch.ones(3), 8), r"positions as an integer tensor\n  got: torch.float32, shape \(3,\)"),
    ],
)
def test_bad_input(wrong, message, unchecked):
    with pytest.raises(MultiheadError, match=message):
        wrong()
