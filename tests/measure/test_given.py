"""Odd arguments to `observe`: what is plainly meant works, the rest is refused in words."""

import inspect
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from hooks.families import FAMILIES
from multihead.error import MultiheadError
from multihead.hooks import locate
from multihead.measure import Batch, Run, discard_journal, observe, watch
from multihead.pattern import causal
from multihead.record import Document

BATCH = Batch(inputs={"input_ids": torch.tensor([[5, 6, 7, 8]])}, document=(0,))
DOCUMENT = Document(name="a", digest="a", tokens=4)


@pytest.fixture(scope="module")
def model():
    return FAMILIES["bert"].build()


def test_generators_and_single_ones_will_do(model):
    want = observe(model, [BATCH], documents=[DOCUMENT])
    assert observe(model, (b for b in [BATCH]), documents=(d for d in [DOCUMENT])) == want
    assert observe(model, BATCH, documents=DOCUMENT, run=None) == want


def _run(**fields):
    """A run that was not looked at by the type hook of the tests."""
    run = Run()
    for name, value in fields.items():
        object.__setattr__(run, name, value)
    return run


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"model": None}, r"a model, a torch\.nn\.Module"),
        ({"batches": []}, r"at least one batch .*\n  got: none"),
        ({"batches": iter([])}, "got: a list_iterator without any left"),
        ({"batches": None}, r"`observe` a list of batches: .*\n  got: NoneType 'None'"),
        ({"batches": [{"input_ids": 5}]}, r"got: dict .*\n  fix: pass a Batch"),
        ({"documents": None}, "`observe` a list of documents"),
        ({"documents": ["a"]}, r"got: str 'a'\n  fix: pass a Document"),
        ({"documents": []}, "rows of document 0"),
        ({"run": {"rows": 64}}, "`run`, how a run goes"),
        ({"run": _run(rows="64")}, "got: rows='64'"),
        ({"run": _run(rows=64, seed=0.5)}, "got: seed='0.5'"),
        ({"run": _run(journal=5)}, "the folder of a journal"),
        ({"run": _run(on_batch=5)}, "a function as on_batch"),
        ({"statistics": 5}, "statistics to measure"),
        ({"statistics": ["entropy"]}, r"statistics to measure.*\n  got: str 'entropy'"),
        ({"targets": 5}, "targets: patterns by name"),
        ({"targets": {"a": 5}}, "as target 'a'\n  got: int '5'"),
        ({"targets": {"a": "causal"}}, r"got: str 'causal'\n  fix: .* mh\.parse_pattern"),
        ({"targets": {"a": [causal(), 5]}}, "got: int '5'"),
        ({"targets": {5: causal()}}, "as target 5"),
        ({"classes": "x"}, "classes of tokens"),
        ({"batches": [replace(BATCH, document=(0, 0))]}, "got: 2 for 1 rows of input_ids"),
    ],
)
def test_odd_arguments_are_refused_in_words(given, says, model):
    asked = {"model": model, "batches": [BATCH], "documents": [DOCUMENT], **given}
    with pytest.raises(MultiheadError, match=says):
        inspect.unwrap(observe)(**asked)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"inputs": None}, "the inputs of a batch by name"),
        ({"inputs": torch.ones(1, 3)}, "got: Tensor"),
        ({"inputs": {"input_ids": [[5, 6]]}}, "got: a list as input_ids"),
        ({"document": 0}, "document=0"),
        ({"document": ()}, r"document=\(\)"),
        ({"document": ("a",)}, r"document=\('a',\)"),
        ({"document": None}, "document=None"),
    ],
)
def test_batches_are_looked_at_as_they_are_made(fields, says):
    batch = Batch(inputs={}, document=(0,))
    for name, value in fields.items():
        object.__setattr__(batch, name, value)
    with pytest.raises(MultiheadError, match=says):
        batch.__post_init__()


def test_what_is_no_model_is_refused_everywhere():
    says = r"a model, a torch\.nn\.Module"
    with pytest.raises(MultiheadError, match=says):
        inspect.unwrap(locate)("bert")
    with pytest.raises(MultiheadError, match=says), contextmanager(inspect.unwrap(watch))("bert"):
        pass


def test_switches_are_inputs_of_a_batch_too(model, tmp_path):
    batch = Batch(inputs={"input_ids": torch.tensor([[5, 6, 7, 8]])}, document=(0,))
    object.__setattr__(batch, "inputs", {**batch.inputs, "output_hidden_states": False})
    want = observe(model, [BATCH], documents=[DOCUMENT])
    for _ in range(2):
        assert observe(model, [batch], documents=[DOCUMENT], run=Run(journal=str(tmp_path))) == want
    with pytest.raises(MultiheadError, match="the folder of a journal to delete"):
        inspect.unwrap(discard_journal)(None)


def test_documents_of_a_batch_may_come_as_a_list():
    batch = Batch(inputs={}, document=(0,))
    object.__setattr__(batch, "document", [0, 1])
    batch.__post_init__()
    assert batch.document == (0, 1)
