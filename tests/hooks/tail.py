"""Families that are run once: what they read, what they return, and how they come out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hooks.families import LENGTH, PICTURE, TARGET, VOCAB, ids, randomise
from hooks.oracle import output_of, real_rows, weights_of
from multihead.error import MultiheadError
from multihead.hooks import Call, watching

POSITIONS = {"max_position_embeddings": 64}
SPEECH = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "conv_dim": (8, 8),
    "conv_stride": (4, 2),
    "conv_kernel": (8, 3),
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "num_feat_extract_layers": 2,
}
_RETURNED = (
    "attentions",
    "encoder_attentions",
    "decoder_attentions",
    "cross_attentions",
    "vision_attentions",
    "language_attentions",
    "text_model_output",
    "vision_model_output",
)


@dataclass(frozen=True)
class Tail:
    """A kind of model. `gives`: what it returns as attentions: its weights, or their mean over heads, or the scores."""

    name: str
    model: Callable[..., nn.Module]
    config: Callable[[], Any]
    reads: str = "tokens"
    kernel: str = ""
    gives: str = "weights"
    size: int = 16

    def build(self, kernel: str = "") -> nn.Module:
        config = self.config()
        if config is None:
            model = self.model()
            randomise(model)
            return model.eval()
        if kernel or self.kernel:
            config._attn_implementation = kernel or self.kernel
        model = self.model(config)
        randomise(model)
        return model.eval()

    def inputs(self) -> dict[str, torch.Tensor]:
        tokens = {"input_ids": ids(2, LENGTH)}
        pictures = {"pixel_values": torch.randn(2, 3, self.size, self.size)}
        waves = {"input_values": torch.randn(2, 200)}
        pictured = torch.full((2, (PICTURE["image_size"] // PICTURE["patch_size"]) ** 2), VOCAB)
        return {
            "tokens": lambda: tokens,
            "pictures": lambda: pictures,
            "films": lambda: {"pixel_values": torch.randn(2, 2, 3, self.size, self.size)},
            "waves": lambda: waves,
            "waves to words": lambda: waves | {"decoder_input_ids": ids(2, TARGET)},
            "pairs": lambda: tokens | {"decoder_input_ids": ids(2, TARGET)},
            "words and pictures": lambda: tokens | pictures,
            "pictures in words": lambda: pictures | {"input_ids": torch.cat([pictured, tokens["input_ids"]], 1)},
            "sound to words": lambda: {"input_features": torch.randn(2, 8, 20), "decoder_input_ids": ids(2, TARGET)},
            "states": lambda: {"x": torch.randn(2, LENGTH, 16)},
            "torch": lambda: {"src": torch.randn(2, LENGTH, 16)},
            "two": lambda: {"src": torch.randn(2, LENGTH, 16), "tgt": torch.randn(2, TARGET, 16)},
            "three": lambda: dict.fromkeys(("query", "key", "value"), torch.randn(2, LENGTH, 16)),
            "few tokens": lambda: {"input_ids": ids(2, LENGTH) % 30},
            "characters": lambda: {"input_ids": ids(2, 16)},
            "words and boxes": lambda: (
                tokens | {"visual_feats": torch.randn(2, 4, 16), "visual_pos": torch.rand(2, 4, 4)}
            ),
        }[self.reads]()


@dataclass(frozen=True)
class Outcome:
    """How a family came out. `matched`: how many of the matrices it returned are those that were told."""

    how: str
    reason: str
    same: bool
    returned: int
    matched: int
    calls: tuple[Call, ...]
    model: nn.Module


def examine(tail: Tail) -> Outcome:
    model, inputs = tail.build(), tail.inputs()
    calls, seed, unseen, failed = [], int(torch.randint(2**31, ())), {}, None
    with torch.no_grad():
        plain = _run(model, inputs, seed)
        try:
            with watching(model, calls.append) as watched:
                got = _run(model, inputs, seed)
        except MultiheadError as error:
            if "no attention call passed through" not in error.arrived:
                raise
            got, failed = _run(model, inputs, seed), error
        unseen = dict(watched.unseen)
        twin = model
        if getattr(getattr(model, "config", None), "_attn_implementation", "eager") != "eager":
            twin = tail.build("eager")
            twin.load_state_dict(model.state_dict())
        asked = {"output_attentions": True} if hasattr(model, "config") else {}
        returned = _returned(_run(twin, inputs | asked, seed)) if failed is None else []
    weights = [_as_given(tail.gives, call) for call in calls]
    matched = sum(any(_is_equal(tail.gives, each, other) for other in weights) for each in returned)
    how = "fallback" if calls and all("fallback" in call.kernel for call in calls) else "seen"
    how = "not seen" if failed is not None else "partly" if unseen else how
    reasons = sorted(set(unseen.values())) or ["it calls no function of torch that tells"] * (failed is not None)
    return Outcome(how, "; ".join(reasons), _alike(plain, got), len(returned), matched, tuple(calls), model)


def is_sound(call: Call) -> bool:
    """Whether a call gives the output the model used."""
    rows = real_rows(call.problem).transpose(1, 2)[..., None]
    out = torch.where(rows, output_of(call.problem), 0.0)
    return torch.allclose(out, torch.where(rows, call.output.double(), 0.0), atol=1e-5, rtol=0)


def _run(model: nn.Module, inputs: dict[str, Any], seed: int) -> Any:
    # Some models draw patches or landmarks at random.
    torch.manual_seed(seed)
    return model(**inputs)


def _first(outputs: Any) -> torch.Tensor:
    return outputs if isinstance(outputs, torch.Tensor) else outputs[0]


def _alike(one: Any, other: Any) -> bool:
    return torch.equal(_first(one), _first(other))


def _returned(outputs: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for name in _RETURNED if hasattr(outputs, "get") else ():
        given = outputs.get(name)
        given = getattr(given, "attentions", given)
        if isinstance(given, tuple):
            found += [each for each in given if isinstance(each, torch.Tensor)]
    return found


def _as_given(gives: str, call: Call) -> torch.Tensor:
    weights = torch.nan_to_num(weights_of(call.problem))
    return weights.mean(1, keepdim=True).expand_as(weights) if gives == "mean" else weights


def _is_equal(gives: str, returned: torch.Tensor, weights: torch.Tensor) -> bool:
    if returned.shape != weights.shape:
        return False
    ways = {"weights": [returned], "mean": [returned], "scores": [returned.softmax(-1)]}
    given = ways.get(gives, [returned, returned.softmax(-1)])
    return any(torch.allclose(each.double(), weights, atol=1e-5, rtol=0) for each in given)
