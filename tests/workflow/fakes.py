"""A tiny model and a tokenizer of letters, so that tests of the loop need no files."""

import string

import torch
from transformers import (
    BertConfig,
    BertModel,
    T5Config,
    T5ForConditionalGeneration,
    WhisperForConditionalGeneration,
)

from hooks.families import FAMILIES
from multihead.corpus import Picture, Sound

LETTERS = string.ascii_lowercase + " .,\n"


class LetterTokenizer:
    """One token a letter, between [CLS] and [SEP] unless `frame` is empty."""

    all_special_ids = (0, 1, 2)
    all_special_tokens = ("[PAD]", "[CLS]", "[SEP]")
    model_max_length = 10**30

    def __init__(self, *, frame=((1,), (2,))):
        self.before, self.after = frame
        self.cls_token_id = self.before[0] if self.before else None
        self.sep_token_id = self.after[0] if self.after else None

    def get_vocab(self):
        return {t: i for i, t in enumerate(self.all_special_tokens)} | {c: i + 3 for i, c in enumerate(LETTERS)}

    def __len__(self):
        return len(LETTERS) + 3

    def convert_ids_to_tokens(self, ids):
        back = {i: t for t, i in self.get_vocab().items()}
        return [back[int(i)] for i in ids]

    def __call__(self, text, *, add_special_tokens=True):
        ids = [LETTERS.index(c) + 3 for c in text.lower() if c in LETTERS]
        return {"input_ids": [*self.before, *ids, *self.after] if add_special_tokens else ids}


def randomised(model):
    """Random weights, biases and norms."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + (parameter.ndim == 1) * 0.5)
    return model.eval()


def bert(layers=2, length=64):
    return randomised(
        BertModel(
            BertConfig(
                vocab_size=40,
                hidden_size=24,
                num_hidden_layers=layers,
                num_attention_heads=3,
                intermediate_size=16,
                max_position_embeddings=length,
            )
        )
    )


def t5():
    return randomised(
        T5ForConditionalGeneration(
            T5Config(
                vocab_size=40,
                d_model=24,
                d_kv=8,
                d_ff=16,
                num_layers=2,
                num_heads=3,
                decoder_start_token_id=0,
            )
        )
    )


def picture(name="p"):
    return Picture(name, torch.randint(0, 256, (40, 30, 3), dtype=torch.uint8))


def noise(seconds=1.0, name="n"):
    return Sound(name, 0.3 * torch.randn(int(seconds * 16000)), 16000)


def viewer():
    return randomised(FAMILIES["vit"].build())


def hearer():
    config = FAMILIES["whisper"].config()
    config.max_source_positions, config.vocab_size = 100, 40
    model = randomised(WhisperForConditionalGeneration(config))
    model.generation_config.eos_token_id = 2
    return model


class Pieces(LetterTokenizer):
    """Tokens that can be written out again."""

    def decode(self, ids):
        return "".join(" x" if i % 3 == 0 else "y" for i in ids)
