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
    """Return `default`, with the choices of the `engine` blocks around the call."""
    overrides = _overrides.get()
    return default._replace(**overrides) if overrides else default


def check_name(name: str) -> EngineName:
    """Return the name of an engine.

    Raises:
        ValueError: The name is not that of an engine; lists the engines.
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
            computes with torch functions, on any device; "auto", the default, takes the fused
            engine of a device where the memory layout allows it. Variables on the CPU that the
            engine does not support use "reference", others "torch". None keeps the engine in force.
        denormals: "flush" treats numbers below 1.2e-38 (float32) as zero, as TensorFlow does;
            "keep" is IEEE arithmetic, as torch has it. None keeps the setting in force: by default
            "flush", and "keep" for the optimizers of `thalweg.optim` that have torch's numbers.
        check_numerics: Whether a step whose gradients hold a NaN or an infinity raises
            InvalidArgumentError, naming the variable, before anything changes. It costs a sweep
            over the gradients. Where a loss scaler decides on the step, it does so instead. None
            keeps the setting in force, False by default.
        math: "exact", the default, rounds each operation once, so that all engines give the same
            bits. "fast" lets kernels for GPUs round a product and a sum together, and divide and
            take roots of float32 approximately, within the bounds of `docs/cuda.md`; the other
            engines stay exact. None keeps the setting in force.

    Raises:
        ValueError: If a name is unknown.
        TypeError: If `check_numerics` is not a bool.

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
