"""One record in, one page out: a single file that asks the network for nothing."""

from collections.abc import Sequence

from markupsafe import Markup

from multihead.measure.role import QUIET, TWINS, Judgement, judge
from multihead.record import CheckupRecord, Quantity
from multihead.report.column import Column, columns_of
from multihead.report.layout import arrange, is_deep, style_pictures, style_sizes
from multihead.report.number import MISSING, cut, show
from multihead.report.part import Part, parts_of
from multihead.report.payload import add_examples, build_payload, maps_of, to_json
from multihead.report.shell import SCRIPTS, Cell, join_scripts, page_file, policy, template
from multihead.report.speech import Speech, load_speech
from multihead.report.words import (
    describe_left,
    describe_measured,
    describe_over,
    describe_parameters,
    describe_shape,
    gather_notes,
    name_sink,
    pick_starts,
    warn_interrupted,
    warn_lone,
    write_rules,
    write_second,
    write_sentence,
)

BASE, A_HEAD = 150_000, 5_500
"""Bytes of a page at most: so many, and so many more a head."""
_DATA = '<script type="application/json" id="data"></script>'
DOCUMENTS_NAMED = 40
"""Documents named at the foot of the page before the rest is only counted."""


def render_page(record: CheckupRecord, *, lang: str = "en") -> str:
    """The page of a checkup: HTML with its style, script and data inside.

    The same record gives the same bytes. Its content security policy lets it load nothing
    and run nothing but its own script.

    Args:
        record: What was measured; nothing else is looked at.
        lang: Language of the interface: `"en"` or `"zh"`. What was measured stays in its own words.

    Returns:
        The text of one HTML file, at most 150 kB + 5.5 kB a head.

    Raises:
        MultiheadError: The record has no heads, or there is no such language.

    Example:
        `Path("index.html").write_text(render_page(load_checkup(folder)), encoding="utf-8")`
    """
    speech = load_speech(lang, record.reads)
    parts = parts_of(record)
    maps = maps_of(parts[0])
    plain = None if maps is None else maps.plain
    stacks = arrange(record.texts.heads, record.texts.kv_heads, plain)
    judgement = judge(record)
    columns = columns_of(parts, judgement, speech, reads=record.reads)
    sink = name_sink(record, speech)
    sink = (cut(sink[0], 80), cut(sink[1], 80))
    shape = None if plain is None else (plain.shape[1], plain.shape[2])
    style = "\n".join((page_file("page.css"), style_sizes(stacks, shape), style_pictures(stacks, plain)))
    script = join_scripts(*SCRIPTS)
    tabled = [column for column in columns if column.first]
    starts = pick_starts(judgement, parts, speech)
    page = template("page.html.jinja").render(
        w=speech,
        record=record,
        model=cut(record.model.name, 200),
        stacks=stacks,
        deep=is_deep(stacks),
        judgement=judgement,
        heads=_cells(record, judgement, speech),
        rule_rows=write_rules(judgement, sink[0], describe_over(record.texts, speech), speech),
        start=[(str(record.texts.heads[head]), why) for head, why in starts],
        shape=describe_shape(stacks, record.model, speech),
        parameters=describe_parameters(record.model.parameters, speech),
        measured=describe_measured(record.texts, record.reads, speech),
        sentence=write_sentence(judgement, sink[0], speech),
        second=write_second(judgement, speech),
        notes=gather_notes(parts, speech),
        warnings=[said for said in (warn_interrupted(record, speech), warn_lone(record, speech)) if said],
        parts=parts,
        offered=[column for column in columns if column.known() and not column.quantity.content_of],
        tabled=tabled,
        cells=[_printed(column) for column in tabled],
        formulas=_formulas(parts, speech),
        sink=sink,
        can_set_aside=any(q.content_of for q in parts[0].statistics.quantities),
        has_maps=plain is not None,
        has_distances=plain is not None and parts[0].has("distance_histogram", axes=1),
        missing=MISSING,
        quiet_below=QUIET,
        alike_from=TWINS,
        left=describe_left(),
        over=describe_over(record.texts, speech),
        named=DOCUMENTS_NAMED,
        style=Markup(style),
        script=script,
        policy=policy(style, script),
    )
    payload = build_payload(record, parts, stacks, judgement, columns, speech, sink)
    room = BASE + A_HEAD * len(record.texts.heads) - len(page.encode())
    data = to_json(add_examples(payload, parts, stacks, judgement, room=room))
    # Texts from outside are escaped, so this place is found in no other.
    return page.replace(_DATA, f"{_DATA.removesuffix('</script>')}{data}</script>", 1)


def _cells(record: CheckupRecord, judgement: Judgement, speech: Speech) -> list[Cell]:
    return [
        Cell(
            address=str(address),
            key=judgement.rules[place].key,
            word=speech(f"role.{judgement.rules[place].key}"),
            marks=" quiet" if quiet else "",
        )
        for address, place, quiet in zip(
            record.texts.heads, judgement.rule.tolist(), judgement.quiet.tolist(), strict=True
        )
    ]


def _printed(column: Column) -> tuple[str, ...]:
    return tuple(show(float(v), column.quantity.unit) for v in column.values)


def _formulas(parts: Sequence[Part], speech: Speech) -> list[tuple[str, Quantity]]:
    """Every statistic of any part once, numbers before arrays, with its title."""
    found = {q.name: q for part in parts for q in part.statistics.quantities}
    return [(speech.title(q), q) for q in sorted(found.values(), key=lambda q: bool(q.shape))]
