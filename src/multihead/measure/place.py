"""Where in the model the heads of a book are."""

from collections.abc import Mapping
from dataclasses import dataclass

from multihead.hooks import addresses
from multihead.measure.page import Book, Slot

Place = tuple[str, int]
"""Stack and layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A book, and which heads of the model it is of.

    Args:
        place: The layer.
        first_head: Number of its first head within the layer.
        first_kv_head: Number of the first key/value head within the layer.
        book: The book.
    """

    place: Place
    first_head: int
    first_kv_head: int
    book: Book

    @property
    def slot(self) -> tuple[str, int, int]:
        """What tells it from the others."""
        return *self.place, self.first_head

    @property
    def heads(self) -> range:
        """Its heads within the layer."""
        return range(self.first_head, self.first_head + self.book.heads)

    @property
    def kv_heads(self) -> list[int]:
        """For each head its key/value head within the layer."""
        return [self.first_kv_head + head // self.book.group for head in range(self.book.heads)]


def place_books(books: Mapping[Slot, Book]) -> list[Placed]:
    """Books in the order of a record: stack after stack, layer after layer, heads as they are numbered."""
    places = addresses(tuple(dict.fromkeys(site for site, _ in books)))
    stacks = list(dict.fromkeys(stack for stack, _ in places.values()))
    found = [(places[site], first, book) for (site, first), book in books.items()]
    found.sort(key=lambda one: (stacks.index(one[0][0]), one[0][1], one[1]))
    counted: dict[Place, int] = {}
    placed: list[Placed] = []
    for place, first, book in found:
        before = counted.get(place, 0)
        counted[place] = before + book.heads // book.group
        placed.append(Placed(place=place, first_head=first, first_kv_head=before, book=book))
    return placed
