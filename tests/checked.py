"""Types of arguments and results, checked on every call at a part of what the wrapper of jaxtyping takes.

That one binds the arguments anew and checks them twice a call: 10 us where nothing has a shape, against 1 us here,
and a third of the time of the tests of `measure`. Here beartype checks once, and what an axis is called holds within
a call as jaxtyping means it.
"""

import dataclasses
import functools
import inspect
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
    inner = typechecker(function, conf=CONF)
    if not any(map(_is_shaped, _hints(function))):

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
    try:
        return typing.get_type_hints(function).values()
    except NameError:  # of a class that is not there yet
        return vars(function).get("__annotations__", {}).values()


def _is_shaped(hint):
    if isinstance(hint, str):
        return True  # it cannot be known
    if inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(map(_is_shaped, hint if isinstance(hint, list) else typing.get_args(hint)))
