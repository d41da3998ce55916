"""The kernel against the reference without Python: each variant that runs here, between pages of no access."""

import dataclasses
from itertools import islice

import pytest
import torch

from multihead.native import load
from multihead.native.statistics import Found
from native.cases import random_cases
from native.replaying import assert_agrees, build_native, missing, replay, write
from native.statistics_cases import replay_cases

pytestmark = pytest.mark.skipif(bool(missing("c++")), reason=missing("c++") or "never")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return build_native(tmp_path_factory.mktemp("replay"))


@pytest.fixture
def one(seed):
    """A problem that is small, has an output and an lse, and no mask that hides what is broken."""
    cases = (case for case in random_cases(seed, longest=40) if "lse" in case.fields)
    return next(
        c for c in cases if c.fields["out.expected"].numel() and c.fields["kv_len"] > 1 and c.label.endswith(" ")
    )


def test_every_variant_agrees_with_the_reference_for_any_number_of_threads(program, seed, tmp_path):
    cases = list(islice(random_cases(seed), 300))
    done = replay(program, write(tmp_path / "problems", cases), threads="1,2,3")
    assert_agrees(done, 300)
    assert done.stdout.count("avx") + done.stdout.count("neon") == len(load().variants())


def test_replaying_tells_a_wrong_number_from_a_right_one(program, one, tmp_path):
    for name in ("out", "lse"):
        expected = one.fields[f"{name}.expected"]
        one.fields[f"{name}.expected"] = expected + 1
        done = replay(program, write(tmp_path / "problems", [one]))
        assert done.returncode == 1
        assert f"{name}[0,0,0,0] is" in done.stdout
        one.fields[f"{name}.expected"] = expected


def test_statistics_of_every_variant_agree_with_the_whole_matrix(program, tmp_path):
    cases = replay_cases()
    assert_agrees(replay(program, write(tmp_path / "problems", cases), threads="1,3"), len(cases))


def test_replaying_tells_a_wrong_statistic_from_a_right_one(program, tmp_path):
    case = next(case for case in replay_cases() if "keys shut" in case.label)
    names = [name for name in case.fields if name.startswith("want.")]
    assert len(names) == len(dataclasses.fields(Found))
    wrong = [dataclasses.replace(case, fields=case.fields | {name: case.fields[name] + 1}) for name in names]
    done = replay(program, write(tmp_path / "problems", wrong), variants=load().variants()[0].name.lower())
    assert done.returncode == 1
    assert f"{len(names)} problems, {len(names)} failures" in done.stdout


def test_replaying_sees_what_is_read_beyond_a_tensor(program, one, tmp_path):
    one.fields["kv_len"] += 1
    done = replay(program, write(tmp_path / "problems", [one]))
    assert done.returncode == 3
    assert f"memory touched that is not the kernel's: {one.label}" in done.stdout


def test_a_refused_problem_is_expected_by_its_status(program, one, tmp_path):
    one.fields |= {"head_dim": -1, "status": 1}
    assert_agrees(replay(program, write(tmp_path / "problems", [one])), 1)
    one.fields["status"] = 2
    done = replay(program, write(tmp_path / "problems", [one]))
    assert done.returncode == 1
    assert "status 1" in done.stdout


@pytest.mark.parametrize("fault", ["nothing", "kind", "version", "chunk", "field", "entry"])
def test_a_file_that_is_none_is_refused(program, one, tmp_path, fault):
    path = write(tmp_path / "problems", [one])
    good = path.read_bytes()
    if fault == "field":
        one.fields["colour"] = 3
        good = write(path, [one]).read_bytes()
    changed = {
        "nothing": b"",
        "kind": b"MHREPLOY" + good[8:],
        "version": good[:8] + bytes([2]) + good[9:],
        "chunk": good[:-70],
        "field": good,
        "entry": good.replace(b"forward", b"upwards"),
    }[fault]
    path.write_bytes(changed)
    assert replay(program, path).returncode == 2


def test_a_variant_that_does_not_run_here_is_refused(program, one, tmp_path):
    done = replay(program, write(tmp_path / "problems", [one]), variants="avx3")
    assert done.returncode == 2
    assert "a variant that does not run here" in done.stderr


def test_the_oracle_sees_a_mask(seed):
    """Problems that come with every kind of mask and bias, in every dtype, some with rows that see nothing."""
    cases = list(islice(random_cases(seed), 300))
    labels = " ".join(case.label for case in cases)
    for name in (
        "window",
        "ids",
        "keep",
        "dense",
        "tiles",
        "sinks",
        "slopes",
        "table",
        "numbers",
        "float16",
        "bfloat16",
    ):
        assert name in labels
    assert any(bool(torch.isneginf(c.fields.get("lse.expected", torch.zeros(1))).any()) for c in cases)
