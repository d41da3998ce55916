"""`multihead locate MODEL`: which layers can be seen."""

from rich.console import Console
from rich.markup import escape

from multihead.cli.output import Json, tell_json
from multihead.hooks import locate as find_layers
from multihead.workflow import open_model


def locate(model: str, /, *, as_json: Json = False) -> int:
    """Tell which attention layers of MODEL can be measured (the command's help is in `multihead.cli`).

    Parameters
    ----------
    model
        A packaged name (`multihead models`), a folder with a transformers model, a .gguf file, or a hub name.
    as_json
        Print one JSON document.
    """
    with Console(stderr=True).status(f"loading {escape(model)}"):
        opened = open_model(model)
    found = find_layers(opened.model)
    if as_json:
        layers = [
            {
                "module": one.site.module,
                "stack": one.site.stack,
                "cross": one.site.cross,
                "heads": one.heads,
                "how": one.how,
            }
            for one in found
        ]
        tell_json({"model": opened.name, "architecture": type(opened.model).__name__, "layers": layers})
    else:
        Console(soft_wrap=True, highlight=False).print(str(found), markup=False)
    return 0
