"""Runs a tiny random model of every family with and without watch; writes docs/reference/families.md and the list.

    python docs/families.py          # writes both
    python docs/families.py --check  # writes nothing, fails if they would change

A family is listed only if its outputs under watch are the same bit for bit, every call gives the head outputs the model
used, and every matrix of weights the model itself returns is among those that were told.
"""

import argparse
import importlib.metadata
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import torch  # noqa: E402 - the tests' models are found only now

from hooks.families import FAMILIES  # noqa: E402
from hooks.own import OWN  # noqa: E402
from hooks.tail import Outcome, Tail, examine, is_sound  # noqa: E402
from hooks.tail_fallback import FALLBACK  # noqa: E402
from hooks.tail_seen import SEEN  # noqa: E402

LIST, PAGE = ROOT / "src/multihead/hooks/families.txt", ROOT / "docs/reference/families.md"
_TITLES = {
    "seen": "Seen",
    "fallback": "Seen by fallback",
    "partly": "Partly seen",
    "not seen": "Not seen",
}
_HEAD = """# Families

What `watch`, `gated` and the checkup see of each kind of model. Made by `docs/families.py` with transformers {hf}
and torch {torch}, from a tiny random model of each: its outputs are the same bit for bit with and without watch, the
calls give the head outputs the model used, and all weights the model returns itself are among those told (column
*compared*).

- **Seen**: the model hands queries, keys, values and masks to an exchangeable kernel (transformers'
  `AttentionInterface`), or is built on `multihead.MultiHeadAttention`. Watching costs next to nothing.
- **Seen by fallback**: the model computes attention in its own code. While such a module runs, the functions of torch
  it calls are looked at. Where scores are a product of queries and keys, scaled and added to, these are told; where
  not, the scores themselves (*scores only*).
- **Partly seen**: some layers are told; the others are listed in `Watched.unseen` with the reason.
- **Not seen**: `watch` raises, with the reason.

`print(multihead.hooks.locate(model))` shows what is seen of your own model, without running it.
Not tried: LayoutLMv2 (needs detectron2), Qwen3-Next's linear layers (they have no weights to tell).
"""


@dataclass(frozen=True)
class Row:
    """One family of the list."""

    name: str
    model: str
    outcome: Outcome

    @property
    def wrong(self) -> str:
        """Empty, or what is not as it should be."""
        if not self.outcome.same:
            return "outputs differ under watch"
        if not all(map(is_sound, self.outcome.calls)):
            return "a call does not give the model's head outputs"
        missing = self.outcome.returned - self.outcome.matched
        return f"{missing} matrices of weights differ" if missing and self.outcome.how in ("seen", "fallback") else ""

    @property
    def notes(self) -> str:
        """How it was seen, if not through a seam, and what was not."""
        kernels = sorted({call.kernel for call in self.outcome.calls if "fallback" in call.kernel})
        told = ", ".join(kernel.removesuffix(" (fallback)") for kernel in kernels)
        notes = [told if self.outcome.how != "seen" else f"one head by fallback: {told}"] * bool(kernels)
        notes += ["scores only"] * any(call.problem.head_dim == 0 for call in self.outcome.calls)
        return "; ".join([*notes, *[self.outcome.reason] * bool(self.outcome.reason)])


def rows() -> Iterator[Row]:
    """Every family, run now."""
    core = {name: Tail(name, f.model, f.config, _reads(f.reads), f.kernels[0]) for name, f in FAMILIES.items()}
    for name, tail in (core | SEEN | FALLBACK | OWN).items():
        _say(name)
        outcome = examine(tail)
        yield Row(name, type(outcome.model).__name__, outcome)


def _reads(given: str) -> str:
    return {"sound": "sound to words"}.get(given, given)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def listed(found: list[Row]) -> str:
    """The packaged list."""
    lines = [f"{row.name}\t{row.outcome.how}\t{row.outcome.reason}" for row in found]
    return "\n".join(["# name, how, reason; made by docs/families.py", *lines]) + "\n"


def page(found: list[Row]) -> str:
    """The page of the documentation."""
    parts = [_HEAD.format(hf=importlib.metadata.version("transformers"), torch=torch.__version__.partition("+")[0])]
    for how, title in _TITLES.items():
        chosen = [row for row in found if row.outcome.how == how]
        parts.append(f"## {title} ({len(chosen)})\n\n| family | tried with | compared | notes |\n|---|---|---|---|")
        for row in chosen:
            compared = f"{row.outcome.matched} of {row.outcome.returned}" if row.outcome.returned else "outputs"
            parts[-1] += f"\n| {row.name} | `{row.model}` | {compared} | {row.notes} |"
    return "\n\n".join(part.strip() for part in parts) + "\n"


def main() -> int:
    """Run all, and write or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    warnings.simplefilter("ignore")
    found = list(rows())
    wrong = [f"{row.name}: {row.wrong}" for row in found if row.wrong]
    if wrong:
        _say("\n".join(wrong))
        return 1
    for path, text in ((LIST, listed(found)), (PAGE, page(found))):
        if check and path.read_text(encoding="utf-8") != text:
            _say(f"{path} would change")
            return 1
        if not check:
            path.write_text(text, encoding="utf-8")
    counts = {how: sum(row.outcome.how == how for row in found) for how in _TITLES}
    _say(", ".join(f"{how} {count}" for how, count in counts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
