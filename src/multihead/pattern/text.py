"""Reading patterns from text: `causal & (sliding_window(256) | global_tokens([0]))`. Its printer is `str(pattern)`."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType

from torch import Tensor

from multihead.error import MultiheadError, check_kinds
from multihead.pattern.algebra import Pattern
from multihead.pattern.form import FORMS, Form
from multihead.pattern.held import Held, HeldRule, PairRule

_TOKEN = re.compile(
    r"(?P<decimal>-?\d+\.\d+)|(?P<number>-?\d+)|(?P<name>[A-Za-z_]\w*)|#(?P<data>\w+)|(?P<sign>[][&|~(),.])", re.ASCII
)
_SPACE = re.compile(r"\s*", re.ASCII)
_CONTENT = re.compile(r"[0-9a-f]{8}")
# Deeper than anything a person writes, and far from the depth at which Python gives up.
_DEEPEST = 40
_EXCERPT = 30


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int


def parse_pattern(text: str, data: Mapping[str, Tensor | PairRule] | None = None) -> Pattern:
    """Read a pattern from its text form: `parse_pattern(str(p), p.data) == p`.

    `~` binds tighter than `&`, `&` tighter than `|`; parentheses group; `.at(n)` shifts the queries of what it follows,
    `.at(n, m)` its queries and keys, and binds tightest. Names are those of the factories, without parentheses where
    there are no arguments. Nothing is evaluated: what is no pattern is an error.

    Args:
        text: The text form.
        data: The tensors behind `#name`. A name of 8 hexadecimal digits is the content hash that `str` prints, and the
            tensor must have that content; any other name is yours to choose. The functions behind `callable(#name)`:
            what a function does is in no text, so that the one that was printed has to be given.

    Raises:
        MultiheadError: The text is no pattern, with the place of the fault; a tensor is missing or has other content.

    Example:
        >>> import torch
        >>> p = parse_pattern("causal & document(#mine)", {"mine": torch.tensor([0, 0, 1])})
        >>> print(p)
        causal & document(#7be5d957)
        >>> parse_pattern(str(p), p.data) == p
        True
    """
    check_kinds({"text": text}, (str,), "the text form of a pattern, such as 'causal & sliding_window(256)'")
    check_kinds({"data": data}, (Mapping, NoneType), "a mapping from the names in the text to tensors or functions")
    reader = _Reader(text, dict(data or {}))
    return reader.whole()


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    place = _skip(text, 0)
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise _fault(text, place, f"{text[place]!r}", "write names of patterns, whole numbers, #data and & | ~ ( )")
        found.append(_Token(str(match.lastgroup), match[str(match.lastgroup)], place))
        place = _skip(text, match.end())
    return [*found, _Token("end", "", len(text))]


def _skip(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    return match.end() if match else place


def _fault(text: str, place: int, found: str, remedy: str) -> MultiheadError:
    head, tail = max(0, place - _EXCERPT), place + _EXCERPT
    excerpt = ("..." if head else "") + text[head:tail] + ("..." if tail < len(text) else "")
    return MultiheadError(
        asked="a pattern in text form, such as causal & sliding_window(256)",
        arrived=f"{found} at character {place + 1} of {excerpt!r}",
        remedy=remedy,
    )


@dataclass(slots=True)
class _Reader:
    """Recursive descent, one method a level of binding."""

    text: str
    data: dict[str, Tensor | PairRule]
    tokens: list[_Token] = field(init=False)
    place: int = 0
    depth: int = 0

    def __post_init__(self) -> None:
        self.tokens = _tokens(self.text)

    def whole(self) -> Pattern:
        """The text, to its end."""
        pattern = self.either()
        if self.tokens[self.place].kind != "end":
            raise self.fault(self.tokens[self.place], "join patterns with & or |, or close the parentheses")
        return pattern

    def either(self) -> Pattern:
        """Parts joined by `|`; whatever stands in parentheses comes through here, so depth is counted here."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self.fault(self.tokens[self.place], f"nest parentheses at most {_DEEPEST - 1} deep")
        pattern = self.both()
        while self.accept("|"):
            pattern = pattern | self.both()
        self.depth -= 1
        return pattern

    def both(self) -> Pattern:
        """Parts joined by `&`."""
        pattern = self.single()
        while self.accept("&"):
            pattern = pattern & self.single()
        return pattern

    def single(self) -> Pattern:
        """One part behind any number of `~`, with its shifts."""
        flips = 0
        while self.accept("~"):
            flips += 1
        pattern = self.atom()
        while self.accept("."):
            pattern = self.shift(pattern)
        return ~pattern if flips % 2 else pattern

    def shift(self, pattern: Pattern) -> Pattern:
        """What follows the dot."""
        if self.tokens[self.place].text != "at":
            raise self.fault(
                self.tokens[self.place], "after a dot write at(n), the shift of the queries, or at(n, m), m of the keys"
            )
        self.place += 1
        self.expect("(")
        queries = self.number()
        keys = self.number() if self.accept(",") else 0
        self.expect(")")
        return pattern.at(q_offset=queries, k_offset=keys)

    def atom(self) -> Pattern:
        """A name with its arguments, or a group."""
        token = self.take()
        if token.text == "(":
            pattern = self.either()
            self.expect(")")
            return pattern
        if token.kind != "name":
            raise self.fault(token, "put a pattern here, such as causal")
        form = FORMS.get(token.text)
        if form is None:
            close = difflib.get_close_matches(token.text, FORMS, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise self.fault(token, f"{hint}there are {', '.join(FORMS)}")
        return self.build(token, form)

    def build(self, name: _Token, form: Form) -> Pattern:
        """A pattern from its arguments."""
        arguments = self.arguments() if self.accept("(") else []
        if not form.fits([kind for kind, _ in arguments]):
            told = ", ".join(kind for kind, _ in arguments) or "no arguments"
            raise self.fault(name, f"it takes {form}", found=f"{name.text} with {told}")
        try:
            return form.build(*(value for _, value in arguments))
        except MultiheadError as error:
            where = f"{error.arrived}, at character {name.start + 1}"
            raise MultiheadError(asked=error.asked, arrived=where, remedy=error.remedy) from error

    def arguments(self) -> list[tuple[str, object]]:
        """What stands between the parentheses, each with its kind."""
        found: list[tuple[str, object]] = []
        while not self.accept(")"):
            if found:
                self.expect(",")
            found.append(self.argument())
        return found

    def argument(self) -> tuple[str, object]:
        """One number, list of numbers, #data or pattern."""
        token = self.tokens[self.place]
        if token.kind == "number":
            return "number", self.number()
        if token.kind == "decimal":
            return "decimal", float(self.take().text)
        if token.kind == "data":
            return self.held()
        if self.accept("["):
            return "list", self.numbers()
        return "pattern", self.either()

    def numbers(self) -> list[int]:
        """A list of numbers, behind its bracket."""
        found: list[int] = []
        while not self.accept("]"):
            if found:
                self.expect(",")
            found.append(self.number())
        return found

    def number(self) -> int:
        """A whole number."""
        token = self.take()
        # Python refuses to read numbers of thousands of digits; nothing here has more than 13.
        if token.kind != "number" or len(token.text) > 15:
            raise self.fault(token, "put a whole number here, up to 2**40")
        return int(token.text)

    def held(self) -> tuple[str, Tensor | HeldRule]:
        """The tensor or function behind a #name, with its kind."""
        token = self.take()
        given = self.data.get(token.text)
        if not isinstance(given, Tensor):
            if callable(given):
                return "#function", HeldRule(given, token.text)
            known = ", ".join(map(str, self.data)) or "no data"
            arrived = f"#{token.text}, which is {type(given).__name__}," if given is not None else f"#{token.text}"
            what = "function" if self.tokens[self.place - 3].text == "callable" else "tensor"
            raise self.fault(token, f"pass data={{'{token.text}': {what}}}; there is {known}", found=arrived)
        content = Held(given, what="data").name if _CONTENT.fullmatch(token.text) else token.text
        if token.text != content:
            remedy = (
                f"pass the tensor that was printed; the one given is #{content}; a name you choose may be anything else"
            )
            raise self.fault(token, remedy, found=f"#{token.text}, a content hash,")
        return "#data", given

    def take(self) -> _Token:
        """The next token; the end stays."""
        token = self.tokens[self.place]
        self.place += token.kind != "end"
        return token

    def accept(self, sign: str) -> bool:
        """Take the sign if it is next."""
        token = self.tokens[self.place]
        found = token.kind == "sign" and token.text == sign
        self.place += found
        return found

    def expect(self, sign: str) -> None:
        """Take the sign, which must be next."""
        if not self.accept(sign):
            raise self.fault(self.tokens[self.place], f"put {sign!r} here")

    def fault(self, token: _Token, remedy: str, *, found: str = "") -> MultiheadError:
        """An error that says what stands where."""
        told = found or (repr(token.text) if token.text else "the end")
        return _fault(self.text, token.start, told, remedy)
