"""Which engine runs, and what it does with denormals."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextvars import ContextVar
from typing import Literal, NamedTuple

EngineName = Literal["auto", "cpu", "reference"]
Denormals = Literal["flush", "keep"]
ENGINES: tuple[EngineName, ...] = ("auto", "cpu", "reference")
DENORMALS: tuple[Denormals, ...] = ("flush", "keep")


class Selection(NamedTuple):
    """An engine and its treatment of denormals."""

    name: EngineName = "auto"
    denormals: Denormals = "flush"


DEFAULT = Selection()
_current: ContextVar[Selection] = ContextVar("thalweg_engine", default=DEFAULT)


def current() -> Selection:
    """The selection in force."""
    return _current.get()


def check_name(name: str) -> EngineName:
    """The name, if it is an engine's.

    Raises:
        ValueError: If it is not; lists the engines.
    """
    if name not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(map(repr, ENGINES))}, not {name!r}.")
    return name


def engine(
    name: EngineName | None = None, *, denormals: Denormals | None = None
) -> contextlib.AbstractContextManager[None]:
    """Choose the engine for the steps taken inside a `with` block.

    Args:
        name: "reference" computes whole arrays with NumPy and is the specification; "cpu" runs each
            rule as one fused, compiled pass; "auto", the default, takes "cpu" where the memory
            layout allows it. None keeps the engine in force.
        denormals: "flush" treats numbers below 1.2e-38 (float32) as zero, as TensorFlow does;
            "keep" is IEEE arithmetic. None keeps the setting in force, "flush" by default.

    Raises:
        ValueError: If a name is unknown.

    Example:
        >>> import thalweg
        >>> with thalweg.engine("reference", denormals="keep"):
        ...     pass
    """
    if name is not None:
        check_name(name)
    if denormals is not None and denormals not in DENORMALS:
        raise ValueError(f"denormals must be 'flush' or 'keep', not {denormals!r}.")
    return _chosen(name, denormals)


@contextlib.contextmanager
def _chosen(name: EngineName | None, denormals: Denormals | None) -> Generator[None]:
    before = current()
    token = _current.set(Selection(name or before.name, denormals or before.denormals))
    try:
        yield
    finally:
        _current.reset(token)
