"""Tokenizers of every kind, made on the spot."""

from types import MappingProxyType

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TRAINING = ["the cat sat on the mat", "hello world", "don't stop the lemons", "2024 was 12.5 percent"] * 3


class Slow:
    """A tokenizer that tells no places: a fast one behind a curtain."""

    def __init__(self, fast):
        self.fast = fast
        self.all_special_ids = fast.all_special_ids
        self.unk_token_id = fast.unk_token_id
        self.added_tokens_decoder = fast.added_tokens_decoder

    def get_vocab(self):
        return self.fast.get_vocab()

    def __call__(self, text, *, add_special_tokens=True):
        return {"input_ids": self.fast(text, add_special_tokens=add_special_tokens)["input_ids"]}


def unigram():
    """SentencePiece's way: NFKC, ▁ for a space, pieces that are likely."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=70, unk_token="<unk>", special_tokens=["<unk>", "</s>"])
    tokenizer.train_from_iterator(TRAINING, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>")


def pieces_with_bytes():
    """Llama's way: ▁ for a space, bytes for what no piece spells."""
    pieces = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "ab"]
    merges = [("▁", "a"), ("a", "b")]
    vocabulary = {piece: place for place, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>")


def byte_level():
    """GPT-2's way, with few merges: most characters beyond ASCII are cut to bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|end|>"]
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


class Bytes:
    """ByT5's way: every byte of UTF-8 is a token, written as the character of its number."""

    all_special_ids = (0, 1, 2)
    unk_token_id = 2

    def get_vocab(self):
        return {"<pad>": 0, "</s>": 1, "<unk>": 2} | {chr(byte): byte + 3 for byte in range(256)}

    def __call__(self, text, *, add_special_tokens=True):
        return {"input_ids": [byte + 3 for byte in text.encode()] + [1] * add_special_tokens}


class Ends:
    """GPT-1's way: lower case, the last piece of a word ends with </w>."""

    all_special_ids = (0,)
    unk_token_id = 0
    words = MappingProxyType({"the": ["the</w>"], "lemons": ["lem", "on", "s</w>"], "!": ["!</w>"]})

    def get_vocab(self):
        return {"<unk>": 0, "the</w>": 1, "lem": 2, "on": 3, "s</w>": 4, "!</w>": 5}

    def __call__(self, text, *, add_special_tokens=True):
        pieces = [p for word in text.lower().replace("!", " !").split() for p in self.words.get(word, ["<unk>"])]
        return {"input_ids": [self.get_vocab()[piece] for piece in pieces]}
