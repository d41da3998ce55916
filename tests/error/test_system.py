import errno
import os

import pytest

from multihead.error import remedy_of


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOSPC, "make room on that disk"),
        (errno.EACCES, "choose a folder you may write to"),
        (errno.EISDIR, "a folder is there where a file is needed"),
        (errno.ENOTDIR, "a file is there in its place"),
        (errno.ENAMETOOLONG, "choose a shorter name"),
        (errno.EROFS, "read-only"),
        (errno.ECONNREFUSED, "check the network"),
        (errno.ETIMEDOUT, "check the network"),
        (errno.EDEADLK, "check the path, the free space and your rights"),
    ],
)
def test_each_fault_has_its_remedy(number, says):
    assert says in remedy_of(OSError(number, os.strerror(number)))


def test_a_fault_without_a_number_has_one_too():
    assert remedy_of(OSError("broken")) == "check the path, the free space and your rights"
