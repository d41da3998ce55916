"""The kernel compiled with checks of every access to memory and of undefined operations, over random problems."""

import os
from itertools import islice

import pytest

from multihead.native import Variant, load
from native.cases import random_cases
from native.replaying import assert_agrees, build, missing, replay, write
from native.statistics_cases import replay_cases

LOST = missing("c++", "cmake", "ninja")
pytestmark = pytest.mark.skipif(bool(LOST), reason=LOST or "never")
# Leaks are looked for too. The status says that it was the sanitizer that ended the program.
WATCHED = os.environ | {"ASAN_OPTIONS": "exitcode=3:detect_leaks=1", "UBSAN_OPTIONS": "print_stacktrace=1"}


@pytest.fixture(scope="module")
def quick():
    # The variant that compiles fastest. The others, which take minutes, and more checks are for the slow test.
    variant = load().variants()[0].name.lower()
    return build("quick", "-DMULTIHEAD_SANITIZE=quick", f"-DMULTIHEAD_VARIANTS={variant}")


def test_no_access_beyond_a_tensor_and_nothing_undefined(quick, seed, tmp_path):
    cases = [*islice(random_cases(seed), 300), *replay_cases()]
    assert_agrees(replay(quick, write(tmp_path / "problems", cases), threads="1,2", env=WATCHED), len(cases))


def test_an_access_beyond_a_tensor_would_be_seen(quick, seed, tmp_path):
    case = next(c for c in random_cases(seed) if c.fields["q_len"] and c.fields["kv_len"] > 1 and c.label.endswith(" "))
    case.fields["kv_len"] += 1
    done = replay(quick, write(tmp_path / "problems", [case]), env=WATCHED)
    assert done.returncode == 3
    assert "heap-buffer-overflow" in done.stderr
    assert f"while replaying problem 0: {case.label}" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("variant", [v for v in Variant if v], ids=lambda variant: variant.name)
def test_every_variant_with_every_check(variant, seed, tmp_path):
    if load() is None or variant not in load().variants():
        pytest.skip(f"{variant.name} does not run here")
    name = variant.name.lower()
    program = build(f"whole-{name}", "-DMULTIHEAD_SANITIZE=whole", f"-DMULTIHEAD_VARIANTS={name}")
    cases = [*islice(random_cases(seed), 1000), *replay_cases()]
    assert_agrees(replay(program, write(tmp_path / "problems", cases), threads="1,2,3", env=WATCHED), len(cases))
