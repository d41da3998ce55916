"""A tiny BERT in a folder of its own, with a WordPiece tokenizer, as `save_pretrained` leaves them."""

import shutil
from pathlib import Path

import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = ("the", "cat", "sat", "on", "mat", "dog", "hen", "slept", "a", ".", ",")
PROSE = "The cat sat on the mat. A dog, a hen, a cat slept. The dog sat on the hen, the hen on a mat."


def save_tiny(folder, *, layers=2, heads=3, length=128):
    """Write the model and its tokenizer; random weights, biases and norms."""
    pieces = dict.fromkeys([*SPECIAL, *WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS)])
    spelled = Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]"))
    spelled.normalizer = normalizers.BertNormalizer()
    spelled.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    spelled.decoder = decoders.WordPiece()
    spelled.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_object=spelled, mask_token="[MASK]", model_max_length=length, **named
    )
    tokenizer.save_pretrained(folder)
    model = hf.BertModel(
        hf.BertConfig(
            vocab_size=len(pieces),
            hidden_size=8 * heads,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=16,
            max_position_embeddings=length,
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + (parameter.ndim == 1) * 0.5)
    model.save_pretrained(folder)
    return Path(folder)


def changed(folder, new, change):
    """A copy of a model whose weights `change` made other ones of."""
    shutil.copytree(folder, new)
    weights = load_file(new / "model.safetensors")
    change(weights)
    save_file(weights, new / "model.safetensors", metadata={"format": "pt"})
    return new


def one_looks_back(weights, *, heads=3, layer=1, head=0):
    """Make a head put all its weight on the token before: words and segments are taken out, positions are waves."""
    width = 8 * heads
    weights["embeddings.word_embeddings.weight"] *= 1e-3
    weights["embeddings.token_type_embeddings.weight"] *= 0
    place = torch.arange(len(weights["embeddings.position_embeddings.weight"]))[:, None]
    speed = torch.tensor([1.0, 0.37, 0.11, 0.03])
    waves = torch.cat([torch.sin(place * speed), torch.cos(place * speed)], dim=1)
    table = torch.zeros(len(place), width)
    table[:, :8] = waves
    weights["embeddings.position_embeddings.weight"] = table
    weights["embeddings.LayerNorm.weight"] = torch.ones(width)
    weights["embeddings.LayerNorm.bias"] = torch.zeros(width)
    attention = f"encoder.layer.{layer}.attention.self"
    rows = slice(8 * head, 8 * head + 8)
    back = torch.zeros(8, width)
    # sin((p - 1) s) and cos((p - 1) s) from those of p.
    for i, s in enumerate(speed.tolist()):
        c, n = torch.cos(torch.tensor(s)), torch.sin(torch.tensor(s))
        back[i, i], back[i, i + 4] = c, -n
        back[i + 4, i], back[i + 4, i + 4] = n, c
    for name, matrix in (("query", 12 * back), ("key", torch.eye(8, width))):
        weights[f"{attention}.{name}.weight"][rows] = matrix
        weights[f"{attention}.{name}.bias"][rows] = 0
