"""Types of arguments and results, checked on every call at a part of what the wrapper of jaxtyping takes.

That one binds the arguments anew and checks them twice a call: 10 us where nothing has a shape, against 1 us here,
and a third of the time of the tests of `measure`. Here beartype checks once, and what an axis is called holds within
a call as jaxtyping means it.
"""

import dataclasses
import functools
import inspect
import types
import typing

import jaxtyping
from beartype import BeartypeConf

# As jaxtyping's own errors, which are TypeErrors.
CONF = BeartypeConf(violation_type=jaxtyping.TypeCheckError)
# Within it an axis has one size, however often it is named.
CONTEXT = jaxtyping.jaxtyped("context")


def jaxtyped(*, typechecker):
    """In place of `jaxtyping.jaxtyped`, for what its import hook decorates: functions and classes."""
    return functools.partial(_decorate, typechecker)


def _decorate(typechecker, made):
    if not inspect.isclass(made):
        return _checked(typechecker, made)
    if dataclasses.is_dataclass(made) and "__init__" in vars(made):
        made.__init__ = _checked(typechecker, made.__init__)
    return made


def _checked(typechecker, function):
    hints, told = _hints(function), getattr(function, "__annotations__", {})
    function.__annotations__ = hints
    inner = typechecker(function, conf=CONF)
    function.__annotations__ = told
    if not any(map(_is_shaped, hints.values())):

        @functools.wraps(function)
        def checked(*given, **named):
            __tracebackhide__ = True
            return (function if jaxtyping.config.jaxtyping_disable else inner)(*given, **named)

        return checked

    @functools.wraps(function)
    def checked_together(*given, **named):
        __tracebackhide__ = True
        if jaxtyping.config.jaxtyping_disable:
            return function(*given, **named)
        with CONTEXT:
            return inner(*given, **named)

    return checked_together


def _hints(function):
    """Hints with what is written as text read; anything goes for a name that is not there, or not there yet."""
    found = {}
    for name, hint in getattr(function, "__annotations__", {}).items():
        try:
            found |= typing.get_type_hints(
                types.SimpleNamespace(__annotations__={name: hint}), function.__globals__, include_extras=True
            )
        except NameError:
            found[name] = typing.Any
    return found


def _is_shaped(hint):
    if inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(map(_is_shaped, hint if isinstance(hint, list) else typing.get_args(hint)))
