"""A checkup from Python: MiniLM on two texts of your own, three numbers, and a page."""

import sys
from pathlib import Path

import multihead as mh

TEXTS = [
    "The keeper lit the lamp at dusk, and the lamp burned until the keeper slept.",
    "Every harbour keeps two books: one for the ships that came, and one for the ships that did not.",
]


def main(out="checkup-example"):
    opened = mh.open_model("minilm")
    report = mh.checkup(opened, material=TEXTS)
    head = report.statistics["L0.H2"]
    print(f"L0.H2 puts {head.previous:.0%} of its weight on the token before; entropy {head.entropy:.2f} nats")
    print("page:", report.save(Path(out)))


if __name__ == "__main__":
    main(*sys.argv[1:2])
