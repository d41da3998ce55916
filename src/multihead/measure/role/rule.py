"""The rules by which a head is said to look like something; the first one met names it."""

from dataclasses import dataclass

QUIET = 0.45
"""A head that writes less than this share of its layer's mean output is called quiet."""
TWINS = 0.9
"""Two heads of a layer whose patterns overlap by at least this much, the sink set aside, are called alike."""
LEFT = 0.1
"""Least weight off the sink for what is left to be judged: below, it is noise."""

_TEXT = frozenset({"text"})
_SEQUENCE = frozenset({"text", "audio"})
_PICTURE = frozenset({"images"})
_ANY = frozenset({"text", "images", "audio"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a rule reads its value.

    Args:
        names: Statistics; the largest of those that were measured counts.
        entries: Labels of the entries that are added up, where the statistic is an array.
        aside: Whether the sink is set aside in it.
    """

    names: tuple[str, ...]
    entries: tuple[str, ...] = ()
    aside: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing a head may look like.

    Args:
        key: Its name in records, addresses and style sheets.
        word: Two or three words for people.
        sources: Where its value may be read; the first that was measured is.
        part: `"texts"` or `"repeats"`.
        threshold: The share from which on it is met.
        reads: What the model must read for the rule to make sense.
    """

    key: str
    word: str
    sources: tuple[Source, ...]
    part: str
    threshold: float
    reads: frozenset[str] = _ANY


def _either(name: str, *entries: str) -> tuple[Source, ...]:
    """The statistic with the sink set aside, or else the plain one."""
    return (
        Source(names=(f"{name}_content",), entries=entries, aside=True),
        Source(names=(name,), entries=entries),
    )


def _plain(*names: str) -> tuple[Source, ...]:
    return (Source(names=names),)


_NEAR = ("self", *(f"{way} {span}" for way in ("back", "ahead") for span in ("1", "2-3", "4-7")))

RULES = (
    Rule(
        key="induction",
        word="continues a repeat",
        sources=_plain("induction"),
        part="repeats",
        threshold=0.4,
        reads=_TEXT,
    ),
    Rule(
        key="previous",
        word="token before",
        sources=_either("previous"),
        part="texts",
        threshold=0.4,
        reads=_SEQUENCE,
    ),
    Rule(key="next", word="token after", sources=_either("next"), part="texts", threshold=0.4, reads=_SEQUENCE),
    Rule(
        key="previous2",
        word="two before",
        sources=_either("previous2"),
        part="texts",
        threshold=0.4,
        reads=_SEQUENCE,
    ),
    Rule(key="same", word="same token", sources=_plain("same_token"), part="repeats", threshold=0.4, reads=_TEXT),
    Rule(key="self", word="itself", sources=_either("self"), part="texts", threshold=0.4),
    Rule(
        key="neighbour",
        word="patches beside it",
        sources=_either("neighbour"),
        part="texts",
        threshold=0.4,
        reads=_PICTURE,
    ),
    Rule(key="same_row", word="its row", sources=_either("same_row"), part="texts", threshold=0.4, reads=_PICTURE),
    Rule(
        key="same_column",
        word="its column",
        sources=_either("same_column"),
        part="texts",
        threshold=0.4,
        reads=_PICTURE,
    ),
    Rule(
        key="punctuation",
        word="punctuation",
        sources=_either("token_class", "punctuation"),
        part="texts",
        threshold=0.4,
        reads=_SEQUENCE,
    ),
    Rule(
        key="newline",
        word="white space",
        sources=_either("token_class", "whitespace", "newline"),
        part="texts",
        threshold=0.4,
        reads=_SEQUENCE,
    ),
    Rule(
        key="digit",
        word="digits",
        sources=_either("token_class", "digit"),
        part="texts",
        threshold=0.4,
        reads=_SEQUENCE,
    ),
    Rule(
        key="rest",
        word="rests",
        sources=_plain("sink") + _plain("first_token", "special_token", "sink_mass"),
        part="texts",
        threshold=0.5,
    ),
    Rule(
        key="near",
        word="stays near",
        sources=_either("distance_histogram", *_NEAR),
        part="texts",
        threshold=0.5,
        reads=_SEQUENCE,
    ),
    Rule(key="wide", word="spreads wide", sources=_plain("entropy_share"), part="texts", threshold=0.7),
)
"""In the order in which they are tried."""

NONE = Rule(key="none", word="no single job", sources=(), part="texts", threshold=0.0)
"""What is said of a head that meets no rule."""


def rules_for(reads: str) -> tuple[Rule, ...]:
    """The rules that make sense for a model that reads `"text"`, `"images"` or `"audio"`.

    Example:
        >>> [rule.key for rule in rules_for("images")]
        ['self', 'neighbour', 'same_row', 'same_column', 'rest', 'wide']
    """
    return tuple(rule for rule in RULES if reads in rule.reads)
