"""The compiled kernel measures what the sweep in torch measures, and says so."""

import dataclasses

import pytest
import torch

from built import needs_kernel
from hooks.families import FAMILIES
from measure.calls import classes, make_call
from measure.test_statistics import MAKE
from multihead.attend import Softmax
from multihead.attend.native import forced
from multihead.error import MultiheadError
from multihead.hooks import watching
from multihead.measure import DEFAULT, Batch, Run, build_scene, observe, sweep
from multihead.measure.recorder import Recorder
from multihead.measure.sample import Sampler, sample_block
from multihead.measure.statistic import DEFAULT_TARGETS, target, token_class
from multihead.measure.sweep import sweep_blocks
from multihead.pattern import causal, distance, document, global_tokens, sliding_window
from multihead.position import RelativeTable
from multihead.record import Document

EXTRA = {
    "near": sliding_window(5),
    "ahead": ~causal(),
    "apart": global_tokens([3, 9]),
    "groups": [document(torch.arange(700) // 4), document(torch.arange(700) // 7)],
    "fifth": distance(5),
}


def scene_of(call, targets=EXTRA):
    factor = Recorder(DEFAULT)._factors.of(call)
    rows = range(call.problem.batch)
    return build_scene(call, rows, vocabulary=classes(), targets={**DEFAULT_TARGETS, **targets}, factor=factor)


def chosen(scene):
    return (*DEFAULT, *(target(name) for name in scene.targets), token_class(classes().names))


def both(scene, **given):
    """What the kernel and torch make of a call."""
    statistics = chosen(scene)
    return [sweep(scene, statistics, backend=backend, **given)[1] for backend in ("native", "torch")]


def assert_alike(got, want, tolerance=1e-5):
    assert got.keys() == want.keys()
    for name, part in want.items():
        other = got[name]
        assert hasattr(part, "sum") == hasattr(other, "sum"), name
        if not hasattr(part, "sum"):
            assert part.reason == other.reason
            continue
        scale = 1.0 if name == "logit_max" else part.count.abs().clamp(min=1e-9)
        if name.startswith("span90") or name.endswith("_argmax"):
            # Where 90 %, or which weight is the largest, is told by rounding a row may differ: one of whatever count.
            off = (other.sum - part.sum).abs()
            near = (off / scale < 0.2 * (part.sum.abs() / scale) + 0.2) | (off <= 1.0)
            assert bool(near.all()), name
            continue
        torch.testing.assert_close(other.count, part.count, rtol=tolerance, atol=1e-5, msg=f"count of {name}")
        torch.testing.assert_close(
            other.sum / scale,
            part.sum / scale,
            rtol=tolerance,
            atol=tolerance,
            msg=lambda told, name=name: f"{name}: {told}",
        )


@needs_kernel
@pytest.mark.parametrize("name", MAKE)
def test_both_sweeps_agree(name):
    call = MAKE[name]()
    assert_alike(*both(scene_of(call)))


LONG = {
    "encoder": {},
    "decoder": {"mask": causal(), "heads": 6, "kv_heads": 2},
    "window and sinks": {"mask": sliding_window(90), "normaliser": Softmax(sinks=torch.ones(4))},
    "cross": {"cross": True, "kv_len": 300},
    "after a cache": {"mask": causal(), "q_len": 100, "kv_len": 600, "q_offset": 500},
    "softcap and bias": {"mask": causal(), "softcap": 3.0, "bias": torch.randn(1, 4, 1, 650)},
}


@needs_kernel
@pytest.mark.parametrize("name", LONG)
def test_both_sweeps_agree_on_long_calls(name):
    call = make_call(**{"q_len": 650, "dim": 16} | LONG[name])
    assert_alike(*both(scene_of(call)))


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_short_dtypes_are_measured_as_they_are(dtype):
    call = make_call(mask=causal(), q_len=60)
    short = {name: getattr(call.problem, name).to(dtype) for name in "qkv"}
    call = dataclasses.replace(call, problem=dataclasses.replace(call.problem, **short))
    assert_alike(*both(scene_of(call)))


@needs_kernel
@pytest.mark.parametrize("mask", [None, causal(), sliding_window(400)], ids=str)
def test_sampled_rows_are_those_rows(mask):
    call = make_call(q_len=700, dim=8, heads=2, mask=mask)
    scene = scene_of(call)
    draw = Sampler(rows=96).draw(700, "key")
    one, other = (sample_block(scene, chosen(scene), draw, backend=backend) for backend in ("native", "torch"))
    assert "compiled kernel" in one.told
    assert_alike(one.taken, other.taken)
    assert one.spread.keys() == other.spread.keys()


@needs_kernel
def test_any_number_of_threads_and_every_block_give_the_same():
    scene = scene_of(make_call(q_len=600, mask=causal(), batch=1))
    found = []
    for threads in (1, 2, 5):
        with forced(threads=threads):
            found.append(sweep(scene, chosen(scene), backend="native")[1])
    for other in found[1:]:
        for name, part in found[0].items():
            assert torch.equal(part.sum, other[name].sum), name


def why(call, statistics=DEFAULT):
    with pytest.raises(MultiheadError) as told:
        sweep(scene_of(call, {}), statistics, backend="native")
    return str(told.value)


@needs_kernel
def test_what_the_kernel_cannot_measure_is_said():
    call = make_call()
    q = call.problem.q.clone()
    q[0, 0, 3] = torch.nan
    assert "hold NaN" in why(dataclasses.replace(call, problem=dataclasses.replace(call.problem, q=q)))
    wide = {name: getattr(call.problem, name).double() for name in "qkv"}
    assert "float64" in why(dataclasses.replace(call, problem=dataclasses.replace(call.problem, **wide)))
    bias = torch.zeros(1, 1, 13, 13)
    bias[0, 0, 2, 2] = torch.inf
    assert "bias holds" in why(_with(call, bias=bias))
    table = RelativeTable(torch.full((8, 4), torch.nan), max_distance=9)
    assert "holds NaN" in why(_with(call, bias=table))
    assert "a sink is" in why(_with(call, normaliser=Softmax(sinks=torch.tensor([0.0, torch.inf, 0.0, 0.0]))))
    many = {f"t{n}": distance(n) for n in range(60)}
    scene = scene_of(call, many)
    (block,) = sweep_blocks(scene, chosen(scene))
    assert "more than 64 sets of pairs" in block.told


def _with(call, **given):
    return dataclasses.replace(call, problem=dataclasses.replace(call.problem, **given))


def test_an_unknown_backend_is_refused():
    with pytest.raises(MultiheadError, match="pass auto or native or torch"):
        sweep(scene_of(make_call()), DEFAULT, backend="numpy")


def notes_of(model, inputs, **given):
    documents = [Document(name="one", digest="", tokens=9), Document(name="two", digest="", tokens=9)]
    record = observe(model, [Batch(inputs=inputs, document=(0, 1))], documents=documents, **given)
    return [note for note in record.notes if "weights were measured" in note.text]


@needs_kernel
@pytest.mark.parametrize("name", ["llama", "bert"])
def test_a_run_says_that_the_kernel_measured_it(name):
    family = FAMILIES[name]
    model, inputs = family.build(), family.inputs()
    (note,) = notes_of(model, inputs)
    assert note.about == ""
    assert note.text.startswith("weights were measured by the compiled kernel, ")
    (note,) = notes_of(model, inputs, run=Run(backend="torch"))
    assert note.text == "weights were measured in torch, as was asked"


@needs_kernel
@pytest.mark.parametrize("name", FAMILIES)
def test_both_sweeps_agree_on_models(name):
    family = FAMILIES[name]
    model, calls = family.build(family.kernels[0]), []
    with torch.no_grad(), watching(model, calls.append):
        model(**family.inputs())
    assert calls
    with torch.no_grad():
        for call in calls:
            scene = build_scene(call, range(2), targets=DEFAULT_TARGETS)
            statistics = (*DEFAULT, *(target(one) for one in DEFAULT_TARGETS))
            assert_alike(*(sweep(scene, statistics, backend=backend)[1] for backend in ("native", "torch")))
