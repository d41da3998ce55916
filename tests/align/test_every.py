"""What holds for every aligner: steps and the parallel form, padding, batch mates, beams, gradients."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from align.by_hand import BUILD, PARALLEL, build, source, states, walk
from multihead.align import Aligner


@pytest.mark.parametrize("name", PARALLEL)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_many_at_once_are_so_many_steps(name, dtype):
    aligner = build(name, dtype)
    memory, queries = aligner.remember(source(aligner, dtype=dtype)), states(aligner, dtype=dtype)
    assert aligner.support.parallel
    told = aligner(queries, memory)
    contexts, weights, after = walk(aligner, queries, memory)
    close = {"rtol": 1e-12, "atol": 1e-14} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(told.weights, weights, **close)
    torch.testing.assert_close(told.context, contexts, **close)
    assert (told.state is not None) == aligner.support.carries == (after[-1] is not None)


@pytest.mark.parametrize("name", BUILD)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("garbage", [1e30, float("nan")])
def test_what_lies_in_padding_changes_nothing(name, side, garbage):
    aligner = build(name)
    values, queries = source(aligner), states(aligner)
    alone = walk(aligner, queries, aligner.remember(values))[0]
    trash = torch.full((2, 3, aligner.memory_dim), garbage, dtype=torch.float64)
    keep = torch.arange(9) >= 3 if side == "left" else torch.arange(9) < 6
    padded = torch.cat([trash, values] if side == "left" else [values, trash], 1).requires_grad_()
    told, weights, _ = walk(aligner, queries, aligner.remember(padded, keep.expand(2, -1)))
    torch.testing.assert_close(told, alone, rtol=1e-12, atol=1e-13)
    assert not weights[..., ~keep].any()
    told.square().sum().backward()
    assert not padded.grad[:, ~keep].any()
    assert bool(padded.grad.isfinite().all())
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in aligner.parameters())


@pytest.mark.parametrize("name", BUILD)
@pytest.mark.parametrize("length", [6, 0])
def test_a_source_without_a_real_entry_gives_nothing(name, length):
    aligner = build(name)
    values, queries = source(aligner, length=length).requires_grad_(), states(aligner).requires_grad_()
    keep = torch.tensor([[False], [True]]).expand(2, length)
    contexts, weights, _ = walk(aligner, queries, aligner.remember(values, keep))
    assert not contexts[0].any()
    assert not weights[0].any()
    (contexts.square().sum() + values[1].sum() + queries[1].sum()).backward()
    assert not queries.grad[0].any()
    assert not values.grad[0].any()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in aligner.parameters())


@pytest.mark.parametrize("name", BUILD)
def test_batch_mates_and_later_queries_move_no_bit(name):
    aligner = build(name)
    values, queries = source(aligner), states(aligner)
    told = walk(aligner, queries, aligner.remember(values))
    others, later = values.clone(), queries.clone()
    others[1], later[1], later[:, 2:] = 1e20, -1e20, 1e20
    again = walk(aligner, later, aligner.remember(others))
    assert torch.equal(again[0][0, :2], told[0][0, :2])
    assert torch.equal(again[1][0, :2], told[1][0, :2])


@pytest.mark.parametrize("name", BUILD)
def test_beams_take_their_memory_and_state_along(name):
    aligner = build(name)
    values, queries = source(aligner), states(aligner)
    rows = torch.tensor([1, 0, 1])
    memory = aligner.remember(values)
    first = aligner.step(queries[:, 0], memory)
    kept = None if first.state is None else first.state.select(rows)
    told = aligner.step(queries[rows, 1], memory.select(rows), kept)
    plain = aligner.step(queries[:, 1], memory, first.state)
    torch.testing.assert_close(told.weights, plain.weights[rows])
    torch.testing.assert_close(told.context, plain.context[rows])


class Steps(nn.Module):
    """An aligner that prepares its memory and takes all steps in one call."""

    def __init__(self, aligner):
        super().__init__()
        self.aligner = aligner

    def forward(self, queries, values, keep):
        return walk(self.aligner, queries, self.aligner.remember(values, keep))[:2]


@pytest.mark.parametrize("name", [name for name in BUILD if "hard" not in name])
def test_gradients_are_those_of_differences(name):
    aligner = build(name)
    keep = torch.tensor([[True, True, True, False], [False] * 4])
    names = [name for name, _ in aligner.named_parameters()]

    def run(queries, values, *parameters):
        steps = Steps(aligner)
        given = {f"aligner.{name}": tensor for name, tensor in zip(names, parameters, strict=True)}
        return torch.func.functional_call(steps, given, (queries, values, keep))

    given = [states(aligner, length=2), source(aligner, length=4), *(p.detach().clone() for p in aligner.parameters())]
    assert torch.autograd.gradcheck(run, [tensor.requires_grad_() for tensor in given], atol=1e-6)


@pytest.mark.parametrize("name", BUILD)
def test_bfloat16_weighs_and_keeps_its_state_in_float32(name):
    aligner = build(name, torch.bfloat16)
    queries = states(aligner, dtype=torch.bfloat16)
    contexts, weights, after = walk(aligner, queries, aligner.remember(source(aligner, dtype=torch.bfloat16)))
    assert contexts.dtype == torch.bfloat16
    assert weights.dtype == torch.float32
    kept = getattr(after[-1], "covered", getattr(after[-1], "standing", None))
    assert kept is None or kept.dtype == torch.float32
    assert bool(contexts.isfinite().all())


@pytest.mark.parametrize("name", PARALLEL)
def test_autocast_takes_float32(name):
    aligner = build(name, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        told = aligner(states(aligner, dtype=torch.float32), aligner.remember(source(aligner, dtype=torch.float32)))
    assert bool(told.context.isfinite().all())
    assert told.weights.dtype == torch.float32


@pytest.mark.parametrize("name", BUILD)
def test_a_copy_and_its_state_dict_say_the_same(name):
    aligner = build(name)
    values, queries = source(aligner), states(aligner)
    told = walk(aligner, queries, aligner.remember(values))[0]
    twin, fresh = copy.deepcopy(aligner), BUILD[name]().double()
    fresh.load_state_dict(aligner.state_dict())
    for other in (twin, fresh):
        assert torch.equal(walk(other, queries, other.remember(values))[0], told)
    with pytest.raises(RuntimeError, match=r"Unexpected|Missing"):
        fresh.load_state_dict(aligner.state_dict() | {"another": torch.ones(1)})


@pytest.mark.parametrize("name", PARALLEL)
def test_no_queries_are_nothing_to_do(name):
    aligner = build(name)
    told = aligner(states(aligner, length=0), aligner.remember(source(aligner)))
    assert told.context.shape == (2, 0, 5)
    assert told.weights.shape == (2, 0, 6)


def test_a_graph_of_steps_is_the_steps():
    # In a process of its own: what checks the types of arguments here is nothing a graph can be made of.
    script = Path(__file__).with_name("compiling.py")
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr[-2000:]) == (0, "")


def test_every_aligner_is_one_and_prints_its_sizes():
    for make in BUILD.values():
        aligner = make()
        assert isinstance(aligner, Aligner)
        assert isinstance(aligner, nn.Module)
        assert str(aligner.memory_dim) in repr(aligner)
