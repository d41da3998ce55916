"""The words of the interface, in English or Chinese: every sentence of the page comes from one of two dictionaries."""

import functools
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files

from multihead.error import MultiheadError
from multihead.record import Quantity

LANGUAGES = ("en", "zh")
_TAGS = {"en": "en", "zh": "zh-Hans"}
_SUFFIXES = {"_content": "content", "_argmax": "argmax", "_even": "even"}


class Speech:
    """The words of one language.

    Args:
        words: Sentence by key, with `{name}` where something is filled in.
    """

    def __init__(self, words: Mapping[str, str]) -> None:
        self.words = words
        self.tag = _TAGS[words["lang"]]

    def __call__(self, key: str, **filled: object) -> str:
        """The sentence of a key, filled in.

        Example:
            >>> load_speech("en")("layer", n=3)
            'layer 3'
        """
        text = self.words[key]
        for name, value in filled.items():
            text = text.replace("{" + name + "}", str(value))
        return text

    def count(self, key: str, n: int) -> str:
        """`1 head`, `2 heads`, `1,024 heads`."""
        return self(f"{key}.{'one' if n == 1 else 'other'}", n=f"{n:,}")

    def listing(self, parts: Sequence[str]) -> str:
        """`a`, `a and b`, `a, b and c`."""
        if len(parts) < 2:
            return "".join(parts)
        return self("comma").join(parts[:-1]) + self("and") + parts[-1]

    def knows(self, key: str) -> bool:
        """Whether there is a sentence of this key."""
        return key in self.words

    def title(self, quantity: Quantity) -> str:
        """What a statistic is called in full; its own title if it is not one of the house."""
        return self._named("stat", quantity.name) or quantity.title

    def short(self, quantity: Quantity) -> str:
        """What a statistic is called in a list; its own name if it is not one of the house."""
        return self._named("short", quantity.name) or quantity.name.replace("_", " ")

    def unit(self, unit: str) -> str:
        """A unit's word; the unit itself if it is not one of the house."""
        return self.words.get(f"unit.{unit}", unit)

    def stack(self, name: str) -> str:
        """A stack's name; the name itself if it is not one of the house."""
        return self.words.get(f"stack.{name}", name)

    def label(self, name: str) -> str:
        """The name of an entry, e.g. a class of tokens."""
        return self.words.get(f"class.{name.replace(' ', '_')}", name)

    def of_script(self) -> dict[str, str]:
        """The sentences the page's script says."""
        known = ("comma", "and", "colon", "space")
        # Of a role the script says the name alone, not how many heads have it.
        return {
            k: v
            for k, v in self.words.items()
            if k.startswith(("s.", "said.")) or (k.startswith("role.") and k.count(".") == 1) or k in known
        }

    def _named(self, kind: str, name: str) -> str:
        if f"{kind}.{name}" in self.words:
            return self.words[f"{kind}.{name}"]
        for suffix, of in _SUFFIXES.items():
            if name.endswith(suffix) and (stem := self._named(kind, name.removesuffix(suffix))):
                return self(f"{kind}.of.{of}", title=stem)
        return ""


_PLACES = "places."
"""Where the words begin that stand for those of tokens where a model reads something else."""


@functools.cache
def load_speech(lang: str, reads: str = "text") -> Speech:
    """The words of a language.

    Args:
        lang: `"en"` or `"zh"`.
        reads: What the model reads: places of pictures and recordings are not called tokens.

    Raises:
        MultiheadError: There are no words in this language.
    """
    if lang not in LANGUAGES:
        raise MultiheadError(
            asked=f"the page in one of its languages: {', '.join(LANGUAGES)}",
            arrived=f"lang={lang!r}",
            remedy="choose one of them",
        )
    path = files("multihead.report") / "page" / f"words.{lang}.json"
    words: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    places = {key.removeprefix(_PLACES): said for key, said in words.items() if key.startswith(_PLACES)}
    return Speech(words if reads == "text" else words | places)
