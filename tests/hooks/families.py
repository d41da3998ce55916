"""Tiny random models of many families; every parameter is random, norms and biases too."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from torch import nn

VOCAB, LENGTH, TARGET = 90, 9, 6
ENCODER = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DECODER = ENCODER | {"num_key_value_heads": 2, "head_dim": 8}
PAIR = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
PICTURE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "image_size": 16,
    "patch_size": 4,
}


@dataclass(frozen=True)
class Family:
    """A kind of model.

    `projections`: dotted name, below the attention module's parent, of the layer that gets the head outputs.
    """

    name: str
    model: Callable[..., nn.Module]
    config: Callable[[], Any]
    reads: str = "tokens"
    kernels: tuple[str, ...] = ("sdpa", "eager")
    projection: str = "o_proj"
    layers: tuple[tuple[str, int], ...] = (("", 2),)

    def build(self, kernel: str = "sdpa") -> nn.Module:
        config = self.config()
        config._attn_implementation = kernel
        model = self.model(config)
        randomise(model)
        return model.eval()

    def inputs(self, padding: str = "none") -> dict[str, torch.Tensor]:
        if self.reads == "pictures":
            return {"pixel_values": torch.randn(2, 3, 16, 16)}
        if self.reads == "sound":
            return {"input_features": torch.randn(2, 8, 20), "decoder_input_ids": ids(2, TARGET)}
        given = {"input_ids": ids(2, LENGTH)}
        if padding != "none":
            given["attention_mask"] = keep(padding)
        if self.reads == "pairs":
            given["decoder_input_ids"] = ids(2, TARGET)
        return given

    @property
    def paddings(self) -> tuple[str, ...]:
        return ("none",) if self.reads in ("pictures", "sound") else ("none", "left", "right")


def ids(batch: int, length: int) -> torch.Tensor:
    return torch.randint(5, VOCAB, (batch, length))


def keep(padding: str, length: int = LENGTH) -> torch.Tensor:
    """An attention mask for two rows, the second with three positions of padding."""
    mask = torch.ones(2, length, dtype=torch.long)
    if padding == "left":
        mask[1, :3] = 0
    elif padding == "right":
        mask[1, -3:] = 0
    return mask


@torch.no_grad()
def randomise(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        wide = parameter.ndim > 1
        around_one = not wide and name.endswith("weight")
        parameter.copy_(float(around_one) + torch.randn_like(parameter) * (0.15 if wide else 0.3))


def twin(family: Family, model: nn.Module, kernel: str = "eager") -> nn.Module:
    """A model with the same weights on another kernel."""
    other = family.build(kernel)
    other.load_state_dict(model.state_dict())
    return other


_PAIR_LAYERS = (("encoder", 2), ("decoder", 2), ("cross", 2))
FAMILIES = {
    family.name: family
    for family in (
        Family("bert", hf.BertModel, lambda: hf.BertConfig(**ENCODER), projection="output.dense"),
        Family(
            "gpt2",
            hf.GPT2LMHeadModel,
            lambda: hf.GPT2Config(
                vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2
            ),
            projection="c_proj",
        ),
        Family("llama", hf.LlamaForCausalLM, lambda: hf.LlamaConfig(**DECODER)),
        Family("mistral", hf.MistralForCausalLM, lambda: hf.MistralConfig(**DECODER, sliding_window=4)),
        Family(
            "gemma2",
            hf.Gemma2ForCausalLM,
            lambda: hf.Gemma2Config(**DECODER, sliding_window=4, attn_logit_softcapping=2.0),
            kernels=("eager",),
        ),
        Family(
            "gpt_oss",
            hf.GptOssForCausalLM,
            lambda: hf.GptOssConfig(
                **DECODER,
                sliding_window=4,
                num_local_experts=2,
                num_experts_per_tok=1,
                rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            ),
            kernels=("eager",),
        ),
        Family(
            "t5",
            hf.T5ForConditionalGeneration,
            lambda: hf.T5Config(
                vocab_size=VOCAB,
                d_model=32,
                d_kv=8,
                d_ff=40,
                num_layers=2,
                num_heads=4,
                relative_attention_num_buckets=8,
                relative_attention_max_distance=12,
                decoder_start_token_id=0,
            ),
            reads="pairs",
            projection="o",
            layers=_PAIR_LAYERS,
        ),
        Family(
            "bart",
            hf.BartForConditionalGeneration,
            lambda: hf.BartConfig(**PAIR, max_position_embeddings=64, forced_eos_token_id=None),
            reads="pairs",
            projection="out_proj",
            layers=_PAIR_LAYERS,
        ),
        Family(
            "whisper",
            hf.WhisperForConditionalGeneration,
            lambda: hf.WhisperConfig(
                **PAIR,
                num_mel_bins=8,
                max_source_positions=10,
                max_target_positions=32,
                suppress_tokens=None,
                begin_suppress_tokens=None,
            ),
            reads="sound",
            projection="out_proj",
            layers=_PAIR_LAYERS,
        ),
        Family("vit", hf.ViTModel, lambda: hf.ViTConfig(**PICTURE), reads="pictures", projection="o_proj"),
        Family(
            "albert",
            hf.AlbertForMaskedLM,
            lambda: hf.AlbertConfig(**(ENCODER | {"num_hidden_layers": 3}), embedding_size=16),
            projection="dense",
            layers=(("", 3),),
        ),
    )
}
RUNS = [
    (name, kernel, padding)
    for name, family in FAMILIES.items()
    for kernel in family.kernels
    for padding in family.paddings
]


@functools.cache
def cross_bert() -> Any:
    """Configuration of a BERT encoder that feeds a BERT decoder."""
    return hf.EncoderDecoderConfig.from_encoder_decoder_configs(hf.BertConfig(**ENCODER), hf.BertConfig(**ENCODER))
