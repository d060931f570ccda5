"""Trace arithmetic of scalars with symbols, to repeat it in native code.

The trace becomes a program (`_engines/cpu/scalar_program.py`) with the bits that the formula has on
NumPy's scalars and arrays: an operation is in float32 unless one of its operands is float64; Python
numbers take the type of the other operands.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from thalweg._base.scalars import POWF
from thalweg._engines import libm
from thalweg._engines.cpu import scalar_program
from thalweg._engines.cpu.replay_records import (
    make_inputs,
    set_state_numbers,
    write_program_record,
)

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
_CONDITION_OPERATIONS = {scalar_program.EITHER, scalar_program.BOTH}
# Attributes that mark tensors in formulas; symbols lack them.
_TENSOR_ATTRIBUTES = {"clamp", "item", "where", "sample"}


class _Tape:
    """Recorder of the operations on symbols.

    Args:
        dtype: The compute dtype.
        inputs: The dtypes of the inputs by name; the inputs have the first registers.
        samples: Optional sample values of the inputs, which allow a formula to branch on symbols.
            The trace follows the samples; a run that would branch differently fails.
    """

    def __init__(
        self, dtype: Dtype, inputs: Mapping[str, Dtype], samples: Mapping[str, float] | None = None
    ) -> None:
        self._dtype = dtype
        self._decides = samples is not None
        # True while operations are recorded whose results a run may discard.
        self.is_speculative = False
        self.registers = [0.0] * len(inputs)
        self.operations: list[tuple[int, ...]] = []
        # Each tape has its own classes, because formulas construct numbers by `type(x)`.
        kinds = (np.float32, np.float64, np.bool)
        self.kinds: dict[Any, Any] = {
            kind: type("Symbol", (Symbol,), {"tape": self, "dtype": kind}) for kind in kinds
        }
        numbered_inputs = enumerate(inputs.items())
        self.inputs = {name: self.kinds[kind](register=k) for k, (name, kind) in numbered_inputs}
        for name, value in (samples or {}).items():
            self.inputs[name].sample = self.inputs[name].dtype(value)

    def register_of(self, value: Any, dtype: Any) -> int:
        """Return the register of a symbol, or a new register with a constant.

        Raises:
            TypeError: `value` is a symbol of another dtype than `dtype`. Or `value` is a constant,
                and `dtype` is bool. Or the constant is no int, float or scalar of `dtype`.
        """
        if type(value) is self.kinds[dtype]:
            return value.register
        if dtype is np.bool or type(value) not in (int, float, dtype):
            raise TypeError(f"{value!r} is not a number of {dtype.__name__}.")
        return self._append(float(dtype(value)))

    def record(self, operation: int, *operands: object) -> object:
        """Append an operation on up to three operands; return the symbol of its result.

        The result of a comparison is a bool. The result of arithmetic is float64 if an operand is a
        float64 symbol. Without float64 symbols, the result is float32 if an operand is a float32
        symbol. If all operands are constants, the result has the compute dtype.

        Raises:
            TypeError: Native code cannot compute the operation on these operands.
        """
        values = operands[1:] if operation == scalar_program.CHOOSE else operands
        dtypes = {type(value).dtype for value in values if isinstance(value, Symbol)}
        if operation in _CONDITION_OPERATIONS:
            dtype = np.bool
        else:
            narrow_dtype = np.float32 if dtypes else self._dtype
            dtype = np.float64 if np.float64 in dtypes else narrow_dtype
        if operation == scalar_program.RAISE and dtype is not self._dtype:
            raise TypeError("Powers are of the compute dtype.")
        registers = [self._register_in(operand, dtype) for operand in values]
        if operation == scalar_program.CHOOSE:
            registers = [self.register_of(operands[0], np.bool), *registers]
        return self._append_operation(
            operation, registers, dtype, np.bool if operation in _COMPARES else dtype
        )

    def narrowed(self, symbol: Any) -> object:
        """Append the rounding of a float64 symbol to float32; return the symbol of the result."""
        one_register = self._append(1.0)
        narrow_symbol = self._append_operation(
            scalar_program.MULTIPLY, [symbol.register, one_register], np.float32, np.float32
        )
        narrow_symbol.sample = np.float32(symbol.sample)
        return narrow_symbol

    def decide(self, symbol: Any) -> bool:
        """Return the truth value of a symbol's sample, and record a guard on it.

        A run with another truth value fails: the guard divides by 0.

        Raises:
            TypeError: The tape has no samples. Or `trace_choice` is running its argument `value`,
                whose guards could be discarded.
        """
        # A guard in a discarded branch would be discarded, too.
        if not self._decides or self.is_speculative:
            raise TypeError("A branch depends on a number.")
        truth, condition = bool(symbol.sample), symbol
        if not isinstance(symbol, self.kinds[np.bool]):
            condition = symbol != 0.0
        if not truth:
            operands = [self._append(1.0), condition.register]
            condition = self._append_operation(
                scalar_program.SUBTRACT, operands, np.float64, np.float64
            )
        # The quotient is not finite where the condition is 0.
        operands = [self._append(1.0), condition.register]
        self._append_operation(scalar_program.DIVIDE, operands, np.float64, np.float64)
        return truth

    def _register_in(self, value: Any, dtype: Any) -> int:
        """Return `register_of` for an operand; a float64 operation accepts float32 symbols, too."""
        if dtype is np.float64 and type(value) is self.kinds[np.float32]:
            return value.register
        return self.register_of(value, dtype)

    def _append_operation(
        self, operation: int, operands: list[int], dtype: object, output_dtype: Any
    ) -> Any:
        """Append an operation on registers to the trace; return the symbol of its result.

        Args:
            operation: A constant of `scalar_program`.
            operands: The indices of up to three registers.
            dtype: numpy.float32 to round the result to float32; other dtypes do not round.
            output_dtype: The dtype of the symbol.
        """
        output = self._append(0.0)
        flags = (
            scalar_program.ROUNDS * (dtype is np.float32)
            | scalar_program.MAY_BE_ANY * self.is_speculative
        )
        self.operations.append((operation, *(operands * 3)[:3], output, flags))
        return self.kinds[output_dtype](register=output)

    def _append(self, value: float) -> int:
        """Add a register with this number; return its index."""
        self.registers.append(value)
        return len(self.registers) - 1


class Symbol(NDArrayOperatorsMixin):
    """Traced scalar or condition: a register of the program, and a sample value."""

    tape: _Tape
    dtype: Any

    def __init__(self, value: Any = None, register: int | None = None) -> None:
        dtype = type(self).dtype
        self.register = self.tape.register_of(value, dtype) if register is None else register
        self.sample: Any = dtype(0 if value is None else getattr(value, "sample", value))

    def narrow(self, value: Any) -> Any:
        """Return `value` converted to this symbol's dtype, as a symbol.

        Raises:
            TypeError: `value` is a constant, or only one of the two symbols is a condition.
        """
        if type(value) is type(self):
            return value
        if not isinstance(value, Symbol) or np.bool in (type(self).dtype, type(value).dtype):
            raise TypeError(f"{value!r} is not a symbol of a number.")
        if type(self).dtype is np.float32:
            return self.tape.narrowed(value)
        return self._alias(type(self), value)

    def __mod__(self, divisor: int) -> Any:
        """Return this symbol, and record a guard that its number is in [0, divisor).

        A run with a number outside of this range fails.

        Raises:
            TypeError: The sample is outside this range.
        """
        # `and` and `not` call `__bool__`, which records a guard for each comparison.
        if not (self >= 0.0 and self < float(divisor)):
            raise TypeError("A remainder of a number that is not below the divisor.")
        return self

    def trace_choice(self, value: Callable[[], Any], alternative: Any) -> Any:
        """Return the symbol of "value() if self else alternative".

        The traced program computes both results and selects one of them in each run.

        If the call of `value` raises TypeError, the program has only one of the results. The sample
        of this condition selects the result now; `value` is called again if the sample is True.
        A run in which the condition differs from the sample then fails. Without samples, raise the
        TypeError.

        Args:
            value: Called without arguments; returns a symbol or number.
            alternative: A symbol or number.
        """
        tape = self.tape
        was_speculative, tape.is_speculative = tape.is_speculative, True
        try:
            outcome = value()
        # The operations of `value` stay on the tape, but runs do not check their results.
        except TypeError:
            tape.is_speculative = was_speculative
            return value() if tape.decide(self) else alternative
        finally:
            tape.is_speculative = was_speculative
        choose: Any = np.where
        return choose(self, outcome, alternative)

    def widen(self) -> Any:
        """Return a float64 symbol of the same register, for `formula.wide`."""
        return self._alias(self.tape.kinds[np.float64], self)

    @staticmethod
    def _alias(kind: Any, symbol: Any) -> Any:
        """Return a symbol of a class for the register of another symbol."""
        alias = kind(register=symbol.register)
        alias.sample = kind.dtype(symbol.sample)
        return alias

    # Tensors have a method of this name.
    double = widen

    def __array_ufunc__(self, ufunc: Any, method: str, *operands: Any, **options: Any) -> Any:
        if method != "__call__" or options or ufunc not in _OPERATIONS:
            return NotImplemented
        minus = (-1.0,) if ufunc is np.negative else ()
        symbol: Any = self.tape.record(_OPERATIONS[ufunc], *operands, *minus)
        with np.errstate(all="ignore"):
            symbol.sample = ufunc(*(getattr(operand, "sample", operand) for operand in operands))
        return symbol

    def __array_function__(self, function: Any, kinds: Any, operands: Any, options: Any) -> Any:
        return self.__array_ufunc__(function, "__call__", *operands, **options)

    def __bool__(self) -> bool:
        return self.tape.decide(self)

    def __getattr__(self, name: str) -> Any:
        # NumPy and formulas test for these attributes.
        if name.startswith("__") or name in _TENSOR_ATTRIBUTES:
            raise AttributeError(name)
        raise TypeError(f"A symbol has no {name}.")


class Program:
    """Program of native code that computes scalars from inputs, traced from a function.

    Args:
        dtype: The compute dtype.
        single_inputs: {name: dtype} of the inputs that `set` changes one by one.
        names: The names of the other inputs, which are of the compute dtype.
        make: `make({name: input symbol}, symbol class of the compute dtype)` returns {name:
            scalar}.
        storage_dtype: Optional. The dtype of stored scalars, `dtype` by default.
        samples: Optional. Sample values of all inputs, as Python numbers. `make` may then branch on
            inputs; a run that would branch differently fails.
        state_names: Inputs whose next values `make` returns, after the first of `single_inputs`.

    Attributes:
        inputs: The names of the inputs, in the order of their registers.
        is_narrow: True if the compute dtype is float32.

    Raises:
        TypeError: `make` does something that native code cannot do.
    """

    def __init__(
        self,
        dtype: Dtype,
        single_inputs: Mapping[str, Dtype],
        names: Sequence[str],
        make: Callable[[Mapping[str, Any], Any], Mapping[str, Any]],
        storage_dtype: Dtype | None = None,
        samples: Mapping[str, float] | None = None,
        state_names: Sequence[str] = (),
    ) -> None:
        self.is_narrow = dtype is np.float32
        self._storage_dtype, self._is_pythons = storage_dtype or dtype, samples is not None
        power = POWF if self.is_narrow else libm.power
        self._power = 0 if power is None else libm.address_of(power)
        inputs = {**single_inputs, **dict.fromkeys(names, dtype)}
        self.inputs = [*inputs]
        tape = _Tape(dtype, inputs, samples)
        outputs = make(tape.inputs, tape.kinds[dtype])
        self.names = names
        self._outputs = {
            name: output.register
            for name, output in outputs.items()
            if type(output) in (tape.kinds[np.float32], tape.kinds[np.float64])
        }
        if len(self._outputs) < len(outputs):
            raise TypeError("make returned a scalar that is not a symbol of a number.")
        self._state_registers = self.registers_of(state_names)
        if power is None and any(code == scalar_program.RAISE for code, *_ in tape.operations):
            raise TypeError("Powers of float32 are not C's.")
        self._operations = np.array(tape.operations, np.int64).reshape(-1, scalar_program.OPERATION)
        self._registers = array("d", tape.registers)
        self._begin = 8 * len(single_inputs)
        self._layout = Struct(f"={len(names)}d")
        self._whole_layout = Struct(f"={len(inputs)}d")

    def place(
        self,
        record: Int64,
        names: Sequence[str],
        row: int,
        rows: int,
        inputs: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        """Fill `record`, the array of integers from which native code runs this program.

        Args:
            record: The array to fill.
            names: The names of the scalars in a row, in their order in memory.
            row: The address of the first row of scalars.
            rows: The number of rows.
            inputs: (register, address of a number, type code of the number) for each register that
                every run loads from memory.
        """
        self._names = self.registers_of(names)
        self._inputs = make_inputs(inputs)
        write_program_record(
            record,
            self._operations,
            self._registers.buffer_info()[0],
            self._names,
            (rows, row),
            self._inputs,
            self._power,
            in_float32=self.is_narrow,
            stores_float32=self._storage_dtype is np.float32,
            is_pythons=self._is_pythons,
        )
        set_state_numbers(record, self._state_registers)

    def registers_of(self, names: Iterable[str]) -> Int64:
        """Return the registers of computed scalars; NONE for names that are not computed."""
        return np.array([self._outputs.get(name, scalar_program.NONE) for name in names], np.int64)

    @property
    def span(self) -> tuple[int, int]:
        """The address of the first register, and the number of inputs."""
        return self._registers.buffer_info()[0], len(self.inputs)

    def pack(self, values: Iterable[object]) -> bytes:
        """Return the values of all inputs as the bytes of their registers."""
        return self._whole_layout.pack(*values)

    def give(self, values: Iterable[object]) -> None:
        """Set the inputs of `names`, all at once."""
        self._layout.pack_into(self._registers, self._begin, *values)

    def set(self, place: int, value: Any) -> None:
        """Set one of the `single_inputs` by its index."""
        self._registers[place] = value
