"""Random records for the tests of this room."""

from multihead.record import CheckupRecord, Document, HeadAddress, HeadStatistics, ModelFacts, Note, Quantity

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
