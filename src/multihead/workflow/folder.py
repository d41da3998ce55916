"""Folders as callers name them."""

from pathlib import Path

from multihead.error import MultiheadError, kind_and_text


def needed_folder(asked: str, folder: object) -> Path:
    """A folder by its name.

    Args:
        asked: What it is for, e.g. `"a folder to save to"`.
        folder: What was given.

    Raises:
        MultiheadError: It is no name, or an empty one, which would be the working directory.
    """
    if not isinstance(folder, str | Path) or not str(folder).strip():
        raise MultiheadError(asked=asked, arrived=kind_and_text(folder), remedy='name one: "a/folder"')
    return Path(folder)
