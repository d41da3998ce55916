import dataclasses

import pytest
import torch

from multihead.corpus import CLASSES, token_classes
from multihead.error import MultiheadError


class Plain:
    """A tokenizer that is nothing but a vocabulary."""

    def __init__(self, tokens, special=()):
        self.vocabulary = {token: place for place, token in enumerate(tokens)}
        self.all_special_ids = [self.vocabulary[token] for token in special]

    def get_vocab(self):
        return self.vocabulary

    def __call__(self, text, *, add_special_tokens=True):
        return {"input_ids": [self.vocabulary[letter] for letter in text]}


def classes_of(tokens, special=()):
    found = token_classes(Plain(tokens, special))
    return {token: CLASSES[kind] for token, kind in zip(tokens, found.table.tolist(), strict=True)}


def test_wordpiece():
    want = {
        "[CLS]": "special",
        "[unused3]": "other",
        "the": "word_start",
        "##s": "continuation",
        "été": "word_start",
        "1987": "digit",
        "##7": "digit",
        "½": "digit",
        ".": "punctuation",
        "##-": "punctuation",
        "€": "punctuation",
        "中": "word_start",
        "##中": "word_start",
        "##の": "word_start",
        "##하": "continuation",
        "ी": "continuation",  # a vowel sign
        "Ġ": "word_start",  # a letter of Maltese here, no mark
        "##": "other",
    }
    assert classes_of(list(want), ["[CLS]"]) == want
    assert token_classes(Plain(list(want))).marks == "##"


def test_byte_level():
    def spell(text):
        """The byte alphabet, looked up by hand: a space is Ġ, a line end Ċ, the Chinese character three letters."""
        return {" the": "Ġthe", "\n": "Ċ", "  ": "ĠĠ", "中": "ä¸Ń", " 中": "Ġä¸Ń", "\té": "ĉÃ©"}[text]

    want = {
        "<s>": "special",
        "<|reserved_special_token_7|>": "other",
        spell(" the"): "word_start",
        "ing": "continuation",
        spell("\té"): "word_start",
        spell("\n"): "newline",
        spell("  "): "whitespace",
        "ĠĊ": "newline",
        spell("中"): "word_start",
        spell(" 中"): "word_start",
        "ä¸": "other",  # two of the three bytes of a character
        "Ġ12": "digit",
        "Ġ(": "punctuation",
        "();": "punctuation",
        "Ġ": "whitespace",
        "中文": "word_start",  # added as it stands
    }
    assert classes_of(list(want), ["<s>"]) == want


def test_sentence_pieces():
    want = {
        "<unk>": "special",
        "<extra_id_0>": "other",
        "▁the": "word_start",
        "ing": "continuation",
        "▁": "whitespace",
        "▁▁": "whitespace",
        "▁,": "punctuation",
        "▁19": "digit",
        "<0x0A>": "newline",
        "<0x41>": "continuation",
        "<0xE4>": "other",
        "日": "word_start",
    }
    assert classes_of(list(want), ["<unk>"]) == want


def test_characters_stand_by_themselves():
    want = {
        "a": "word_start",
        "é": "word_start",
        "Ġ": "word_start",
        "7": "digit",
        "!": "punctuation",
        "\n": "newline",
    }
    assert classes_of(list(want)) == want
    assert token_classes(Plain(list(want))).marks == ""


def test_added_special_tokens_are_special_and_gaps_are_other():
    tokenizer = Plain(["a", "<end>"])
    tokenizer.vocabulary = {"a": 0, "<end>": 3}

    @dataclasses.dataclass
    class Added:
        special: bool

    tokenizer.added_tokens_decoder = {0: Added(special=False), 3: Added(special=True)}
    found = token_classes(tokenizer, size=6)
    assert [CLASSES[kind] for kind in found.table.tolist()] == [
        "word_start",
        "other",
        "other",
        "special",
        "other",
        "other",
    ]
    assert found.special.tolist() == [False, False, False, True, False, False]
    assert found.ids("word_start", "special").tolist() == [0, 3]


def test_minilm(minilm):
    found = token_classes(minilm)
    assert found.table.shape == (30522,)
    assert found.marks == "##"
    text = "Marta, 27, unfastened [MASK] 7 lemons!\n"
    ids = minilm(text)["input_ids"]
    got = [(token, CLASSES[found.table[i]]) for token, i in zip(minilm.convert_ids_to_tokens(ids), ids, strict=True)]
    assert got == [
        ("[CLS]", "special"),
        ("marta", "word_start"),
        (",", "punctuation"),
        ("27", "digit"),
        (",", "punctuation"),
        ("un", "word_start"),
        ("##fast", "continuation"),
        ("##ened", "continuation"),
        ("[MASK]", "special"),
        ("7", "digit"),
        ("lemon", "word_start"),
        ("##s", "continuation"),
        ("!", "punctuation"),
        ("[SEP]", "special"),
    ]
    assert found.special.sum() == 5
    vocabulary = minilm.get_vocab()
    assert len(found.ids("other")) == sum(token.startswith("[unused") for token in vocabulary)


def test_smollm2(smollm2):
    found = token_classes(smollm2, size=49152)
    assert found.marks == "Ġ"
    assert found.special.sum() == 17
    ids = smollm2("The tram,\n  Ines 27 中")["input_ids"]
    got = [
        (token, CLASSES[found.table[i]])
        for token, i in zip(smollm2.convert_ids_to_tokens(ids), ids, strict=True)
        if "word" in CLASSES[found.table[i]] or token in {",", "Ċ", "2"}
    ]
    assert ("Ġtram", "word_start") in got
    assert (",", "punctuation") in got
    assert ("2", "digit") in got
    assert ("ä¸Ń", "word_start") in got
    assert CLASSES[found.table[smollm2.convert_tokens_to_ids("ĊĊ")]] == "newline"
    share = torch.bincount(found.table, minlength=len(CLASSES)) / len(found.table)
    assert share[CLASSES.index("word_start")] > 0.5
    assert share[CLASSES.index("other")] < 0.02


def test_rxnmapper(smiles):
    found = token_classes(smiles)
    assert found.table.shape == (591,)
    ids = smiles("C[C@H]1(Cl)~[O-]>>%10")["input_ids"]
    kinds = [CLASSES[found.table[i]] for i in ids]
    assert kinds == [
        "special",
        "word_start",
        "word_start",
        "digit",
        "punctuation",
        "word_start",
        "punctuation",
        "punctuation",
        "word_start",
        "punctuation",
        "digit",
        "special",
    ]


def test_errors_name_the_numbers():
    with pytest.raises(MultiheadError, match="a vocabulary of 0 tokens, the largest id -1"):
        token_classes(Plain([]))
    with pytest.raises(
        MultiheadError, match=r"the classes of 2 token ids\n  got: a vocabulary of 3 tokens, the largest id 2"
    ):
        token_classes(Plain(["a", "b", "c"]), size=2)
    with pytest.raises(MultiheadError, match="'verb'"):
        token_classes(Plain(["a"])).ids("verb")
