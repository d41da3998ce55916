"""The options of `multihead variants`: what is refused before anything is looked at."""

from collections.abc import Mapping, Sequence
from typing import Literal

from multihead.advice.sizes import is_size
from multihead.error import MultiheadError

Order = Literal["listed", "work", "time", "cache", "growth", "break-even"]


def check_counts(given: Mapping[str, Sequence[int]]) -> None:
    """Refuses counts that are none by the option that they were given with."""
    for option, counts in given.items():
        wrong = [count for count in counts if not is_size(count)]
        if wrong:
            raise MultiheadError(
                asked=f"{option}: {'whole numbers' if option == '--length' else 'a whole number'} from 1 to 2**40",
                arrived=f"{option} {wrong[0]}"[:200],
                remedy="pass such a number, for example --embed-dim 512 --heads 8 --length 1024 8192 --batch 1",
            )


def check_given(given: Mapping[str, Sequence[object] | None]) -> None:
    """Refuses an option behind which nothing stands."""
    for option, values in given.items():
        if values is not None and not values:
            raise MultiheadError(
                asked=f"{option}: one or more", arrived=f"{option} with none", remedy=f"name one, or leave {option} out"
            )


def check_together(embed_dim: int, heads: int, limit: float, *, sort: Order, measure: bool) -> None:
    """Refuses options that do not go together."""
    if embed_dim % heads:
        raise MultiheadError(
            asked="--embed-dim and --heads, of which one divides the other",
            arrived=f"--embed-dim {embed_dim} --heads {heads}",
            remedy="for example --embed-dim 512 --heads 8",
        )
    if not limit > 0:
        raise MultiheadError(
            asked="--limit: seconds for all timings", arrived=f"--limit {limit:g}", remedy="pass a number above 0"
        )
    if sort == "time" and not measure:
        raise MultiheadError(
            asked="rows by the time they take", arrived="--sort time without --measure", remedy="add --measure"
        )
