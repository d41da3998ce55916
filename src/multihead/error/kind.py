"""Arguments of the wrong kind, refused by name."""

from collections.abc import Mapping

from multihead.error.message import MultiheadError


def check_kinds(given: Mapping[str, object], kinds: tuple[type, ...], wanted: str) -> None:
    """Refuses an argument of another type, by its name."""
    for name, value in given.items():
        if not isinstance(value, kinds):
            raise MultiheadError(
                asked=f"{name} as {wanted}",
                arrived=f"{name}={value!r} ({type(value).__name__})"[:200],
                remedy="a pattern is what causal() gives; a rule of your own is from_callable(rule)"
                if name == "mask" and callable(value)
                else "a mask in words is read by parse_pattern('causal & sliding_window(256)')"
                if name == "mask"
                else f"pass {wanted}",
            )
