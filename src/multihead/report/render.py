"""One record in, one page out: a single file that asks the network for nothing."""

import base64
import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from multihead.record import CheckupRecord, Quantity
from multihead.record.heads import Array
from multihead.report.layout import arrange, is_deep, style_pictures, style_sizes
from multihead.report.number import MISSING, plural, show
from multihead.report.part import Part, parts_of
from multihead.report.payload import MAP, build_payload, to_json
from multihead.report.rule import QUIET, Facts, Rule, find_facts
from multihead.report.words import (
    describe_parameters,
    describe_shape,
    describe_texts,
    gather_notes,
    warn_interrupted,
    write_quiet,
    write_sentence,
)

DOCUMENTS_NAMED = 40
"""Documents named at the foot of the page before the rest is only counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of the table.

    Args:
        part: Name of the part it belongs to.
        quantity: The statistic.
        cells: Printed values, one a head.
    """

    part: str
    quantity: Quantity
    cells: tuple[str, ...]


def render_page(record: CheckupRecord) -> str:
    """The page of a checkup: HTML with its style, script and data inside.

    The same record gives the same bytes. Its content security policy lets it load nothing
    and run nothing but its own script.

    Args:
        record: What was measured; nothing else is looked at.

    Returns:
        The text of one HTML file, at most 150 kB + 5.5 kB a head.

    Raises:
        MultiheadError: The record has no heads.

    Example:
        `Path("index.html").write_text(render_page(load_checkup(folder)), encoding="utf-8")`
    """
    parts = parts_of(record)
    texts = parts[0]
    maps = _maps(texts)
    stacks = arrange(record.texts.heads, record.texts.kv_heads, maps)
    facts = find_facts(parts)
    shape = None if maps is None else (maps.shape[1], maps.shape[2])
    style = "\n".join((_page_file("page.css"), style_sizes(stacks, shape), style_pictures(stacks, maps)))
    script = _page_file("page.js")
    columns, scalars = _columns(parts), _scalars(parts)
    return _template().render(
        record=record,
        stacks=stacks,
        deep=is_deep(stacks),
        facts=facts,
        head_rules=[facts.rules[i] for i in facts.rule],
        quiet=[bool(q) for q in facts.quiet],
        rule_rows=_rule_rows(facts),
        start=[(rule.word, str(record.texts.heads[i])) for rule, i in facts.strongest()],
        shape=describe_shape(stacks, record.model),
        parameters=describe_parameters(record.model.parameters),
        measured=describe_texts(record.texts),
        sentence=write_sentence(facts),
        writes=write_quiet(facts),
        notes=gather_notes(parts),
        warning=warn_interrupted(record),
        parts=parts,
        scalars=scalars,
        offered=[(q, where) for q, where in scalars if _is_known(q, parts)],
        arrays=list({q.name: q for part in parts for q in part.statistics.quantities if q.shape}.values()),
        columns=columns,
        has_maps=maps is not None,
        missing=MISSING,
        quiet_below=QUIET,
        named=DOCUMENTS_NAMED,
        plural=plural,
        style=Markup(style),
        script=Markup(script),
        data=Markup(to_json(build_payload(record, parts, stacks, facts))),
        policy=_policy(style, script),
    )


def _maps(texts: Part) -> Array | None:
    if not texts.has(MAP) or len(texts.statistics.quantity(MAP).shape) != 2:
        return None
    return texts.value(MAP)


def _scalars(parts: Sequence[Part]) -> list[tuple[Quantity, str]]:
    """Every number of any part once, with the names of the parts that hold it."""
    found: dict[str, tuple[Quantity, list[str]]] = {}
    for part in parts:
        for quantity in part.statistics.scalars():
            found.setdefault(quantity.name, (quantity, []))[1].append(part.name)
    return [(quantity, " ".join(names)) for quantity, names in found.values()]


def _is_known(quantity: Quantity, parts: Sequence[Part]) -> bool:
    """Whether any head has a value: what has none cannot colour the grid."""
    return any(not np.isnan(part.value(quantity.name)).all() for part in parts if part.has(quantity.name))


def _columns(parts: Sequence[Part]) -> list[Column]:
    return [
        Column(
            part=part.name,
            quantity=quantity,
            cells=tuple(show(float(v), quantity.unit) for v in part.value(quantity.name)),
        )
        for part in parts
        for quantity in part.statistics.scalars()
    ]


def _rule_rows(facts: Facts) -> list[tuple[Rule, int | None]]:
    """Every rule with its count; None where the record lacks its statistic."""
    counts: list[tuple[Rule, int | None]] = list(zip(facts.rules, facts.counts(), strict=True))
    return counts[:-1] + [(rule, None) for rule in facts.unread] + counts[-1:]


def _policy(style: str, script: str) -> str:
    return (
        "default-src 'none'; img-src data:; "
        f"style-src '{_digest(style)}'; script-src '{_digest(script)}'; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode()


@functools.cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_page_file("page.html.jinja"))


@functools.cache
def _page_file(name: str) -> str:
    return (files("multihead.report") / "page" / name).read_text(encoding="utf-8")
