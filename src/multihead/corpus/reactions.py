"""Reactions with known atom maps, and the pairs of tokens an alignment head should link."""

from collections.abc import Sequence
from dataclasses import dataclass

from multihead.corpus.smiles import Atom, SmilesTokenizer, parse_atoms, smiles_tokens, symmetry_classes
from multihead.error import MultiheadError


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedReaction:
    """A reaction in which atoms that are the same atom before and after carry the same number.

    Args:
        name: What it is.
        mapped: Reaction SMILES, reactants `>>` products, with atom-map numbers: `[CH3:1]`.
        source: Where the map was published.
    """

    name: str
    mapped: str
    source: str

    @property
    def plain(self) -> str:
        """The reaction without its map, as a model reads it."""
        reactants, products, tokens = _sides(self.mapped)
        for atom in (*reactants, *products):
            tokens[atom.token] = atom.plain
        return "".join(tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """What a model reads, and which tokens belong together.

    Args:
        ids: Token ids of the plain reaction.
        tokens: The tokens, special ones included.
        pairs: (product token, reactant token): every right answer for every mapped product atom.
    """

    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]

    @property
    def queries(self) -> tuple[int, ...]:
        """The product tokens that have an answer, in order."""
        return tuple(sorted({product for product, _ in self.pairs}))


def align(reaction: MappedReaction, tokenizer: SmilesTokenizer) -> Alignment:
    """The gold pairs of a mapped reaction, as places in the sequence a model reads.

    Where a symmetry makes two atoms the same, each of them is a right answer: the two methyl groups of an isopropyl, or
    the two ends of diethyl ether. For a product atom p these are all atoms of the class of map(p'), for all p' of the
    class of p (see `symmetry_classes`). Unmapped atoms ask for nothing.

    Raises:
        MultiheadError: Not a reaction; a number stands twice on one side; a product atom's number is missing among the
            reactants, or stands at another element there.

    Example:
        `align(PUBLISHED[0], tokenizer).pairs` has (41, 2): the middle carbon of the isopropyl stays the middle one.
    """
    reactants, products, _ = _sides(reaction.mapped)
    plain = reaction.plain
    read = smiles_tokens(plain)
    split = read.index(">>")
    # Classes come from the plain form: there a mapped atom and its unmapped twin are written alike.
    reactant_class = symmetry_classes(parse_atoms(read[:split]))
    product_class = symmetry_classes(parse_atoms(read[split + 1 :]))
    origin = _origins(reactants, products)
    answers = {
        kind: {reactant_class[origin[i]] for i in origin if product_class[i] == kind} for kind in set(product_class)
    }
    ids = tokenizer(plain)["input_ids"]
    offset = ids.index(tokenizer.cls_token_id) + 1
    pairs = [
        (products[i].token + offset, reactant.token + offset)
        for i in origin
        for j, reactant in enumerate(reactants)
        if reactant_class[j] in answers[product_class[i]]
    ]
    return Alignment(ids=tuple(ids), tokens=tuple(tokenizer.convert_ids_to_tokens(ids)), pairs=tuple(sorted(pairs)))


def _sides(mapped: str) -> tuple[list[Atom], list[Atom], list[str]]:
    """Atoms of the reactants and of the products, with the places of their tokens in the whole, and the tokens."""
    tokens = smiles_tokens(mapped)
    if tokens.count(">>") != 1:
        raise MultiheadError(
            asked="a reaction: reactants>>products",
            arrived=f"{tokens.count('>>')} times '>>' in {mapped[:60]!r}",
            remedy="write '>>' once, between the two sides",
        )
    split = tokens.index(">>")
    reactants, products = parse_atoms(tokens[:split]), parse_atoms(tokens[split + 1 :])
    for atom in products:
        atom.token += split + 1
    return reactants, products, tokens


def _origins(reactants: Sequence[Atom], products: Sequence[Atom]) -> dict[int, int]:
    """For each mapped product atom the reactant atom of the same number, both by their place among the atoms."""
    before, after = _numbers(reactants, "reactant"), _numbers(products, "product")
    origin: dict[int, int] = {}
    for number, i in after.items():
        j = before.get(number)
        if j is None or reactants[j].symbol.upper() != products[i].symbol.upper():
            raise MultiheadError(
                asked=f"a reactant atom for the product atom {products[i].text}",
                arrived="none" if j is None else f"{reactants[j].text}, another element",
                remedy="give the same number to the same atom on both sides",
            )
        origin[i] = j
    return origin


def _numbers(atoms: Sequence[Atom], side: str) -> dict[int, int]:
    numbers: dict[int, int] = {}
    for place, atom in enumerate(atoms):
        if atom.number in numbers:
            raise MultiheadError(
                asked=f"every map number once on the {side} side",
                arrived=f"{atom.number} stands at {atoms[numbers[atom.number]].text} and at {atom.text}",
                remedy="number each atom by itself",
            )
        if atom.number:
            numbers[atom.number] = place
    return numbers
