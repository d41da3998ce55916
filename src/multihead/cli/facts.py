"""What a checkup and a comparison hold, as plain values for JSON; what is not a number becomes None."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from multihead.measure.role import Comparison, Drift, Flip, HeadLabel, label_heads
from multihead.record import CheckupRecord, HeadStatistics
from multihead.workflow import Compared, Report

MOST_MOVED = 5


def of_checkup(report: Report, *, page: Path, seconds: float) -> dict[str, Any]:
    """Everything that is one number a head, with labels; arrays and sums lie in the record beside the page."""
    record = report.record
    return {
        "model": _model(record),
        "reads": record.reads,
        "complete": record.complete,
        "seconds": round(seconds, 3),
        "page": str(page),
        "record": str(page.parent / "record.json"),
        "created": record.created,
        "settings": dict(record.settings),
        "documents": [{"name": d.name, "digest": d.digest, "tokens": d.tokens} for d in record.texts.documents],
        "heads": [
            row | {"looks_like": _label(label)}
            for row, label in zip(record.texts.table(), label_heads(record), strict=True)
        ],
        "repeats": record.repeats.table() if record.repeats is not None else None,
        "notes": [
            *_notes(record.texts, part="texts"),
            *(_notes(record.repeats, part="repeats") if record.repeats is not None else ()),
        ],
    }


def of_comparison(compared: Compared, *, page: Path) -> dict[str, Any]:
    """Flips, and for every statistic how far it moved."""
    found = compared.comparison
    return {
        "before": _model(compared.before.record),
        "after": _model(compared.after.record),
        "same_documents": found.same_documents,
        "different_settings": {name: list(both) for name, both in compared.different_settings.items()},
        "page": str(page),
        "heads": len(found.heads),
        "flips": [_flip(flip) for flip in found.flips],
        "drift": [_drift(found, drift) for drift in found.drifts],
    }


def _model(record: CheckupRecord) -> dict[str, Any]:
    model = record.model
    return {
        "name": model.name,
        "architecture": model.architecture,
        "parameters": model.parameters,
        "causal": model.causal,
        "max_length": model.max_length,
        "heads": len(record.texts),
    }


def _label(label: HeadLabel) -> dict[str, Any]:
    return {
        "key": label.key,
        "word": label.word,
        "value": _number(label.value),
        "low": _number(label.low),
        "high": _number(label.high),
        "even_spread": _number(label.even),
        "threshold": label.threshold,
        "statistic": label.statistic,
        "measured_on": label.part,
        "unsure": label.unsure,
        "rival": label.rival,
        "writes_little": label.quiet,
        "twins": [str(head) for head in label.twins],
    }


def _flip(flip: Flip) -> dict[str, Any]:
    return {
        "head": str(flip.before.head),
        "before": _label(flip.before),
        "after": _label(flip.after),
        "sure": flip.sure,
    }


def _drift(found: Comparison, drift: Drift) -> dict[str, Any]:
    size = np.nan_to_num(np.abs(drift.change), nan=-1.0)
    return {
        "statistic": drift.quantity.name,
        "measured_on": drift.part,
        "root_mean_square": drift.size(),
        "heads_apart": int(drift.apart.sum()),
        "most_moved": [
            {
                "head": str(found.heads[i]),
                "before": _number(float(drift.before[i])),
                "after": _number(float(drift.after[i])),
                "apart": bool(drift.apart[i]),
            }
            for i in np.argsort(-size, kind="stable")[:MOST_MOVED].tolist()
            if size[i] > 0
        ],
    }


def _notes(statistics: HeadStatistics, *, part: str) -> list[dict[str, str]]:
    return [{"about": n.about, "statistic": n.quantity, "text": n.text, "measured_on": part} for n in statistics.notes]


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
