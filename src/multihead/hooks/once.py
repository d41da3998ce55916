"""Whether a model runs each of its layers once a pass, read from its code without running it."""

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from torch import nn

from multihead.hooks.code import is_of_models

_LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
_WRAPS = frozenset({"enumerate", "zip", "reversed", "list", "tuple"})
_LOOPS = (ast.For, ast.While, ast.comprehension)


def runs_once(model: nn.Module, paths: Iterable[str]) -> bool:
    """Whether no layer can run more than once a pass, as far as the code of the modules around them tells.

    False where that cannot be told: a loop over anything but a list of modules, a module under two names or called in
    two places, a forward of the instance's own, code that cannot be read. Then only a pass tells how many layers there
    are.

    Args:
        model: The model.
        paths: Dotted names of its layers.
    """
    layers = list(paths)
    every = [id(module) for _, module in model.named_modules(remove_duplicate=False)]
    around = {path: model.get_submodule(path) for layer in layers for path in _outer(layer)}
    if any(every.count(id(module)) > 1 for module in (*around.values(), *map(model.get_submodule, layers))):
        return False
    return all(_calls_once(module) for module in around.values() if type(module) not in _LISTS)


def _outer(path: str) -> Iterator[str]:
    """Names of the modules around one, the model's own, which is empty, among them."""
    while path:
        path = path.rpartition(".")[0]
        yield path


def _calls_once(module: nn.Module) -> bool:
    """Whether the methods of a module's class run each child at most once."""
    if "forward" in vars(module):
        return False
    bases = [base for base in type(module).__mro__ if base is not nn.Module and issubclass(base, nn.Module)]
    if any(base.__module__.startswith("torch.") for base in bases):
        return False
    return all(_reads_once(base, module) for base in bases if is_of_models(base.__module__))


def _reads_once(kind: type[nn.Module], module: nn.Module) -> bool:
    try:
        (code,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return False
    methods = [node for node in ast.walk(code) if isinstance(node, ast.FunctionDef) and node.name != "__init__"]
    return all(_is_plain(method, module) for method in methods)


def _is_plain(method: ast.FunctionDef, module: nn.Module) -> bool:
    """Whether a method has no loop but over a list of modules, none within another, and calls nothing twice."""
    own = _Own(method.args.args[0].arg if method.args.args else "", module)
    loops = [node for node in ast.walk(method) if isinstance(node, _LOOPS)]
    if any(isinstance(loop, ast.While) or not own.lists(loop.iter) for loop in loops):
        return False
    if any(isinstance(inner, _LOOPS) for loop in loops for inner in ast.walk(loop) if inner is not loop):
        return False
    targets = {name.id for loop in loops for name in ast.walk(loop.target) if isinstance(name, ast.Name)}  # pyright: ignore[reportAttributeAccessIssue]
    called = [ast.unparse(node.func) for node in ast.walk(method) if isinstance(node, ast.Call)]
    # Called twice a module without parameters (a dropout) holds no layer.
    known = [name for name in called if name in targets or _has_weights(own.named(name))]
    return len(known) == len(set(known))


def _has_weights(found: object) -> bool:
    return isinstance(found, nn.Module) and next(found.parameters(), None) is not None


class _Own(NamedTuple):
    """What names mean in a method of a module.

    Args:
        name: What the method calls the module: `self`.
        module: The module.
    """

    name: str
    module: nn.Module

    def lists(self, looped: ast.expr) -> bool:
        """Whether what is gone through is a list of modules of its own, a part of one, or that beside other things."""
        if isinstance(looped, ast.Call):
            name = ast.unparse(looped.func)
            if name in _WRAPS:
                return any(map(self.lists, looped.args))
            inner, _, method = name.rpartition(".")
            return method in ("values", "items", "children") and isinstance(self.named(inner), _LISTS)
        if isinstance(looped, ast.Subscript):
            return self.lists(looped.value)
        return isinstance(self.named(ast.unparse(looped)), _LISTS)

    def named(self, name: str) -> object:
        """What a name such as `self.encoder.layers` stands for; None where it is nothing of its own."""
        first, *rest = name.split(".")
        found: object = self.module if first == self.name and rest else None
        for part in rest:
            found = getattr(found, part, None)
        return found
