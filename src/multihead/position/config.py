"""Reads rotary positions out of a model's configuration, in the spelling of transformers, without transformers."""

from collections.abc import Callable, Mapping
from typing import Literal, cast

from multihead.error import MultiheadError
from multihead.position.pairwise import Llama3, LongRoPE, YaRN
from multihead.position.scaling import DynamicNTK, Linear, Proportional, Scaling

Layout = Literal["half", "interleaved"]
Config = Mapping[str, object]

# Models of transformers whose code pairs neighbours; `rope_interleave`, where it is written, says it better.
_INTERLEAVED = (
    *("codegen", "cohere", "cohere2", "deepseek_v2", "deepseek_v3", "ernie4_5"),
    *("glm", "glm4", "gptj", "helium", "llama4_text"),
)
# What the base is called, and in files older than `rope_parameters` that of a kind of layers.
_BASES = ("rope_theta", "rotary_emb_base")
_BASES_OF = {
    "sliding_attention": ("rope_local_base_freq", "local_rope_theta"),
    "full_attention": ("global_rope_theta",),
}


def read_config(
    config: Config, *, head_dim: int | None, layer_type: str | None
) -> tuple[float, int | None, Layout, Scaling | None]:
    """Base, rotated dimensions (None for all of them), layout and scaling.

    Args:
        config: As in `Rotary.from_config`.
        head_dim: Size of a head, None for what the configuration says.
        layer_type: The kind of layers that is asked about.
    """
    parameters = _parameters(config, layer_type)
    if "mrope_section" in parameters:
        raise MultiheadError(
            asked="rotary positions on one axis",
            arrived=f"mrope_section={parameters['mrope_section']} (time, height and width)",
            remedy="for text alone, where the three are equal, leave mrope_section out of the configuration",
        )
    kind = str(parameters.get("rope_type") or parameters.get("type") or "default")
    share = _number(_first(parameters, config, ("partial_rotary_factor", "rotary_pct")), 1.0)
    own = kind == "proportional"
    dim = None if own or "qk_rope_head_dim" in config else _rotated(config, head_dim, share)
    return _base(parameters, config, layer_type), dim, _layout(config), _scaling(kind, parameters, config, share)


def _parameters(config: Config, layer_type: str | None) -> Config:
    """The dict that tells of these layers."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise MultiheadError(
            asked="rope_parameters or rope_scaling as a dict",
            arrived=f"{type(given).__name__} {given!r}"[:200],
            remedy="pass config.to_dict(), or what json reads from config.json",
        )
    parameters = cast(Config, given)
    kinds = {name: value for name, value in parameters.items() if isinstance(value, Mapping) or value is None}
    nested = any(isinstance(value, Mapping) for value in kinds.values())
    if not nested:
        local = layer_type == "sliding_attention" and "rope_local_base_freq" in config
        return {} if local else parameters  # Gemma 3 stretches only what looks far
    found = kinds.get(layer_type) if layer_type is not None else None
    if found is None:
        raise MultiheadError(
            asked="rotary positions of one kind of layers, since they differ",
            arrived=f"layer_type={layer_type!r}; there are {', '.join(n for n, v in kinds.items() if v is not None)}",
            remedy=f"pass layer_type={next(name for name, value in kinds.items() if value is not None)!r}",
        )
    return cast(Config, found)


def _first(parameters: Config, config: Config, names: tuple[str, ...]) -> object:
    """The first of these that is there and not None, in the dict of rotary positions before the rest."""
    values = (place.get(name) for place in (parameters, config) for name in names)
    return next((value for value in values if value is not None), None)


def _number(given: object, otherwise: float) -> float:
    return float(given) if isinstance(given, int | float) else otherwise


def _base(parameters: Config, config: Config, layer_type: str | None) -> float:
    own = _first({}, config, _BASES_OF.get(layer_type or "", ("",)))
    found = parameters.get("rope_theta") or own or _first(parameters, config, _BASES)
    return _number(found, 10000.0)


def _layout(config: Config) -> Layout:
    told = config.get("rope_interleave")
    if told is None:
        told = config.get("model_type") in _INTERLEAVED
    return "interleaved" if told else "half"


def _rotated(config: Config, head_dim: int | None, share: float) -> int | None:
    """Rotated dimensions where they are not the whole head."""
    if config.get("rotary_dim") is not None:
        return int(_number(config["rotary_dim"], 0.0))
    if share == 1.0:
        return None
    size = head_dim or _head_dim(config)
    return int(size * share) if int(size * share) != size else None


def _head_dim(config: Config) -> int:
    size = config.get("head_dim")
    if size is None:
        width, heads = (_first({}, config, names) for names in (("hidden_size",), ("num_attention_heads",)))
        size = int(_number(width, 0.0)) // int(_number(heads, 1.0))
    if not isinstance(size, int) or size < 1:
        raise MultiheadError(
            asked="the size of a head, of which partial_rotary_factor is a part",
            arrived=f"head_dim={config.get('head_dim')}, hidden_size={config.get('hidden_size')}, "
            f"num_attention_heads={config.get('num_attention_heads')}",
            remedy="pass head_dim=",
        )
    return size


class _Reader:
    """The numbers of one scaling."""

    def __init__(self, kind: str, parameters: Config, config: Config) -> None:
        self.kind, self.parameters, self.config = kind, parameters, config

    def maybe(self, name: str) -> float | None:
        """A number, or None where it is not there."""
        given = self.parameters.get(name)
        return None if given is None else _number(given, float("nan"))

    def number(self, name: str) -> float:
        """A number that must be there."""
        return _number(self.needed(name, self.parameters.get(name)), float("nan"))

    def needed(self, name: str, given: object) -> object:
        """What must be there."""
        if given is None:
            raise MultiheadError(
                asked=f"{name} for the rotary scaling {self.kind!r}",
                arrived=f"rope_parameters={dict(self.parameters)}"[:200],
                remedy=f"add {name} to the configuration",
            )
        return given

    def divisors(self, name: str) -> tuple[float, ...]:
        """A number for each pair."""
        given = cast(list[float], self.needed(name, self.parameters.get(name)))
        return tuple(float(number) for number in given)

    def trained(self) -> int:
        """Positions the model was trained on; what stands beside `rope_parameters` goes first (Phi-3)."""
        name = "original_max_position_embeddings"
        given = _first(self.config, self.parameters, (name,)) or self.config.get("max_position_embeddings")
        return int(_number(self.needed(name, given), 0.0))

    def stretch(self, trained: int) -> float:
        """The factor, or the ratio of the two lengths where it is not written."""
        longest = self.config.get("max_position_embeddings")
        found = self.maybe("factor")
        return found if found is not None else _number(self.needed("factor", longest), 1.0) / trained


def _linear(read: _Reader) -> Scaling:
    return Linear(read.number("factor"))


def _dynamic(read: _Reader) -> Scaling:
    # Here alone `max_position_embeddings` is the trained length.
    given = read.needed("max_position_embeddings", read.config.get("max_position_embeddings"))
    return DynamicNTK(read.number("factor"), int(_number(given, 0.0)))


def _yarn(read: _Reader) -> Scaling:
    trained = read.trained()
    return YaRN(
        read.stretch(trained),
        trained,
        beta_fast=read.maybe("beta_fast") or 32.0,
        beta_slow=read.maybe("beta_slow") or 1.0,
        attention_factor=read.maybe("attention_factor"),
        mscale=read.maybe("mscale"),
        mscale_all_dim=read.maybe("mscale_all_dim"),
        truncate=bool(read.parameters.get("truncate", True)),
    )


def _llama3(read: _Reader) -> Scaling:
    low, high = read.number("low_freq_factor"), read.number("high_freq_factor")
    return Llama3(factor=read.number("factor"), trained_length=read.trained(), low=low, high=high)


def _longrope(read: _Reader) -> Scaling:
    trained = read.trained()
    return LongRoPE(
        read.divisors("short_factor"),
        read.divisors("long_factor"),
        trained,
        factor=max(read.stretch(trained), 1.0),
        attention_factor=read.maybe("attention_factor"),
    )


_READ: Mapping[str, Callable[[_Reader], Scaling]] = {
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
    "su": _longrope,
}


def _scaling(kind: str, parameters: Config, config: Config, share: float) -> Scaling | None:
    if kind == "default":
        return None
    if kind == "proportional":
        return Proportional(share, _number(parameters.get("factor"), 1.0))
    if kind not in _READ:
        raise MultiheadError(
            asked="a rotary scaling that is known",
            arrived=f"rope_type={kind!r}",
            remedy=f"one of default, proportional, {', '.join(_READ)}, or build the Rotary by hand",
        )
    return _READ[kind](_Reader(kind, parameters, config))
