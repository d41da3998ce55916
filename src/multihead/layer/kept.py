"""A cache during a call."""

from collections.abc import Generator
from contextlib import contextmanager

from multihead.layer.cache import AttentionCache


@contextmanager
def kept(cache: AttentionCache | None) -> Generator[None]:
    """What is done within adds to the cache, or fails and leaves it as it was."""
    before = 0 if cache is None else cache.length
    try:
        yield
    except BaseException:
        if cache is not None:
            cache.cut(before)
        raise
