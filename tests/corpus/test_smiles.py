import pytest

from multihead.corpus import SmilesTokenizer, smiles_tokens
from multihead.corpus.smiles import parse_atoms, symmetry_classes
from multihead.error import MultiheadError

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def classes(text):
    return symmetry_classes(parse_atoms(smiles_tokens(text)))


def groups(text):
    """Atoms (by place) that are the same, as a set of sets."""
    found = classes(text)
    return {frozenset(i for i, c in enumerate(found) if c == kind) for kind in found}


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("ClCCBr", ["Cl", "C", "C", "Br"]),
        ("C%12CC%12", ["C", "%12", "C", "C", "%12"]),
        ("F/C=C\\[13CH2:4]>>[nH]1cccc1", ["F", "/", "C", "=", "C", "\\", "[13CH2:4]", ">>", "[nH]", *"1cccc1"]),
        ("[Na+]~[O-].N#*", ["[Na+]", "~", "[O-]", ".", "N", "#", "*"]),
    ],
)
def test_tokens_cover_the_text(text, tokens):
    assert smiles_tokens(text) == tokens
    assert "".join(tokens) == text


def test_what_is_no_smiles_is_refused_with_its_place():
    with pytest.raises(MultiheadError, match=r"' \|f:0\.1\|' at character 3"):
        smiles_tokens("CCO |f:0.1|")
    with pytest.raises(MultiheadError, match="at character 1"):
        smiles_tokens("CXC")
    with pytest.raises(MultiheadError, match="at character 2"):
        smiles_tokens("CC>O>CC")


def test_atoms_and_bonds():
    """Bonds of a branched ring with a double bond, a triple bond and a salt, written out by hand."""
    atoms = parse_atoms(smiles_tokens("C1=CC(C#N)CC1.[Na+]~[O-]"))
    assert [a.symbol for a in atoms] == ["C", "C", "C", "C", "N", "C", "C", "Na", "O"]
    assert [a.bonds for a in atoms] == [
        {1: 2, 6: 1},
        {0: 2, 2: 1},
        {1: 1, 3: 1, 5: 1},
        {2: 1, 4: 3},
        {3: 3},
        {2: 1, 6: 1},
        {5: 1, 0: 1},
        {8: 0},
        {7: 0},
    ]
    assert [a.charge for a in atoms][7:] == ["+", "-"]


def test_a_ring_bond_written_at_either_end_counts():
    for text in ("C=1CCC1", "C1CCC=1"):
        assert parse_atoms(smiles_tokens(text))[0].bonds[3] == 2


@pytest.mark.parametrize(
    ("mapped", "plain"),
    [
        ("[CH3:1]C", "C"),
        ("[CH2:1](C)C", "C"),
        ("[CH:1](=O)C", "C"),
        ("[c:1]1(C)ccccc1", "c"),
        ("[c:1]1ccccc1", "[c]"),
        ("[cH:1]1ccccc1", "c"),
        ("[n:1]1ccccc1", "n"),
        ("[nH:1]1cccc1", "[nH]"),
        ("[NH:7](C)C", "N"),
        ("[N:7](=O)(=O)C", "N"),
        ("[O-:3]C", "[O-]"),
        ("[NH3+:3]C", "[NH3+]"),
        ("[C@@H:9](F)(Cl)Br", "[C@@H]"),
        ("[13CH3:2]C", "[13CH3]"),
        ("[CH2:2]C", "[CH2]"),  # a radical: the hydrogens are one too few
        ("[Br:5]C", "Br"),
        ("[SH:5]C", "S"),
        ("[Na+:5]", "[Na+]"),
        ("[SiH3:5]C", "[SiH3]"),
        ("[CH3]C", "[CH3]"),  # not mapped: left as written
    ],
)
def test_plain_form_of_an_atom(mapped, plain):
    assert parse_atoms(smiles_tokens(mapped))[0].plain == plain


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("C(C", "1 branches and 0 rings are left open"),
        ("C1CC", "0 branches and 1 rings are left open"),
        ("CC)C", "at token 2: a branch is closed"),
        ("1CC1", "at token 0: ring 1 stands before any atom"),
        ("[C@@@H]", r"\[C@@@H\] at token 0"),
    ],
)
def test_what_does_not_close_is_refused(text, told):
    with pytest.raises(MultiheadError, match=told):
        parse_atoms(smiles_tokens(text))


def test_symmetric_atoms_get_one_class():
    assert groups("CC(C)S") == {frozenset({0, 2}), frozenset({1}), frozenset({3})}
    assert groups("CCOCC") == {frozenset({0, 4}), frozenset({1, 3}), frozenset({2})}
    assert groups("Cc1ccccc1") == {frozenset({i}) for i in (0, 1, 4)} | {frozenset({2, 6}), frozenset({3, 5})}
    assert groups("CC=O.CC=O") == {frozenset({0, 3}), frozenset({1, 4}), frozenset({2, 5})}
    assert len(groups("OC(=O)C")) == 4
    assert len(groups("[13CH3]CC")) == 3


def test_classes_do_not_depend_on_how_the_molecule_is_written():
    one, other = classes("OC(=O)c1ccccc1Cl"), classes("Clc1ccccc1C(=O)O")
    assert sorted(map(one.count, one)) == sorted(map(other.count, other)) == [1] * 10


def test_tokenizer_frames_and_gives_back(smiles):
    encoded = smiles("CC(=O)O>>CC=O")
    assert smiles.convert_ids_to_tokens(encoded["input_ids"])[:3] == ["[CLS]", "C", "C"]
    assert encoded["attention_mask"] == [1] * len(encoded["input_ids"])
    assert smiles.decode(encoded["input_ids"]) == "[CLS]CC(=O)O>>CC=O[SEP]"
    assert smiles.decode(encoded["input_ids"], skip_special_tokens=True) == "CC(=O)O>>CC=O"
    assert smiles("CC", add_special_tokens=False)["input_ids"] == encoded["input_ids"][1:3]
    assert len(smiles) == 591
    assert smiles.model_max_length == 512


def test_unknown_atoms_become_unk():
    tokenizer = SmilesTokenizer([*SPECIAL, "C"])
    assert tokenizer("C[Xe]C")["input_ids"] == [2, 5, 1, 5, 3]
    assert tokenizer.all_special_ids == [2, 3, 0, 1, 4]


def test_tokenizer_errors(tmp_path):
    with pytest.raises(MultiheadError, match=r"2 tokens without \[SEP\], \[PAD\], \[UNK\], \[MASK\]"):
        SmilesTokenizer(["[CLS]", "C"])
    with pytest.raises(MultiheadError, match=r"vocab\.txt\n  got: no such file"):
        SmilesTokenizer.from_folder(tmp_path)
