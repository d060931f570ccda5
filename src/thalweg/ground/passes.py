"""What a rule does before its update: passes over elements, and stages between two of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from thalweg.errors import RuleError


def _check_function(thing: Pass | Stage) -> None:
    kind, function = type(thing).__name__, thing.function
    if not callable(function):
        raise RuleError(f"A {kind} needs a function, not {function!r}.")


@dataclass(frozen=True, eq=False)
class Pass:
    """What a step makes of each element before the update, and forgets when it ends.

    Nothing that is kept is written by it.

    Args:
        function: A formula as `update` is, `(var, grad, *made, *slots, *, scalars...) -> value`, or
            several values; `made` is what passes before this one have made.
        makes: The name of each value. They are in the type of the arithmetic.

    Raises:
        RuleError: The function cannot be called, or a name is no text.
    """

    function: Callable[..., Any]
    makes: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_function(self)
        names = (self.makes,) if isinstance(self.makes, str) else tuple(self.makes)
        if not names or not all(isinstance(name, str) and name for name in names):
            raise RuleError(f"makes of a Pass must be names, not {self.makes!r}.")
        object.__setattr__(self, "makes", names)


@dataclass(frozen=True, eq=False)
class Stage:
    """Torch's functions over whole matrices, between two passes of a step.

    Args:
        function: Called with what it asks for by name: what passes have made, as tensors of shape
            (batch, rows, columns), those of variables of one shape in one batch; slots with a
            shape, as (batch, *shape); scalars, as numbers, or as tensors of shape (batch, 1, 1)
            where variables differ. Returns a dict of what becomes of some of the first two, of the
            same shapes. It writes to none of them.
        every: It is called in each step whose number is 1, 1 + every, ...

    A variable of more than two dimensions is a matrix of its first one and all others.

    Raises:
        RuleError: The function cannot be called, or `every` is no positive integer.
    """

    function: Callable[..., dict[str, Any]]
    every: int = 1

    def __post_init__(self) -> None:
        _check_function(self)
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise RuleError(f"every of a Stage must be a positive integer, not {self.every!r}.")


class Among:
    """A formula of a rule with passes, as engines run it: over all that its passes make.

    Args:
        formula: `(var, grad, *made, *slots, *, scalars)`, which takes what passes before it made.
        known: How many values these have made.
        makes: How many it makes itself. None are for the update, which returns `(var, *slots)`;
            another formula leaves all else as it was.
        total: How many values all passes make.
    """

    def __init__(self, formula: Any, known: int, makes: int, total: int) -> None:
        self.formula, self.known, self.makes, self.total = formula, known, makes, total
        self.__qualname__ = formula.__qualname__

    def __call__(self, *values: Any, **scalars: Any) -> Any:
        raise RuleError(f"{self.__qualname__} is run by engines alone.")
