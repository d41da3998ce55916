"""Arguments that lie are refused with a code by the plain C entry, before it has read or written anything they name."""

import ctypes
import math

import pytest
import torch

from built import needs_kernel
from multihead.native import CProblem, CTensor, Status, Variant, load

pytestmark = needs_kernel

SIZES = {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 70, "kv_len": 130, "head_dim": 16, "v_head_dim": 24}
GUARD = 64  # numbers on either side of an output
FAR = 2**41


class Call:
    """A sound call that uses every part, its outputs between guards."""

    def __init__(self, dtype=torch.float32):
        s = SIZES
        self.held = {
            "q": torch.randn(s["batch"], s["heads"], s["q_len"], s["head_dim"], dtype=dtype),
            "k": torch.randn(s["batch"], s["kv_heads"], s["kv_len"], s["head_dim"], dtype=dtype),
            "v": torch.randn(s["batch"], s["kv_heads"], s["kv_len"], s["v_head_dim"], dtype=dtype),
            "window": torch.tensor([-40, 200]),
            "q_ids": torch.zeros(s["batch"], s["q_len"], dtype=torch.int32),
            "k_ids": torch.zeros(s["batch"], s["kv_len"], dtype=torch.int32),
            "keep": torch.ones(s["batch"], s["kv_len"], dtype=torch.bool),
            "dense": torch.ones(s["q_len"], s["kv_len"], dtype=torch.bool),
            "tile_class": torch.tensor([[2, 1, 2], [1, 2, 0]], dtype=torch.int8),
            "tile_index": torch.tensor([[-1, 1, -1], [0, -1, -1]], dtype=torch.int32),
            "tile_bits": torch.full((2, 64), -1),
            "slopes": torch.rand(s["heads"]),
            "table": torch.randn(s["heads"], 9),
            "bias": torch.randn(s["q_len"], s["kv_len"]),
            "sinks": torch.randn(s["heads"]),
        }
        size = s["batch"] * s["heads"] * s["q_len"]
        self.outputs = [torch.full((size * s["v_head_dim"] + 2 * GUARD,), 7.0, dtype=dtype)]
        self.outputs.append(torch.full((size + 2 * GUARD,), 7.0))
        self.problem, self.out = CProblem(), CTensor()
        self._fill(dtype)
        self.lse = self.outputs[1][GUARD:].data_ptr()
        self.library = load()

    def _fill(self, dtype):
        p, mask, bias, s = self.problem, self.problem.mask, self.problem.bias, SIZES
        for name, size in s.items():
            setattr(p, name, size)
        p.abi, p.dtype, p.threads, p.scale = 1, {torch.float32: 0, torch.bfloat16: 1}[dtype], 2, 0.25
        for name in "qkv":
            setattr(p, name, CTensor(self.held[name].data_ptr(), *self.held[name].stride()[:3]))
        self.out.data = self.outputs[0][GUARD:].data_ptr()
        self.out.row, self.out.head = s["v_head_dim"], s["q_len"] * s["v_head_dim"]
        self.out.batch = s["heads"] * self.out.head
        for name in ("window", "q_ids", "k_ids", "keep", "dense", "tile_class", "tile_index", "tile_bits"):
            setattr(mask, name, self.held[name].data_ptr())
        mask.q_ids_batch, mask.k_ids_batch, mask.keep_batch = s["q_len"], s["kv_len"], s["kv_len"]
        mask.dense_row, mask.dense_col = s["kv_len"], 1
        mask.q_tiles, mask.k_tiles, mask.tile_count = 2, 3, 2
        bias.slopes, bias.table, bias.table_len = self.held["slopes"].data_ptr(), self.held["table"].data_ptr(), 9
        bias.dense, bias.dense_row, bias.dense_col = self.held["bias"].data_ptr(), s["kv_len"], 1
        p.sinks = self.held["sinks"].data_ptr()

    def run(self):
        """The code, and that nothing was written unless it is OK."""
        before = [output.clone() for output in self.outputs]
        status = self.library.c.mh_forward(ctypes.byref(self.problem), ctypes.byref(self.out), self.lse)
        for output, old in zip(self.outputs, before, strict=True):
            inner = slice(GUARD, len(output) - GUARD)
            assert torch.equal(output[:GUARD], old[:GUARD])
            assert torch.equal(output[-GUARD:], old[-GUARD:])
            assert (output[inner] != 7).all() if status == Status.OK else torch.equal(output, old)
        return Status(status)

    def place(self, path):
        """The struct of a path such as `mask.window`, and the name of its last field."""
        *places, last = path.split(".")
        target = self.out if places == ["out"] else self.problem
        for name in places if places != ["out"] else []:
            target = getattr(target, name)
        return target, last


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_sound_call_is_run_and_stays_between_its_guards(dtype):
    assert Call(dtype).run() is Status.OK


NUMBERS = {
    Status.BAD_SIZE: [
        ("batch", -1),
        ("heads", -4),
        ("heads", 3),
        ("kv_heads", 0),
        ("q_len", -1),
        ("kv_len", -130),
        ("kv_len", FAR),
        ("q_len", 2**63 - 1),
        ("head_dim", 513),
        ("head_dim", -1),
        ("v_head_dim", 513),
        ("batch", 2**39),
        ("heads", 2**40),
        ("threads", 0),
        ("threads", -1),
        ("threads", 5000),
        ("bias.table_len", 0),
        ("bias.table_len", -1),
        ("bias.table_first", FAR),
    ],
    Status.BAD_DTYPE: [("dtype", 3), ("dtype", -1), ("bias.dense_dtype", 3)],
    Status.BAD_NUMBER: [
        ("abi", 0),
        ("scale", math.inf),
        ("scale", math.nan),
        ("softcap", -1.0),
        ("softcap", math.nan),
        ("q_offset", FAR),
        ("q_offset", -FAR),
    ],
    Status.BAD_STRIDE: [
        *(
            (f"{name}.{stride}", wrong)
            for name in "qkv"
            for stride in ("batch", "head", "row")
            for wrong in (-1, 2**62)
        ),
        ("out.batch", -1),
        ("out.row", 0),
        ("out.row", 23),
        ("out.head", 24),
        ("out.batch", 0),
        *((f"mask.{part}", -1) for part in ("window_batch", "window_head", "q_ids_batch", "k_ids_batch", "keep_batch")),
        *((f"{part}.dense_{stride}", -1) for part in ("mask", "bias") for stride in ("batch", "head", "row", "col")),
    ],
    Status.BAD_MASK: [
        ("mask.q_tiles", 1),
        ("mask.q_tiles", 3),
        ("mask.k_tiles", 2),
        ("mask.k_tiles", -3),
        ("mask.tile_count", -1),
        ("mask.tile_count", 1),
        ("mask.tile_count", 0),
        ("mask.tile_batch", 5),
        ("mask.tile_head", 1),
        ("mask.tile_head", -6),
        ("mask.tile_class", None),
        ("mask.tile_index", None),
        ("mask.tile_bits", None),
        ("mask.q_ids", None),
        ("mask.k_ids", None),
    ],
    Status.BAD_POINTER: [("q.data", None), ("k.data", None), ("v.data", None), ("out.data", None)],
    Status.NO_VARIANT: [("variant", 9), ("variant", -1), ("variant", None)],
}


@pytest.mark.parametrize(
    ("status", "path", "value"),
    [(status, *lie) for status, lies in NUMBERS.items() for lie in lies],
    ids=lambda x: getattr(x, "name", str(x)),
)
def test_a_wrong_number_is_refused(status, path, value):
    call = Call()
    if path == "variant" and value is None:  # one of another processor
        value = next(variant for variant in Variant if variant and variant not in call.library.variants())
    setattr(*call.place(path), value)
    assert call.run() is status


@pytest.mark.parametrize("value", [3, -1, 127, -128])
def test_a_class_that_is_none_is_refused(value):
    call = Call()
    call.held["tile_class"][1, 2] = value
    assert call.run() is Status.BAD_MASK


@pytest.mark.parametrize("value", [2, -1, 2**31 - 1, -(2**31)])
def test_a_place_beyond_the_tiles_is_refused(value):
    call = Call()
    call.held["tile_index"][0, 1] = value
    assert call.run() is Status.BAD_MASK


def test_places_of_tiles_that_are_not_looked_into_do_not_matter():
    call = Call()
    call.held["tile_index"][0, 0] = 2**30
    assert call.run() is Status.OK


@pytest.mark.parametrize(
    "path",
    [
        "q.data",
        "mask.window",
        "mask.q_ids",
        "mask.k_ids",
        "mask.tile_index",
        "mask.tile_bits",
        "bias.slopes",
        "bias.table",
        "bias.dense",
        "sinks",
        "out.data",
    ],
)
def test_addresses_between_numbers_are_refused(path):
    call = Call()
    target, last = call.place(path)
    setattr(target, last, getattr(target, last) + 1)
    assert call.run() is Status.BAD_POINTER


@pytest.mark.parametrize(
    "name",
    [
        "q",
        "k",
        "v",
        "window",
        "q_ids",
        "k_ids",
        "keep",
        "dense",
        "tile_class",
        "tile_index",
        "tile_bits",
        "slopes",
        "table",
        "bias",
        "sinks",
    ],
)
@pytest.mark.parametrize("output", ["out", "lse"])
def test_an_output_over_an_input_is_refused(name, output):
    """Of both outputs the last number lies on the first of the input, or the first on its last."""
    for ahead in (True, False):
        call = Call()
        held = call.held[name]
        size = call.outputs[output == "lse"].numel() - 2 * GUARD
        at = held.data_ptr() - 4 * (size - 1) if ahead else held.data_ptr() + held.nbytes // 4 * 4 - 4
        at -= at % 4
        if output == "out":
            call.out.data = at
        else:
            call.lse = at
        before = held.clone()
        assert call.run() is Status.ALIASED
        assert torch.equal(held, before)


def test_outputs_over_each_other_are_refused():
    call = Call()
    call.lse = call.out.data + 4
    assert call.run() is Status.ALIASED


def test_no_problem_and_no_output_are_refused():
    call = Call()
    forward = call.library.c.mh_forward
    assert forward(None, ctypes.byref(call.out), call.lse) == Status.BAD_POINTER
    assert forward(ctypes.byref(call.problem), None, call.lse) == Status.BAD_POINTER
    assert forward(None, None, None) == Status.BAD_POINTER


def test_no_log_sum_exp_is_no_lie():
    call = Call()
    call.lse = None
    assert call.library.c.mh_forward(ctypes.byref(call.problem), ctypes.byref(call.out), None) == Status.OK
