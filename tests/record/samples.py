"""Random records for the tests of this room."""

from dataclasses import replace

import numpy as np

from multihead.record import (
    CheckupRecord,
    Document,
    Example,
    HeadAddress,
    HeadStatistics,
    ModelFacts,
    Note,
    Quantity,
    Sampling,
)

QUANTITIES = (
    Quantity(name="entropy", title="entropy", unit="nats", formula="-sum A log A"),
    Quantity(name="logit_max", title="largest logit", unit="logit", formula="max s", fold="max"),
    Quantity(name="offsets", title="offsets", unit="share", formula="A[i, i-o]", shape=(3,), labels=("-1", "0", "1")),
    Quantity(name="pooled_map", title="map", unit="share", formula="mean of A in a bin", shape=(2, 2)),
)


def statistics(rng, documents=3, layers=2, heads=2, name="model"):
    addresses = tuple(HeadAddress("", layer, head) for layer in range(layers) for head in range(heads))
    shapes = {q.name: (documents, len(addresses), *q.shape) for q in QUANTITIES}
    return HeadStatistics(
        model=name,
        heads=addresses,
        kv_heads=tuple(a.head // 2 for a in addresses),
        documents=tuple(
            Document(name=f"text {i}", digest=f"{rng.integers(2**60):016x}", tokens=int(rng.integers(2, 500)))
            for i in range(documents)
        ),
        quantities=QUANTITIES,
        sums={k: rng.standard_normal(s) * 1e3 for k, s in shapes.items()},
        counts={k: rng.integers(0, 3, s).astype(float) for k, s in shapes.items()},
        notes=(Note(about="L0", quantity="entropy", text="2 rows held NaN"),),
    )


def checkup(rng, *, repeats=True):
    return CheckupRecord(
        model=ModelFacts(
            name='a "model" </script>',
            architecture="BertModel",
            parameters=123,
            causal=None,
            max_length=512,
            special_tokens=("[CLS]", "[SEP]"),
        ),
        texts=statistics(rng),
        repeats=statistics(rng, documents=2) if repeats else None,
        created="2026-01-02T03:04:05Z",
        versions={"torch": "2.13.0"},
        settings={"max_length": "512"},
        complete=bool(rng.integers(2)),
    )


def everything(rng, documents=3):
    """Statistics with every field that may be empty."""
    plain = statistics(rng, documents=documents)
    shapes = {k: v.shape for k, v in plain.sums.items()}
    units = tuple(sorted(int(u) for u in rng.integers(0, documents, 7)))
    scalars = [q.name for q in plain.scalars()]
    return replace(
        plain,
        units=units,
        unit_sums={k: rng.standard_normal((7, 4)) for k in scalars},
        unit_counts={k: rng.integers(0, 600, (7, 4)).astype(float) for k in scalars},
        sampling={
            k: Sampling(
                sums=np.where(rng.random(s) < 0.1, np.inf, rng.gamma(1.0, 1.0, s)),
                counts=rng.gamma(1.0, 1.0, s).astype(np.float32).astype(float),
                both=rng.standard_normal(s),
                third=rng.standard_normal(s) * 1e9,
                coins=rng.gamma(1.0, 1.0, s),
                known_sums=rng.standard_normal(s),
                known_counts=rng.integers(0, 70000, s).astype(float),
            )
            for k, s in shapes.items()
            if k != "pooled_map"
        },
        examples=(
            example(rng, document=0),
            replace(example(rng, document=documents - 1), grid=(2, 3), picture=b"\x89PNG \x00\xff"),
        ),
    )


def example(rng, *, document):
    return Example(
        document=document,
        start=5,
        stack="",
        heads=(0, 2),
        queries=("a", "</script>", "\u202eb", "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16")),
        keys=("a", "b"),
        places=rng.integers(-1, 2, (2, 4, 3)).astype(np.int16),
        weights=rng.random((2, 4, 3)).astype(np.float32),
        sink=rng.random((2, 4)).astype(np.float32),
        elsewhere=rng.random((2, 4)).astype(np.float32),
    )
