import re

import pytest
import torch
from transformers import AlbertForMaskedLM

from multihead.corpus import PUBLISHED, MappedReaction, SmilesTokenizer, align, smiles_tokens
from multihead.corpus.smiles import parse_atoms
from multihead.error import MultiheadError


@pytest.fixture(scope="module")
def letters():
    return SmilesTokenizer(
        [
            "[PAD]",
            "[UNK]",
            "[CLS]",
            "[SEP]",
            "[MASK]",
            "C",
            "O",
            "Br",
            "[O-]",
            "[Na+]",
            "S",
            "c",
            "n",
            "F",
            "N",
            *".~()=>1",
            ">>",
        ]
    )


def reaction(mapped):
    return MappedReaction(name="r", mapped=mapped, source="here")


def numbers(tokens):
    """Map number of each token, read with a pattern of its own."""
    return [int(m[1]) if (m := re.search(r":(\d+)\]$", token)) else 0 for token in tokens]


def test_pairs_of_a_reaction_worked_out_by_hand(letters):
    # [CLS] C S . Br C ( C ) C >> C S C ( C ) C [SEP]: the isopropyl's two ends are the same atom twice.
    gold = align(reaction("[CH3:1][SH:2].Br[CH:3]([CH3:4])[CH3:5]>>[CH3:1][S:2][CH:3]([CH3:4])[CH3:5]"), letters)
    assert gold.tokens == (
        "[CLS]",
        "C",
        "S",
        ".",
        "Br",
        "C",
        "(",
        "C",
        ")",
        "C",
        ">>",
        "C",
        "S",
        "C",
        "(",
        "C",
        ")",
        "C",
        "[SEP]",
    )
    assert gold.pairs == ((11, 1), (12, 2), (13, 5), (15, 7), (15, 9), (17, 7), (17, 9))
    assert gold.queries == (11, 12, 13, 15, 17)
    assert len(gold.ids) == len(gold.tokens)


def test_both_ends_of_an_ether_answer_for_each_other(letters):
    # [CLS] Br C C . C C [O-] >> C C O C C [SEP]
    gold = align(reaction("Br[CH2:2][CH3:1].[CH3:5][CH2:4][O-:3]>>[CH3:1][CH2:2][O:3][CH2:4][CH3:5]"), letters)
    assert gold.pairs == ((9, 3), (9, 5), (10, 2), (10, 6), (11, 7), (12, 2), (12, 6), (13, 3), (13, 5))


def test_unmapped_atoms_ask_for_nothing(letters):
    gold = align(reaction("C[CH3:1]>>[CH3:1]O"), letters)
    assert gold.queries == (4,)
    # Ethane's two carbons are the same, mapped or not.
    assert gold.pairs == ((4, 1), (4, 2))


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda r: r.name)
def test_published_maps_are_sound(published):
    """Mapped atoms keep their element, and few bonds between them change: those of the reacting centre."""
    pattern = r"\[[^\]]+\]|Br|Cl|[A-Za-z]"
    before, after = (re.findall(pattern, side) for side in published.mapped.split(">>"))
    symbols = [
        {n: re.search(r"[A-Za-z]", t)[0].upper() for n, t in zip(numbers(s), s, strict=True) if n}
        for s in (before, after)
    ]
    assert symbols[1].items() <= symbols[0].items()
    assert len(symbols[1]) >= 5

    def bonds(side):
        atoms = parse_atoms(smiles_tokens(side))
        return {frozenset((a.number, atoms[n].number)) for a in atoms for n in a.bonds if a.number and atoms[n].number}

    kept, made = (bonds(side) for side in published.mapped.split(">>"))
    common = set(symbols[1])
    assert len({b for b in kept if b <= common} ^ made) <= 4


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda r: r.name)
def test_pairs_of_published_reactions(published, smiles):
    """Each product atom may answer with the atom of its number; what else it may answer with is of the same element."""
    gold = align(published, smiles)
    assert smiles.unk_token_id not in gold.ids
    assert ":" not in "".join(gold.tokens)
    tokens = ["", *re.findall(r"\[[^\]]+\]|Br|Cl|>>|.", published.mapped), ""]
    assert len(tokens) == len(gold.ids)
    number = numbers(tokens)
    split = tokens.index(">>")
    for product in range(split, len(tokens)):
        answers = {reactant for query, reactant in gold.pairs if query == product}
        assert bool(answers) == bool(number[product])
        if answers:
            assert number.index(number[product]) in answers
            assert {gold.tokens[a].upper()[:1] for a in answers if gold.tokens[a][0] != "["} <= {
                gold.tokens[product].upper()[0]
            }
            assert max(answers) < split


def test_the_thioether_in_plain_form(smiles):
    assert PUBLISHED[0].plain == "CC(C)S.CN(C)C=O.Fc1ncccc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F"
    assert (41, 2) in align(PUBLISHED[0], smiles).pairs


def test_one_head_of_rxnmapper_reads_the_map(smiles, rxnmapper_folder):
    """ALBERT shares its layers, so head 5 aligns in all of the upper ones; no other head comes near."""
    model = AlbertForMaskedLM.from_pretrained(rxnmapper_folder, attn_implementation="eager").eval()
    right, asked = torch.zeros(12, 8), 0
    for published in PUBLISHED:
        gold = align(published, smiles)
        with torch.no_grad():
            weights = model(torch.tensor([gold.ids]), output_attentions=True).attentions
        for query in gold.queries:
            answers = torch.tensor([reactant for product, reactant in gold.pairs if product == query])
            best = torch.stack([layer[0, :, query].argmax(-1) for layer in weights])
            right += torch.isin(best, answers)
            asked += 1
    rate = right / asked
    others = torch.cat([rate[:, :5], rate[:, 6:]], dim=1)
    assert rate[10, 5] >= others.max() + 0.2
    assert rate[10, 5] >= 0.7
    assert rate[:, 5].argmax() >= 6


@pytest.mark.parametrize(
    ("mapped", "told"),
    [
        ("CCO", "0 times '>>'"),
        ("C>>C>>C", "2 times '>>'"),
        ("[CH4:1].[CH4:1]>>[CH4:1]", r"1 stands at \[CH4:1\] and at \[CH4:1\]"),
        ("C>>[CH4:3]", r"product atom \[CH4:3\]\n  got: none"),
        ("[OH2:3]>>[CH4:3]", r"product atom \[CH4:3\]\n  got: \[OH2:3\], another element"),
    ],
)
def test_maps_that_are_none_are_refused(letters, mapped, told):
    with pytest.raises(MultiheadError, match=told):
        align(reaction(mapped), letters)
