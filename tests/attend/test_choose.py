"""Which backend runs, what a named one says when it cannot, and the printed explanation."""

import pickle
import re

import pytest
import torch

from attend.oracle import qkv
from built import NATIVE, needs_kernel
from multihead.attend import (
    AUTOMATIC,
    BY_NAME,
    Backend,
    Sigmoid,
    attention,
    attention_lse,
    choose,
    explain_backend,
    find,
    make_problem,
    native,
)
from multihead.error import BackendRefused, MultiheadError
from multihead.native import NOT_BUILT
from multihead.pattern import causal


@pytest.fixture
def unbuilt(monkeypatch):
    """As on a machine without the compiled kernel."""
    monkeypatch.setattr(native, "load", lambda: None)
    monkeypatch.setattr(native, "why_none", lambda: NOT_BUILT)


@pytest.fixture
def fastest(monkeypatch):
    """As where our kernel was measured to be the fastest at everything."""
    monkeypatch.setattr(native, "prefers", lambda problem, variant, processor: None)


@needs_kernel
@pytest.mark.usefixtures("fastest")
def test_the_first_that_can_is_taken():
    q, k, v = qkv()
    assert [backend.NAME for backend in AUTOMATIC] == ["native", "blockwise", "rearranged", "sdpa", "tiled"]
    assert attention_lse(q, k, v).backend == "native"
    assert attention_lse(q, k, v, softcap=1.0).backend == "native"
    assert attention_lse(q[:0], k[:0], v[:0]).backend == "native"
    assert attention_lse(q.double(), k.double(), v.double()).backend == "sdpa"
    assert attention_lse(q, k, v.requires_grad_()).backend == "sdpa"
    assert attention_lse(q, k, v, softcap=1.0).backend == "tiled"
    with torch.no_grad():
        assert attention_lse(q, k, v).backend == "native"
    assert attention_lse(q, k, v.detach(), dropout=0.1).backend == "tiled"
    assert attention_lse(q, k, v.detach(), normaliser=Sigmoid()).backend == "tiled"


@needs_kernel
def test_what_the_table_prefers_is_taken_where_it_can(monkeypatch):
    q, k, v = qkv()
    told = "the measured table prefers sdpa for full, float32, on avx2"
    monkeypatch.setattr(native, "prefers", lambda problem, variant, processor: told)
    assert attention_lse(q, k, v).backend == "sdpa"
    assert attention_lse(q, k, v, softcap=1.0).backend == "native"
    assert attention_lse(q, k, v, backend="native").backend == "native"
    explanation = explain_backend(q, k, v)
    assert explanation.chosen == "sdpa"
    assert explanation.verdicts[0].behind == told
    assert re.search(rf"native +could: compiled kernel, .*; {told}$", str(explanation), re.MULTILINE)
    assert explain_backend(q, k, v, softcap=1.0).verdicts[0].behind == ""
    assert explain_backend(q, k, v, backend="native").chosen == "native"


@pytest.mark.usefixtures("unbuilt")
def test_without_the_compiled_kernel_the_others_run():
    q, k, v = qkv()
    assert attention_lse(q, k, v).backend == "sdpa"
    assert attention_lse(q, k, v, softcap=1.0).backend == "tiled"
    assert attention_lse(q, k, v, dropout=0.1).backend == "tiled"
    assert attention_lse(q, k, v, normaliser=Sigmoid()).backend == "tiled"
    assert attention_lse(q, k, v, bias=torch.zeros(6, 7, requires_grad=True)).backend == "tiled"
    assert attention_lse(q[:0], k[:0], v[:0]).backend == "tiled"


@pytest.mark.parametrize("name", [NATIVE, "sdpa", "tiled", "flex", "reference"])
def test_a_named_backend_runs(name):
    assert attention_lse(*qkv(), backend=name).backend == name


@pytest.mark.usefixtures("unbuilt")
def test_a_named_backend_that_cannot_raises_with_its_reasons_and_who_can():
    with pytest.raises(BackendRefused) as raised:
        attention(*qkv(), softcap=1.0, backend="sdpa")
    assert raised.value.reasons == {"sdpa": ("its kernels have no softcap",)}
    told = str(raised.value).splitlines()
    assert told[0].startswith("attention of q (2, 4, 6, 8), k (2, 2, 7, 8), v (2, 2, 7, 8), float32 on cpu, softcap 1")
    assert told[0].endswith("by backend='sdpa'")
    assert told[1] == "  got: sdpa: its kernels have no softcap"
    assert told[2] == '  fix: pass backend="auto", or one that can run it: tiled, flex, reference'
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_when_none_can_every_reason_is_told(monkeypatch):
    for backend in AUTOMATIC:
        monkeypatch.setattr(backend, "why_not", lambda problem: ["not today"])
    with pytest.raises(BackendRefused) as raised:
        attention(*qkv())
    assert raised.value.reasons == {backend.NAME: ("not today",) for backend in AUTOMATIC}


def test_an_unknown_backend():
    names = "native, blockwise, rearranged, sdpa, tiled, flex, reference"
    message = rf"this library\n  got: backend='flash'\n  fix: pass \"auto\" or one of {names}"
    for call in (attention, attention_lse, explain_backend):
        with pytest.raises(MultiheadError, match=message):
            call(*qkv(), backend="flash")


def test_every_backend_has_the_names_of_one():
    for backend in (*AUTOMATIC, *BY_NAME):
        assert isinstance(backend, Backend)
        assert find(backend.NAME) is backend
        dtypes = {torch.float32, torch.float16, torch.bfloat16}
        assert set(backend.TOLERANCE) == dtypes | ({torch.float64} if backend.NAME != "native" else set())
    assert choose(make_problem(*qkv()), "tiled") is find("tiled")


@pytest.mark.usefixtures("unbuilt")
def test_the_explanation_has_a_line_for_each():
    q, k, v = qkv(kv_len=6)
    explanation = explain_backend(q, k, v, mask=causal(), softcap=1.0, normaliser=Sigmoid())
    assert explanation.chosen == "tiled"
    assert str(explanation).splitlines() == [
        "q (2, 4, 6, 8), k (2, 2, 6, 8), v (2, 2, 6, 8), float32 on cpu, mask causal, softcap 1, Sigmoid(bias=0.0)",
        "  native      cannot: it has softmax only, not Sigmoid(bias=0.0); compiled kernel not built: install a C++ "
        "compiler (g++ or clang++), then multihead again from its sources",
        "  blockwise   cannot: it is for masks that are, or contain by &, chosen blocks of 16 keys or more; it has "
        "softmax only, not Sigmoid(bias=0.0)",
        "  rearranged  cannot: it is for masks that differ by head, or are of every n-th key, alone or in a window; "
        "it has softmax only, not Sigmoid(bias=0.0)",
        "  sdpa        cannot: its kernels have softmax only, not Sigmoid(bias=0.0); its kernels have no softcap",
        "  tiled       chosen: plain torch, bands of 6 queries",
        "  flex        cannot: FlexAttention has softmax only, not Sigmoid(bias=0.0)",
        "  reference   only by name: the definition; stores every weight, 0.0 MiB at a time",
    ]


@pytest.mark.usefixtures("unbuilt")
def test_the_explanation_of_a_named_backend():
    q, k, v = qkv()
    named = explain_backend(q, k, v, backend="reference")
    assert named.chosen == "reference"
    assert [line.split()[1] for line in str(named).splitlines()[1:]] == [
        "cannot:",
        "cannot:",
        "cannot:",
        "could:",
        "could:",
        "only",
        "chosen:",
    ]
    refused = explain_backend(q, k, v, softcap=1.0, backend="sdpa")
    assert refused.chosen is None
    assert [(verdict.backend, verdict.reasons, verdict.automatic) for verdict in refused.verdicts[3:]] == [
        ("sdpa", ("its kernels have no softcap",), True),
        ("tiled", (), True),
        ("flex", (), False),
        ("reference", (), False),
    ]


def test_the_cost_of_the_reference_is_told():
    q, k, v = qkv(batch=1, heads=8, kv_heads=8, q_len=1024, kv_len=1024)
    assert "stores every weight, 32.0 MiB at a time" in str(explain_backend(q, k, v))
