"""Silence of transformers while it loads, and its voice back afterwards."""

import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from logging import CRITICAL


@contextmanager
def quiet_transformers() -> Generator[None, None, None]:
    """Transformers, if it is loaded, shows no bars, log lines or warnings while this is open; then all is as it was."""
    if "transformers" not in sys.modules:
        yield
        return
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
