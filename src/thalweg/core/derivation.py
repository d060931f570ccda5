"""The scalars of a rule from step to step: how they are made is found once, and done in the call.

What `derived` makes of hyperparameters and the number of a step is watched with symbols in place of
numbers, and becomes a program (`engines/cpu/program.py`). Where that cannot be `derived` makes the
scalars at each step. The rules are those of this library: what a user's does may be other
arithmetic each time, and such steps are not taken in one call.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from thalweg.core.columns import derived
from thalweg.engines import libm
from thalweg.engines.cpu import program
from thalweg.ground.scalars import POWF

if TYPE_CHECKING:
    from thalweg.core.steady import Launch
    from thalweg.engines.arrays import Int64
    from thalweg.engines.engine import Dtype
    from thalweg.formula import Rule

_STEP = ""  # in the place of a name

_OPERATIONS: dict[Any, int] = {
    np.add: program.ADD,
    np.subtract: program.SUBTRACT,
    np.multiply: program.MULTIPLY,
    np.divide: program.DIVIDE,
    np.sqrt: program.ROOT,
    np.power: program.RAISE,  # `formula.power` of a symbol
    np.greater: program.GREATER,
    np.not_equal: program.UNEQUAL,
    np.bitwise_or: program.EITHER,
    np.where: program.CHOOSE,
}


class _Tape:
    """What is done to symbols.

    Args:
        dtype: The type of the numbers that they stand for.
        names: Of those that are given: they have the first registers.
    """

    def __init__(self, dtype: Dtype, names: Sequence[str]) -> None:
        self._dtype = dtype
        self.registers = [0.0] * len(names)
        self.operations: list[tuple[int, ...]] = []
        # A class of its own, for formulas that make numbers by `type(x)`.
        self.kind: Any = type("Symbol", (_Symbol,), {"tape": self})
        self.given = {name: self.kind(register=k) for k, name in enumerate(names)}

    def register_of(self, number: Any) -> int:
        """The register of a symbol or of a constant."""
        if type(number) is self.kind:
            return number.register
        if type(number) not in (int, float, self._dtype):
            raise TypeError(f"{number!r} is no number of {self._dtype.__name__}.")
        return self._append(float(self._dtype(number)))

    def record(self, operation: int, *given: Any) -> Any:
        """What an operation makes of up to three of them."""
        own = list(map(self.register_of, given))
        found = self._append(0.0)
        self.operations.append((operation, *(own * 3)[:3], found))
        return self.kind(register=found)

    def _append(self, number: float) -> int:
        self.registers.append(number)
        return len(self.registers) - 1


class _Symbol(NDArrayOperatorsMixin):
    """Stands for a scalar."""

    tape: _Tape

    def __init__(self, number: Any = None, register: int | None = None) -> None:
        self.register = self.tape.register_of(number) if register is None else register

    def __array_ufunc__(self, ufunc: Any, method: str, *given: Any, **options: Any) -> Any:
        if method != "__call__" or options or ufunc not in _OPERATIONS:
            return NotImplemented
        return self.tape.record(_OPERATIONS[ufunc], *given)

    def __array_function__(self, function: Any, kinds: Any, given: Any, options: Any) -> Any:
        return self.__array_ufunc__(function, "__call__", *given, **options)

    def __bool__(self) -> bool:
        raise TypeError("What is done depends on a number.")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # which NumPy asks for
            raise AttributeError(name)
        raise TypeError(f"A symbol has no {name}.")


class Program:
    """How the scalars of a rule come of others, and of the number of a step.

    Args:
        rule: The rule.
        dtype: The compute dtype.
        names: Of the scalars that are given.

    Raises:
        TypeError: The rule asks for more than there is, or C's powers are not known.
    """

    def __init__(self, rule: Rule, dtype: Dtype, names: Sequence[str]) -> None:
        self._is_narrow = dtype is np.float32
        power = POWF if self._is_narrow else libm.power
        if power is None:
            raise TypeError("Powers of float32 are not C's.")
        self._power = libm.address_of(power)
        tape = _Tape(dtype, [*names, _STEP])
        given = {name: tape.given[name] for name in names}
        made = derived(rule, given, tape.kind, tape.given[_STEP])
        self.names = names
        self._made = {name: each.register for name, each in made.items()}
        self._operations = np.array(tape.operations, np.int64).reshape(-1, program.OPERATION)
        self._registers = array("d", tape.registers)
        self._count = len(names)
        self._layout = Struct(f"={len(names)}d")

    def place(self, record: Int64, names: Sequence[str], row: int, rows: int) -> None:
        """Have a record say what it does.

        Args:
            record: The record, zeros so far.
            names: Of the scalars of a row.
            row: Where the first row lies.
            rows: How many there are.
        """
        self._names = np.array([self._made.get(name, program.NONE) for name in names], np.int64)
        record[:] = [
            self._is_narrow,
            len(self._operations),
            self._operations.ctypes.data,
            self._registers.buffer_info()[0],
            len(names),
            self._names.ctypes.data,
            rows,
            row,
            self._power,
        ]

    def give(self, values: Iterable[Any]) -> None:
        """Set what the scalars are made of, all at once."""
        self._layout.pack_into(self._registers, 0, *values)

    def set_step(self, number: Any) -> None:
        """Set the number of the step, in the compute dtype."""
        self._registers[self._count] = number


class RuleScalars:
    """The scalars of one place of a launch, from step to step.

    Args:
        rule: The rule.
        launch: The launch.
        at: Which of its places it is.
    """

    def __init__(self, rule: Rule, launch: Launch, at: int = 0) -> None:
        self._rule, self._launch, self._at = rule, launch, at
        self._values: Mapping[str, Any] | None = None
        self._program: Program | None = None
        self._may_have_program = True

    def made(self, values: Mapping[str, Any], step: int | None) -> Mapping[str, Any] | None:
        """The scalars of a step; None if its call makes them.

        Args:
            values: Hyperparameters as scalars of the compute dtype, as `derived` takes them; nobody
                may change the dictionary afterwards.
            step: The number of the step, from 1; None if the values are all there is to be.
        """
        if step is None:
            self._forget()
            return values
        dtype = self._launch.dtype
        if values is not self._values:
            self._take_up(values, dtype)
        program = self._program
        if program is None:
            return derived(self._rule, {**values}, dtype, step)
        program.set_step(dtype(step))
        return None

    def _take_up(self, values: Mapping[str, Any], dtype: Dtype) -> None:
        are_usual = set(map(type, values.values())) <= {dtype}
        if self._may_have_program:
            self._may_have_program = False
            try:
                self._program = Program(self._rule, dtype, [*values]) if are_usual else None
            except TypeError:
                return
            if self._program is not None:
                self._program.place(*self._launch.program(self._at))
        program = self._program
        if program is None:
            return
        if not are_usual or [*values] != program.names:
            self._forget()
            return
        program.give(values.values())
        self._values = values

    def _forget(self) -> None:
        """Have no program."""
        if self._program is not None:
            self._launch.program(self._at)[0][:] = 0
        self._program = self._values = None
