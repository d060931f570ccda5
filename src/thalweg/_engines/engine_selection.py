"""Selection of the engine, its rounding, denormals and checks for NaN, per context."""

from __future__ import annotations

from contextvars import ContextVar
from functools import partial
from typing import Any, Literal, NamedTuple

from thalweg._base.context_managers import ContextSetting, Sections
from thalweg._base.showing import show_value
from thalweg.errors import InvalidTypeError

EngineName = Literal["auto", "cpu", "cuda", "reference", "torch"]
Denormals = Literal["flush", "keep"]
Math = Literal["exact", "fast"]
ENGINES: tuple[EngineName, ...] = ("auto", "cpu", "cuda", "reference", "torch")
DENORMALS: tuple[Denormals, ...] = ("flush", "keep")
MATHS: tuple[Math, ...] = ("exact", "fast")


class Selection(NamedTuple):
    """Engine, handling of denormals, check for NaN and infinity, and rounding."""

    name: EngineName = "auto"
    denormals: Denormals = "flush"
    check_numerics: bool = False
    math: Math = "exact"


DEFAULT = Selection()
_overrides: ContextVar[dict[str, Any]] = ContextVar("thalweg_engine", default={})  # noqa: B039
# Returns the choices of the innermost `engine` block; while it is the same dictionary, `current`
# returns equal selections.
choices = _overrides.get


def current(default: Selection = DEFAULT) -> Selection:
    """Return `default` with the options of the enclosing `engine` blocks."""
    overrides = _overrides.get()
    return default._replace(**overrides) if overrides else default


def check_name(name: str) -> EngineName:
    """Return the name of an engine.

    Raises:
        ValueError: There is no engine `name`; the message lists the engines.
    """
    if name not in ENGINES:
        raise ValueError(
            f"engine must be one of {', '.join(map(repr, ENGINES))}, not {show_value(name)}."
        )
    return name


def engine(
    name: EngineName | None = None,
    *,
    denormals: Denormals | None = None,
    check_numerics: bool | None = None,
    math: Math | None = None,
) -> ContextSetting:
    """Choose the engine for the steps taken inside a `with` block.

    Args:
        name: "reference" computes whole arrays with NumPy and is the specification; "cpu" and
            "cuda" run each rule as one fused, compiled pass over variables of that device; "torch"
            computes with torch functions, on any device; "auto", the default, selects the fused
            engine of the variable's device if the engine supports the variable, else "reference" on
            the CPU and "torch" on other devices. None keeps the present engine.
        denormals: "flush" treats numbers below 1.2e-38 (float32) as zero, like TensorFlow; "keep"
            is IEEE arithmetic, like torch. None keeps the present setting. The default is "flush",
            but "keep" for optimizers of `thalweg.optim` that reproduce torch's optimizers.
        check_numerics: True to raise InvalidArgumentError, naming the variable, if a gradient has a
            NaN or an infinity. The error is raised before anything changes. The check reads all
            gradients once more. It is skipped if a loss scaler checks the gradients. None keeps the
            present setting, by default False.
        math: "exact", the default, rounds each operation once, so that all engines give the same
            bits. "fast" lets kernels for GPUs round a product and a sum together, and divide and
            take roots of float32 approximately, within the bounds of `docs/cuda.md`; the other
            engines stay exact. None keeps the present setting.

    Raises:
        ValueError: A name is unknown.
        TypeError: `check_numerics` is not a bool.

    Example:
        >>> import thalweg
        >>> with thalweg.engine("reference", denormals="keep"):
        ...     pass
    """
    if name is not None:
        check_name(name)
    if denormals is not None and denormals not in DENORMALS:
        raise ValueError(f"denormals must be 'flush' or 'keep', not {show_value(denormals)}.")
    if math is not None and math not in MATHS:
        raise ValueError(f"math must be 'exact' or 'fast', not {show_value(math)}.")
    if check_numerics not in (None, True, False):
        raise InvalidTypeError(f"check_numerics must be a bool, not {show_value(check_numerics)}.")
    arguments = {
        "name": name,
        "denormals": denormals,
        "check_numerics": check_numerics,
        "math": math,
    }
    overrides = {key: value for key, value in arguments.items() if value is not None}
    return ContextSetting(partial(_choose_within, overrides))


def _choose_within(changes: dict[str, Any]) -> Sections:
    outer_overrides = _overrides.get()
    return [partial(_overrides.set, {**outer_overrides, **changes})], [
        partial(_overrides.set, outer_overrides)
    ]
