"""The AArch64 kernel, compiled here for that processor and run under an emulator of it."""

from itertools import islice

import pytest

from native.cases import random_cases
from native.replaying import assert_agrees, build, missing, replay, write
from native.statistics_cases import replay_cases

COMPILERS = "aarch64-linux-gnu-gcc", "aarch64-linux-gnu-g++"
LOST = missing(*COMPILERS, "qemu-aarch64", "cmake", "ninja")
TARGET = [
    "-DCMAKE_SYSTEM_NAME=Linux",
    "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
    f"-DCMAKE_C_COMPILER={COMPILERS[0]}",
    f"-DCMAKE_CXX_COMPILER={COMPILERS[1]}",
]


@pytest.mark.skipif(bool(LOST), reason=LOST or "never")
def test_neon_agrees_with_the_reference(seed, tmp_path):
    program = build("neon", *TARGET)
    cases = [*islice(random_cases(seed, longest=150), 200), *replay_cases()]
    file = write(tmp_path / "problems", cases)
    done = replay(program, file, threads="1,2", runner=("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"))
    assert_agrees(done, len(cases))
    assert "variants neon" in done.stdout
