"""The Perceiver resampler and gated cross-attention: against their formulas and against transformers."""

import pytest
import torch

from multihead.error import MultiheadError
from multihead.layer import GatedCrossAttention, HeadGroup, PerceiverResampler
from multihead.pattern import padding

KINDS = {
    "relu": lambda x: x.clamp(min=0),
    "squared_relu": lambda x: x.clamp(min=0) ** 2,
    "gelu": lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5)),
}


def norm(layer, x):
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / ((x - mean) ** 2).mean(-1, keepdim=True).add(1e-5).sqrt() * layer.weight + layer.bias


def attend(layer, asking, seen, allowed):
    """Softmax attention, one sequence and head at a time; 0 where nothing is seen."""
    size = layer.q_proj.out_features // layer.heads
    outs = []
    for b in range(len(asking)):
        heads = []
        for h in range(layer.heads):
            part = slice(h * size, (h + 1) * size)
            q, k, v = (
                x[b] @ p.weight[part].T for x, p in ((asking, layer.q_proj), (seen, layer.k_proj), (seen, layer.v_proj))
            )
            scores = (q @ k.T * size**-0.5).masked_fill(~allowed[b], -torch.inf)
            heads.append(scores.softmax(-1).nan_to_num(0.0) @ v)
        outs.append(torch.cat(heads, -1) @ layer.out_proj.weight.T)
    return torch.stack(outs)


def feed(layer, x):
    return KINDS[layer.activation](norm(layer.norm, x) @ layer.up.weight.T) @ layer.down.weight.T


def resample(module, x, keep):
    latents = module.latents.expand(len(x), -1, -1)
    allowed = torch.cat([keep, torch.ones(latents.shape[:2]).bool()], 1)[:, None].expand(-1, latents.shape[1], -1)
    for layer in module.layers:
        asking = norm(layer.latent_norm, latents)
        seen = torch.cat([norm(layer.context_norm, x), asking], 1)
        latents = latents + attend(layer.attention, asking, seen, allowed)
        latents = latents + feed(layer.ffn, latents)
    return norm(module.norm, latents)


@pytest.mark.parametrize("activation", KINDS)
def test_it_is_its_formula(activation, randomise):
    module = randomise(PerceiverResampler(24, HeadGroup(4, 5), latents=6, depth=2, activation=activation)).double()
    x, keep = torch.randn(2, 17, 24, dtype=torch.float64), torch.rand(2, 17) < 0.6
    torch.testing.assert_close(module(x), resample(module, x, torch.ones(2, 17).bool()), rtol=1e-10, atol=1e-10)
    want = resample(module, x, keep)
    for mask in (padding(keep), keep[:, None, None]):
        torch.testing.assert_close(module(x, mask=mask), want, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(module(x, mask=keep[:1]), resample(module, x, keep[:1].expand(2, -1)))


def test_what_is_hidden_has_no_part_in_it(randomise):
    module = randomise(PerceiverResampler(24, 4, latents=6, depth=2))
    x, keep = torch.randn(2, 17, 24), torch.rand(2, 17) < 0.6
    keep[1] = False
    spoilt = torch.where(keep[..., None], x, 1e12)
    assert torch.equal(module(x, mask=padding(keep)), module(spoilt, mask=padding(keep)))
    assert torch.allclose(module(x, mask=padding(keep))[1:], module(x[1:, :0]), atol=1e-5)


NAMES = (
    ("0.context_layer_norm", "context_norm"),
    ("0.latents_layer_norm", "latent_norm"),
    ("0.output_proj", "attention.out_proj"),
    ("0.", "attention."),
    ("1.ln", "ffn.norm"),
    ("1.fc", "ffn.up"),
    ("1.c_proj", "ffn.down"),
)


def ours(name):
    """The name that a weight of Idefics has here."""
    if not name.startswith("blocks."):
        return name.replace("layer_norm", "norm")
    _, place, rest = name.split(".", 2)
    old, new = next(pair for pair in NAMES if rest.startswith(pair[0]))
    return f"layers.{place}.{new}{rest.removeprefix(old)}"


def test_it_is_that_of_idefics(randomise):
    perceiver = pytest.importorskip("transformers.models.idefics.perceiver")
    config = pytest.importorskip("transformers").IdeficsConfig()
    config.vision_config.embed_dim = 24
    config.perceiver_config.qk_layer_norms_perceiver = False
    theirs = randomise(perceiver.IdeficsPerceiverResampler(config, 24, 3, 4, 7, 5)).double()
    module = PerceiverResampler(24, HeadGroup(4, 7), latents=5, depth=3, activation="relu").double()
    module.load_state_dict({ours(name): weight for name, weight in theirs.state_dict().items()})
    x = torch.randn(2, 19, 24, dtype=torch.float64)
    torch.testing.assert_close(module(x), theirs(x), rtol=1e-10, atol=1e-10)


def test_gated_cross_attention_starts_as_nothing(randomise):
    layer, x, media = GatedCrossAttention(24, 4, media_dim=10), torch.randn(2, 7, 24), torch.randn(2, 9, 10)
    assert torch.equal(layer(x, media), x)
    layer(x, media).square().sum().backward()
    assert layer.attention_gate.grad.abs() > 0
    assert layer.ffn_gate.grad.abs() > 0
    layer = randomise(layer).double()
    x, media = x.double(), media.double()
    mask = torch.rand(2, 1, 7, 9) < 0.7
    mask[:, :, 0] = False
    want = x + torch.tanh(layer.attention_gate) * attend(layer.attention, norm(layer.norm, x), media, mask[:, 0])
    want = want + torch.tanh(layer.ffn_gate) * feed(layer.ffn, want)
    torch.testing.assert_close(layer(x, media, mask=mask), want, rtol=1e-10, atol=1e-10)
    alone = x[:, :1] + torch.tanh(layer.ffn_gate) * feed(layer.ffn, x[:, :1])
    torch.testing.assert_close(layer(x, media, mask=mask)[:, :1], alone, rtol=1e-10, atol=1e-10)


REFUSED = {
    "no latents": (lambda: PerceiverResampler(24, 4, latents=0), "latents=0"),
    "no layers": (lambda: PerceiverResampler(24, 4, depth=0), "depth=0"),
    "heads that do not divide": (lambda: PerceiverResampler(24, 5), "heads that divide embed_dim"),
    "another activation": (lambda: PerceiverResampler(24, 4, activation="tanh"), "'squared_relu'"),
    "another width": (lambda: PerceiverResampler(24, 4)(torch.randn(2, 3, 20)), "batch, length, 24"),
    "a mask of scores": (
        lambda: PerceiverResampler(24, 4)(torch.randn(2, 3, 24), mask=torch.zeros(2, 3)),
        "a boolean tensor",
    ),
    "a mask of another length": (
        lambda: PerceiverResampler(24, 4)(torch.randn(2, 3, 24), mask=torch.ones(1, 4).bool()),
        "over the 3 vectors",
    ),
    "a mask in words": (lambda: PerceiverResampler(24, 4)(torch.randn(2, 3, 24), mask="padding"), "parse_pattern"),
    "no media": (lambda: GatedCrossAttention(24, 4)(torch.randn(2, 3, 24), None), "media"),
    "media of another width": (
        lambda: GatedCrossAttention(24, 4)(torch.randn(2, 3, 24), torch.randn(2, 3, 20)),
        "batch, length, 24",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_does_not_take_is_refused(case, unhooked):
    make, told = REFUSED[case]
    with pytest.raises(MultiheadError, match=told):
        make()


def test_another_dtype_is_refused_in_words():
    x, wide = torch.randn(1, 3, 8), torch.randn(1, 3, 8, dtype=torch.float64)
    with pytest.raises(MultiheadError, match=r"context of torch\.float64"):
        PerceiverResampler(8, 2, latents=2, depth=1)(wide)
    with pytest.raises(MultiheadError, match=r"media of torch\.float64"):
        GatedCrossAttention(8, 2)(x, wide)
