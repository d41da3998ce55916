"""What to do about a fault that the operating system reported."""

import errno
from collections.abc import Mapping

from multihead.error.message import MultiheadError

_REMEDIES: Mapping[int, str] = {
    errno.ENOSPC: "make room on that disk, or choose a folder on another one",
    errno.EDQUOT: "your share of that disk is used up: delete something, or choose a folder on another one",
    errno.EFBIG: "that file system takes no file of this size: choose a folder on another one",
    errno.EACCES: "choose a folder you may write to and files you may read, or give yourself the right",
    errno.EPERM: "choose a folder you may write to and files you may read, or give yourself the right",
    errno.EROFS: "that file system is read-only: choose a folder on another one",
    errno.EISDIR: "a folder is there where a file is needed: name a file, or move the folder away",
    errno.ENOTDIR: "choose a folder: a file is there in its place, or in that of a folder above it",
    errno.EEXIST: "choose a folder: a file is there in its place",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOENT: "check the path for a typing error: nothing of that name exists",
    errno.ELOOP: "its links lead in a circle: name the file or folder itself",
    errno.EMFILE: "too many files are open: allow more, for example with ulimit -n 4096",
    errno.ENFILE: "too many files are open: end other programs",
    errno.EIO: "the disk failed: look after it, and choose a folder on another one",
    errno.ENOLCK: "that file system knows no locks: choose a folder on another one",
    errno.ENOTSUP: "that file system cannot do this: choose a folder on another one",
    errno.ENOMEM: "the memory is used up: end other programs",
}


def remedy_of(fault: OSError) -> str:
    """What to do about a fault of the operating system, by its number.

    Args:
        fault: What was raised.

    Example:
        >>> remedy_of(OSError(errno.ENOSPC, "No space left on device"))
        'make room on that disk, or choose a folder on another one'
    """
    if isinstance(fault, ConnectionError | TimeoutError):
        return "check the network, or name a model that is on this machine"
    return _REMEDIES.get(fault.errno or 0, "check the path, the free space and your rights")


def system_error(asked: str, fault: OSError) -> MultiheadError:
    """A fault of the operating system in the words of all errors.

    Args:
        asked: What was to be done.
        fault: What was raised.
    """
    return MultiheadError(asked=asked, arrived=fault.strerror or str(fault), remedy=remedy_of(fault))
