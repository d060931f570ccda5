"""Trace arithmetic of scalars with symbols, to repeat it in native code.

The trace becomes a program (`_engines/cpu/scalar_program.py`) with the bits that the formula has on
NumPy's scalars and arrays: an operation is of float32 unless one of its numbers is of
float64; numbers of Python's have the type of the others.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from thalweg._base.scalars import POWF
from thalweg._engines import libm
from thalweg._engines.cpu import scalar_program

if TYPE_CHECKING:
    from thalweg._engines.array_types import Int64
    from thalweg._engines.protocol import Dtype

_OPERATIONS: dict[object, int] = {
    np.add: scalar_program.ADD,
    np.subtract: scalar_program.SUBTRACT,
    np.multiply: scalar_program.MULTIPLY,
    np.divide: scalar_program.DIVIDE,
    np.sqrt: scalar_program.ROOT,
    np.power: scalar_program.RAISE,  # `formula.power` of a symbol
    np.greater: scalar_program.GREATER,
    np.less: scalar_program.LESS,
    np.greater_equal: scalar_program.AT_LEAST,
    np.not_equal: scalar_program.UNEQUAL,
    np.equal: scalar_program.EQUAL,
    np.negative: scalar_program.MULTIPLY,  # by -1
    np.bitwise_or: scalar_program.EITHER,
    np.bitwise_and: scalar_program.BOTH,
    np.where: scalar_program.CHOOSE,
}
_COMPARES = {
    scalar_program.AT_LEAST,
    scalar_program.GREATER,
    scalar_program.LESS,
    scalar_program.UNEQUAL,
    scalar_program.EQUAL,
}
_OF_CONDITIONS = {scalar_program.EITHER, scalar_program.BOTH}
# Attributes that mark tensors in formulas; symbols lack them.
_OF_TENSORS = {"clamp", "item", "where", "sample"}


class _Tape:
    """What is done to symbols.

    Args:
        dtype: The compute dtype.
        given: The types of the numbers that are given, by name: they have the first registers.
        samples: Optional. A value of each of these numbers. A formula may then branch on symbols:
            it takes the branch of the samples, and a run that would take another one fails.
    """

    def __init__(
        self, dtype: Dtype, given: Mapping[str, Dtype], samples: Mapping[str, float] | None = None
    ) -> None:
        self._dtype = dtype
        self._decides = samples is not None
        self.is_speculative = False  # what is computed may be discarded
        self.registers = [0.0] * len(given)
        self.operations: list[tuple[int, ...]] = []
        # Classes of its own, for formulas that make numbers by `type(x)`.
        kinds = (np.float32, np.float64, np.bool)
        self.kinds: dict[Any, Any] = {
            kind: type("Symbol", (Symbol,), {"tape": self, "dtype": kind}) for kind in kinds
        }
        each = enumerate(given.items())
        self.given = {name: self.kinds[kind](register=k) for k, (name, kind) in each}
        for name, number in (samples or {}).items():
            self.given[name].sample = self.given[name].dtype(number)

    def register_of(self, number: Any, dtype: Any) -> int:
        """The register of a symbol of a type, or of a constant."""
        if type(number) is self.kinds[dtype]:
            return number.register
        if dtype is np.bool or type(number) not in (int, float, dtype):
            raise TypeError(f"{number!r} is no number of {dtype.__name__}.")
        return self._append(float(dtype(number)))

    def record(self, operation: int, *given: object) -> object:
        """What an operation makes of up to three of them."""
        numbers = given[1:] if operation == scalar_program.CHOOSE else given
        found = {type(each).dtype for each in numbers if isinstance(each, Symbol)}
        if operation in _OF_CONDITIONS:
            dtype = np.bool
        else:
            dtype = np.float64 if np.float64 in found else np.float32 if found else self._dtype
        if operation == scalar_program.RAISE and dtype is not self._dtype:
            raise TypeError("Powers are of the compute dtype.")
        own = [self._register_in(each, dtype) for each in numbers]
        if operation == scalar_program.CHOOSE:
            own = [self.register_of(given[0], np.bool), *own]
        return self._append_operation(
            operation, own, dtype, np.bool if operation in _COMPARES else dtype
        )

    def narrowed(self, symbol: Any) -> object:
        """A symbol of float64 as one of float32."""
        one = self._append(1.0)
        made = self._append_operation(
            scalar_program.MULTIPLY, [symbol.register, one], np.float32, np.float32
        )
        made.sample = np.float32(symbol.sample)
        return made

    def decide(self, symbol: Any) -> bool:
        """Return the truth of a symbol's sample; have a run fail where it is another one.

        Raises:
            TypeError: There are no samples.
        """
        # Guards of numbers that may be discarded would be discarded, too.
        if not self._decides or self.is_speculative:
            raise TypeError("A branch depends on a number.")
        truth, condition = bool(symbol.sample), symbol
        if not isinstance(symbol, self.kinds[np.bool]):
            condition = symbol != 0.0
        if not truth:
            wrong = self._append_operation(
                scalar_program.SUBTRACT,
                [self._append(1.0), condition.register],
                np.float64,
                np.float64,
            )
            condition = wrong
        # The quotient is not finite where the condition is 0.
        own = [self._append(1.0), condition.register]
        self._append_operation(scalar_program.DIVIDE, own, np.float64, np.float64)
        return truth

    def _register_in(self, number: Any, dtype: Any) -> int:
        """The same of a symbol of float32 among those of float64."""
        if dtype is np.float64 and type(number) is self.kinds[np.float32]:
            return number.register
        return self.register_of(number, dtype)

    def _append_operation(self, operation: int, own: list[int], dtype: object, made: Any) -> Any:
        found = self._append(0.0)
        flags = (
            scalar_program.ROUNDS * (dtype is np.float32)
            | scalar_program.MAY_BE_ANY * self.is_speculative
        )
        self.operations.append((operation, *(own * 3)[:3], found, flags))
        return self.kinds[made](register=found)

    def _append(self, number: float) -> int:
        self.registers.append(number)
        return len(self.registers) - 1


class Symbol(NDArrayOperatorsMixin):
    """Stands for a scalar, or for a condition."""

    tape: _Tape
    dtype: Any

    def __init__(self, number: Any = None, register: int | None = None) -> None:
        own = type(self).dtype
        self.register = self.tape.register_of(number, own) if register is None else register
        self.sample: Any = own(0 if number is None else getattr(number, "sample", number))

    def narrow(self, number: Any) -> Any:
        """What `formula.narrow` makes of a number in the type of this one."""
        if type(number) is type(self):
            return number
        if not isinstance(number, Symbol) or np.bool in (type(self).dtype, type(number).dtype):
            raise TypeError(f"{number!r} is no number.")
        if type(self).dtype is np.float32:
            return self.tape.narrowed(number)
        return self._alias(type(self), number)

    def __mod__(self, divisor: int) -> Any:
        """Return this number, which a run fails for if it is not from 0 to the divisor."""
        if not (self >= 0.0 and self < float(divisor)):
            raise TypeError("A remainder of a number that is not below the divisor.")
        return self

    def trace_choice(self, value: Callable[[], Any], other: Any) -> Any:
        """Return what a function makes where this condition holds, else a number.

        The function is traced; it may make numbers that are not finite where they are not chosen.
        If native code cannot compute it, the sample of the condition decides.
        """
        tape = self.tape
        before, tape.is_speculative = tape.is_speculative, True
        try:
            made = value()
        except TypeError:
            tape.is_speculative = before
            return value() if tape.decide(self) else other
        finally:
            tape.is_speculative = before
        choose: Any = np.where
        return choose(self, made, other)

    def widen(self) -> Any:
        """What `formula.wide` makes of it: registers are wide already."""
        return self._alias(self.tape.kinds[np.float64], self)

    @staticmethod
    def _alias(kind: Any, symbol: Any) -> Any:
        """Return a symbol of a class for the number of another one."""
        made = kind(register=symbol.register)
        made.sample = kind.dtype(symbol.sample)
        return made

    double = widen  # as tensors have it

    def __array_ufunc__(self, ufunc: Any, method: str, *given: Any, **options: Any) -> Any:
        if method != "__call__" or options or ufunc not in _OPERATIONS:
            return NotImplemented
        minus = (-1.0,) if ufunc is np.negative else ()
        made: Any = self.tape.record(_OPERATIONS[ufunc], *given, *minus)
        with np.errstate(all="ignore"):
            made.sample = ufunc(*(getattr(each, "sample", each) for each in given))
        return made

    def __array_function__(self, function: Any, kinds: Any, given: Any, options: Any) -> Any:
        return self.__array_ufunc__(function, "__call__", *given, **options)

    def __bool__(self) -> bool:
        return self.tape.decide(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in _OF_TENSORS:  # which NumPy and formulas ask for
            raise AttributeError(name)
        raise TypeError(f"A symbol has no {name}.")


class Program:
    """How scalars come of others.

    Args:
        dtype: The compute dtype.
        apart: The types of numbers that are set by themselves, by name.
        names: Of the other scalars that are given, of the compute dtype.
        make: Given symbols by name, returns what is made of them, and the dtype for others.
        stored: The dtype that the scalars are stored in, which is the other one where numbers are
            Python's.
        samples: Optional. Values of the numbers apart and of the others, if `make` may branch on
            them and numbers are Python's: a run then fails that would branch otherwise.

    Attributes:
        inputs: Names of the numbers in the first registers, in order.

    Raises:
        TypeError: Something is done that native code does not do.
    """

    def __init__(
        self,
        dtype: Dtype,
        apart: Mapping[str, Dtype],
        names: Sequence[str],
        make: Callable[[Mapping[str, Any], Any], Mapping[str, Any]],
        stored: Dtype | None = None,
        samples: Mapping[str, float] | None = None,
    ) -> None:
        self._is_narrow = dtype is np.float32
        self._stored, self._is_pythons = stored or dtype, stored is not None
        power = POWF if self._is_narrow else libm.power
        self._power = 0 if power is None else libm.address_of(power)
        if samples is not None and stored is None:
            raise ValueError("samples need stored: only Python's numbers are checked in a run.")
        given = {**apart, **dict.fromkeys(names, dtype)}
        self.inputs = [*given]
        tape = _Tape(dtype, given, samples)
        made = make(tape.given, tape.kinds[dtype])
        self.names = names
        self._made = {
            name: each.register
            for name, each in made.items()
            if type(each) in (tape.kinds[np.float32], tape.kinds[np.float64])
        }
        if len(self._made) < len(made):
            raise TypeError("Something is made that is no number.")
        if power is None and any(own[0] == scalar_program.RAISE for own in tape.operations):
            raise TypeError("Powers of float32 are not C's.")
        self._operations = np.array(tape.operations, np.int64).reshape(-1, scalar_program.OPERATION)
        self._registers = array("d", tape.registers)
        self._begin = 8 * len(apart)
        self._layout = Struct(f"={len(names)}d")
        self._whole_layout = Struct(f"={len(given)}d")

    def again(self) -> Program:
        """The same for other numbers."""
        made = copy(self)
        made._registers = self._registers[:]
        return made

    def place(
        self,
        record: Int64,
        names: Sequence[str],
        row: int,
        rows: int,
        inputs: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        """Write the record of the program, which then points at its registers.

        Args:
            record: The record, zeros so far; it changes.
            names: Of the scalars of a row.
            row: Where the first row lies.
            rows: How many there are.
            inputs: For each register that is loaded from memory at every run its index, the
                address of the number and the kind of that number.
        """
        self._names = self.registers_of(names)
        self._inputs = np.array(inputs, np.int64).reshape(-1, scalar_program.INPUT // 8)
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
            self._stored is np.float32,
            self._is_pythons,
            len(self._inputs),
            self._inputs.ctypes.data,
            scalar_program.NONE,
            0,
            0,
        ]

    def registers_of(self, names: Iterable[str]) -> Int64:
        """Where what it makes is; `program.NONE` for what it does not."""
        return np.array([self._made.get(name, scalar_program.NONE) for name in names], np.int64)

    @property
    def span(self) -> tuple[int, int]:
        """The address of the first register, and the number of those that are given."""
        return self._registers.buffer_info()[0], len(self.inputs)

    def pack(self, values: Iterable[object]) -> bytes:
        """Return numbers for all registers that are given, as the registers have them."""
        return self._whole_layout.pack(*values)

    def give(self, values: Iterable[object]) -> None:
        """Set what the scalars are made of, all at once."""
        self._layout.pack_into(self._registers, self._begin, *values)

    def set(self, place: int, number: Any) -> None:
        """Set one of the numbers apart."""
        self._registers[place] = number
