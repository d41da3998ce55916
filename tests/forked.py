"""Processes of their own without the seconds that imports take: forks of one that has imported what is slow."""

import multiprocessing
import os
import signal
from contextlib import contextmanager

from multihead.cli import main

_FORKS = multiprocessing.get_context("forkserver")
# The process that is forked is begun with the first fork, and has imported no test and checks no types.
_FORKS.set_forkserver_preload(
    ["transformers.generation", "transformers.models.auto.modeling_auto", "multihead.cli.checkup", "multihead.hooks"]
)


def _in_the_fork(work, given, out, err):
    # Whoever started the tests may have switched Ctrl-C off for its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for path, handle in ((out, 1), (err, 2)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, handle)
        os.close(opened)
    work(*given)


@contextmanager
def forked(work, *given, folder):
    """A process that calls `work`, a function of a module, on what is given; it is gone afterwards.

    What it writes is in `out.txt` and `err.txt` of the folder. Its `exitcode` is None while it runs.
    """
    told = folder / "out.txt", folder / "err.txt"
    process = _FORKS.Process(target=_in_the_fork, args=(work, given, *map(str, told)))
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        process.start()
    finally:
        os.environ.pop("OMP_NUM_THREADS") if threads is None else os.environ.update(OMP_NUM_THREADS=threads)
    try:
        yield process
    finally:
        process.kill()
        process.join()


def command(arguments, folder):
    """`multihead` with these arguments, in this folder."""
    os.chdir(folder)
    main([str(argument) for argument in arguments])
