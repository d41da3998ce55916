"""Silence of transformers while it loads, and its voice back afterwards."""

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from logging import CRITICAL


@contextmanager
def quiet_transformers() -> Generator[None, None, None]:
    """No progress bars, log lines or warnings of transformers while this is open; then all as it was."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging

    verbosity, bars, hub_bars = logging.get_verbosity(), logging.is_progress_bar_enabled(), are_progress_bars_disabled()
    logging.set_verbosity(CRITICAL)
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
        # Transformers' switch moves the hub's as well.
        (disable_progress_bars if hub_bars else enable_progress_bars)()
