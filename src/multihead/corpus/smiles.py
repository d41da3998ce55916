"""SMILES, the line notation of molecules: its tokens, and the graph of atoms and bonds that they spell.

The grammar is that of the OpenSMILES specification, with `~` for a bond of unknown kind (fragments of one salt) and
`>>` between the two sides of a reaction.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from multihead.error import MultiheadError

_TOKEN = re.compile(
    r"\[[^\[\]\s]+\]"  # an atom with charge, hydrogens, isotope, handedness or map number
    r"|Br|Cl|[BCNOPSFI]|[bcnops]|\*"  # an atom whose hydrogens follow from its bonds
    r"|[-=#$:/\\~]"  # a bond
    r"|%\d\d|\d"  # a ring closes
    r"|[().]|>>"
)
_BRACKET = re.compile(
    r"\[(?P<isotope>\d*)(?P<symbol>se|as|te|si|[A-Z][a-z]?|[bcnops]|\*)(?P<hand>@{0,2})"
    r"(?P<hydrogens>H\d*)?(?P<charge>\+\d+|-\d+|\++|-+)?(?P<map>:\d+)?\]"
)
_VALENCES = {"B": (3,), "C": (4,), "N": (3, 5), "O": (2,), "P": (3, 5), "S": (2, 4, 6)} | dict.fromkeys(
    ("F", "Cl", "Br", "I"), (1,)
)
_BONDS = {"-": 1, "=": 2, "#": 3, "$": 4, ":": 1, "/": 1, "\\": 1, "~": 0}
_SPECIAL = ("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]")


def smiles_tokens(text: str) -> list[str]:
    """The tokens of a molecule or a reaction; joined they give the text back.

    Raises:
        MultiheadError: Something in the text is no SMILES token (its place is named).

    Example:
        >>> smiles_tokens("C[C@H](Cl)Br")
        ['C', '[C@H]', '(', 'Cl', ')', 'Br']
    """
    tokens: list[str] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise MultiheadError(
                asked="SMILES: atoms, bonds, ring numbers, brackets, '.' and '>>', without spaces",
                arrived=f"{text[at : at + 12]!r} at character {at}",
                remedy="take off what follows the reaction, and write reactants>>products with no agents between",
            )
        tokens.append(match[0])
        at = match.end()
    return tokens


@dataclass(slots=True, kw_only=True)
class Atom:
    """One atom as written.

    Args:
        token: Place of its token.
        text: Its token.
        symbol: Element, in small letters where it is aromatic.
        isotope: Mass number as written, or `""`.
        hydrogens: Hydrogens a bracket states; None where they follow from the bonds.
        charge: Charge as written, or `""`.
        hand: `""`, `"@"` or `"@@"`.
        number: Atom-map number, 0 if it has none.
        bonds: For each neighbour (by its place among the atoms) the order of the bond; 0 where it is `~`.
    """

    token: int
    text: str
    symbol: str
    isotope: str = ""
    hydrogens: int | None = None
    charge: str = ""
    hand: str = ""
    number: int = 0
    bonds: dict[int, int] = field(default_factory=dict[int, int])

    @property
    def plain(self) -> str:
        """The token without its map number, and without the bracket where it says nothing else."""
        if not self.number:
            return self.text
        bare = not (self.isotope or self.charge or self.hand) and self.hydrogens == self._implied()
        return self.symbol if bare else re.sub(r":\d+\]$", "]", self.text)

    def _implied(self) -> int | None:
        """Hydrogens the atom has when it is written without a bracket; None if it cannot be."""
        if self.symbol.islower():
            # An aromatic carbon shares one electron with the ring; the other aromatic atoms state their hydrogens.
            return max(0, 3 - len(self.bonds)) if self.symbol == "c" else 0 if self.symbol in "bnops" else None
        used = sum(self.bonds.values())
        return next((v - used for v in _VALENCES.get(self.symbol, ()) if v >= used), None)


def parse_atoms(tokens: Sequence[str]) -> list[Atom]:
    """Atoms and bonds of the tokens of one side of a reaction, in the order of the tokens.

    Raises:
        MultiheadError: A branch or a ring is left open, or a bracket atom is not understood.

    Example:
        >>> [sorted(atom.bonds) for atom in parse_atoms(smiles_tokens("C1CC1"))]
        [[1, 2], [0, 2], [0, 1]]
    """
    graph = _Graph()
    for place, token in enumerate(tokens):
        if token in _BONDS:
            graph.order = _BONDS[token]
        elif token in ("(", ")", "."):
            graph.punctuate(token, place)
        elif token.lstrip("%").isdigit():
            graph.close_ring(int(token.lstrip("%")), place)
        else:
            graph.add(_atom(token, place))
    if graph.branches or graph.rings:
        raise _spoilt(f"{len(graph.branches)} branches and {len(graph.rings)} rings are left open", len(tokens))
    return graph.atoms


class _Graph:
    """A molecule under construction: `last` is the atom the next one is bound to, `order` the bond just written."""

    def __init__(self) -> None:
        self.atoms: list[Atom] = []
        self.branches: list[int | None] = []
        self.rings: dict[int, tuple[int, int | None]] = {}
        self.last: int | None = None
        self.order: int | None = None

    def add(self, atom: Atom) -> None:
        self.atoms.append(atom)
        if self.last is not None:
            self._bind(self.last, len(self.atoms) - 1, self.order)
        self.last, self.order = len(self.atoms) - 1, None

    def punctuate(self, token: str, place: int) -> None:
        if token == "(":
            self.branches.append(self.last)
        elif token == ".":
            self.last = None
        elif self.branches:
            self.last = self.branches.pop()
        else:
            raise _spoilt("a branch is closed that was never opened", place)

    def close_ring(self, number: int, place: int) -> None:
        if self.last is None:
            raise _spoilt(f"ring {number} stands before any atom", place)
        if number in self.rings:
            start, opened = self.rings.pop(number)
            self._bind(start, self.last, opened if self.order is None else self.order)
        else:
            self.rings[number] = self.last, self.order
        self.order = None

    def _bind(self, one: int, other: int, order: int | None) -> None:
        # Aromatic bonds count as single ones: that both ends are aromatic tells them apart.
        kind = 1 if order is None else order
        self.atoms[one].bonds[other] = kind
        self.atoms[other].bonds[one] = kind


def _spoilt(trouble: str, place: int) -> MultiheadError:
    return MultiheadError(
        asked="SMILES whose branches and rings are opened and closed",
        arrived=f"at token {place}: {trouble}",
        remedy="check the text for a part that was cut off",
    )


def _atom(token: str, place: int) -> Atom:
    if not token.startswith("["):
        return Atom(token=place, text=token, symbol=token)
    found = _BRACKET.fullmatch(token)
    if found is None:
        raise MultiheadError(
            asked="a bracket atom: [isotope symbol hand hydrogens charge :map]",
            arrived=f"{token} at token {place}",
            remedy="write it as in [13CH3:4], [O-] or [C@@H:2]",
        )
    hydrogens = found["hydrogens"] or ""
    return Atom(
        token=place,
        text=token,
        symbol=found["symbol"],
        isotope=found["isotope"],
        hydrogens=int(hydrogens[1:] or 1) if hydrogens else 0,
        charge=found["charge"] or "",
        hand=found["hand"],
        number=int((found["map"] or ":0")[1:]),
    )


def symmetry_classes(atoms: Sequence[Atom]) -> list[int]:
    """A number for each atom, the same for atoms that no walk through bonds and neighbours tells apart.

    Colour refinement: start from what is written at the atom (map numbers and handedness aside), then take in the
    colours of the neighbours until nothing changes. Atoms that a symmetry of the molecule exchanges get one number; the
    reverse can fail only for graphs more regular than ordinary molecules.
    """
    colours = _numbered([(a.symbol, a.isotope, a.charge) for a in atoms])
    while True:
        around = [(colours[i], sorted((o, colours[n]) for n, o in atom.bonds.items())) for i, atom in enumerate(atoms)]
        finer = _numbered(around)
        if len(set(finer)) == len(set(colours)):
            return colours
        colours = finer


def _numbered(keys: Sequence[object]) -> list[int]:
    names = {text: number for number, text in enumerate(sorted({repr(key) for key in keys}))}
    return [names[repr(key)] for key in keys]


class SmilesTokenizer:
    """Tokenizer of SMILES models with a `vocab.txt`: one token an atom, a bond, a bracket or a ring number.

    It has the members of a tokenizer of transformers that this library uses, and sets `[CLS]` and `[SEP]` around.

    Args:
        vocabulary: Tokens by their ids, the five special ones among them.
        model_max_length: Longest sequence the model takes.

    Example:
        `SmilesTokenizer.from_folder(find_packaged("rxnmapper").path)("CCO>>CC=O")["input_ids"]`
    """

    def __init__(self, vocabulary: Sequence[str], *, model_max_length: int = 512) -> None:
        lacking = [token for token in _SPECIAL if token not in vocabulary]
        if lacking:
            raise MultiheadError(
                asked=f"a SMILES vocabulary with {', '.join(_SPECIAL)}",
                arrived=f"{len(vocabulary)} tokens without {', '.join(lacking)}",
                remedy="pass the model's own vocab.txt",
            )
        self._tokens = tuple(vocabulary)
        self._ids = {token: place for place, token in enumerate(vocabulary)}
        self.model_max_length = model_max_length
        self.cls_token_id, self.sep_token_id, self.pad_token_id, self.unk_token_id, self.mask_token_id = (
            self._ids[token] for token in _SPECIAL
        )
        self.all_special_tokens = list(_SPECIAL)
        self.all_special_ids = [self._ids[token] for token in _SPECIAL]

    @classmethod
    def from_folder(cls, folder: str | Path) -> "SmilesTokenizer":
        """Read the `vocab.txt` of a model's folder: one token a line.

        Raises:
            MultiheadError: There is no such file, or it lacks the special tokens.
        """
        file = Path(folder) / "vocab.txt"
        if not file.is_file():
            raise MultiheadError(
                asked=f"the SMILES vocabulary {file}", arrived="no such file", remedy="name the model's own folder"
            )
        return cls(file.read_text(encoding="utf-8").splitlines())

    def __len__(self) -> int:
        """How many tokens the vocabulary holds."""
        return len(self._tokens)

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> dict[str, list[int]]:
        """Ids of a text, under `input_ids`, with `attention_mask`; tokens out of the vocabulary become `[UNK]`.

        Raises:
            MultiheadError: The text is no SMILES.
        """
        ids = [self._ids.get(token, self.unk_token_id) for token in smiles_tokens(text)]
        if add_special_tokens:
            ids = [self.cls_token_id, *ids, self.sep_token_id]
        return {"input_ids": ids, "attention_mask": [1] * len(ids)}

    def split_words(self, text: str) -> list[tuple[int, int]]:
        """Where each token begins and stops: in a molecule every atom, bond and bracket is a word of its own."""
        ends = list(accumulate(map(len, smiles_tokens(text))))
        return list(zip([0, *ends], ends, strict=False))

    def get_vocab(self) -> Mapping[str, int]:
        """Every token with its id."""
        return dict(self._ids)

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Tokens of some ids."""
        return [self._tokens[place] for place in ids]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Text of some ids."""
        kept = (place for place in ids if not (skip_special_tokens and place in self.all_special_ids))
        return "".join(self._tokens[place] for place in kept)
