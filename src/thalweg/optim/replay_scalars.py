"""Scalars of each group, such as rates and bias corrections, for the steps of a replay."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._base.lazy import lazy
from thalweg._core.param_groups import Group
from thalweg._core.scalar_tracing import Program, Symbol
from thalweg._core.step_adapter import Dtype
from thalweg._core.step_scalars import derived
from thalweg._engines.random_bits import step_scalar
from thalweg.optim.group_options import MOST_READ, Options
from thalweg.optim.param_scalars import STEP, Column
from thalweg.optim.tensor_lr import TensorRate
from thalweg.variable import check_number

RATE = "learning_rate"
_DTYPES: dict[torch.dtype, Dtype] = {torch.float32: np.float32, torch.float64: np.float64}


class GroupScalars:
    """Scalars of successive steps, for parameters of a group with equal per-parameter numbers.

    Args:
        place: The index of the group.
        first: The position of the first of the parameters in the step.
    """

    def __init__(self, adapter: Any, place: int, first: int) -> None:
        self.place, self._first = place, first
        self._adapter = adapter
        self._rule = adapter.step_rule()
        self._read_options()
        # Options and codecs add scalars to those of the rule, and other code may write to tensors.
        has_extra_numbers = bool(adapter.optimizer.step_options.wrapping or self._rule.codecs)
        self._needs_full_prepare = has_extra_numbers or self._moves()

    def hold(self, group: Group) -> bool:
        """Return True if all options of `group` except `lr` are unchanged since the last read.

        If only `lr` changed, read it for later steps.
        """
        options = self.options
        if options.hold(group):
            return True
        if not hold(options, group):
            return False
        self._read_options()
        return True

    def _read_options(self) -> None:
        """Read the options of the group, and values derived from them."""
        self.options: Options = self._adapter.part.options(self.place, self._adapter.optimizer)

    def _moves(self) -> bool:
        """Return True if an option other than the rate is a tensor, which other code may change."""
        return self.options.moves


class TorchScalars(GroupScalars):
    """Scalars of a group, computed as `TorchStepAdapter.scalars_of` computes them."""

    def _read_options(self) -> None:
        """Read the options of the group, and values derived from them."""
        super()._read_options()
        adapter, options = self._adapter, self.options
        _, self._state_numbers = adapter.split_key(self._careful_key())
        columns = adapter.part.columns
        self._state_dtypes = {
            column.name: _DTYPES.get(column.dtype, np.float64)
            for column in columns
            if column.name != STEP
        }
        self._hypers = options.numbers(adapter.is_on_step_device)
        self._arguments = {**self._hypers, **self._state_numbers}
        self._prepare_arguments = options.given_to_prepare({**self._state_numbers, "t": 1})
        self._rate = options.moving_rate

    def _moves(self) -> bool:
        """Return True if an option other than the rate is a tensor: other code may change it."""
        return self.options.moves and self._rate is None

    def made(self, columns: Sequence[Column]) -> dict[str, Any]:
        """Return {name: scalar} of the next step, from the present numbers in `columns`."""
        if self._needs_full_prepare:
            return self._adapter.prepare_scalars(self._careful_key())
        if self._rate is None:
            return self._compute(columns)
        try:
            return self._compute_with_tensor(self._rate, columns)
        # Torch computes what the NumPy arithmetic of `TensorRate` does not support.
        except (TypeError, ArithmeticError):
            return self._adapter.prepare_scalars(self._careful_key())

    def reads(self, names: Sequence[str]) -> bool:
        """Return True if native programs read these hyperparameters anew at every step."""
        return set(names) <= set(self._inputs)

    def check_in_call(self) -> None:
        """Raise if native code cannot compute the scalars of the group.

        Raises:
            TypeError: An option is a tensor that native code does not read.
            TypeError, ValueError, ArithmeticError: The formula of the scalars cannot be traced.
        """
        rate = self._rate
        if self.options.moves and (rate is None or rate.dtype not in _DTYPES or not rate.is_cpu):
            raise TypeError("A hyperparameter is a tensor that native code does not read.")
        self.program_for(np.float32)

    @lazy
    def _inputs(self) -> list[str]:
        """Hyperparameters that programs read at every step."""
        return self._find_inputs()

    def program_for(self, dtype: Dtype) -> Program:
        """Return the native program that computes the scalars of a kernel with a compute dtype.

        The first register of the program is the step count; further ones are hyperparameters.

        Raises:
            TypeError, ValueError, ArithmeticError: Native code cannot compute the scalars.
        """
        return self._traced(dtype, self._inputs)

    def _find_inputs(self) -> list[str]:
        """Return the names of the hyperparameters that native programs read at every step.

        The names are those of all options that are floats. If the formula of the scalars cannot be
        traced with these inputs, return only the learning rate. All other values are then constants
        of the program.
        """
        entries = [name for names in self.options.entries.values() for name in names]
        rate = [name for name in entries if name == RATE]
        try:
            self._traced(np.float32, entries)
        except (TypeError, ValueError, ArithmeticError):
            return rate
        return entries

    def _traced(self, dtype: Dtype, names: Sequence[str]) -> Program:
        """Return a new native program that computes the scalars of the group.

        Its inputs are the step count, other per-parameter numbers, and the hyperparameters `names`.
        All other hyperparameters are constants of the program.

        Args:
            names: The hyperparameters that each run reads.

        Raises:
            TypeError, ValueError, ArithmeticError: Native code cannot compute the scalars.
        """
        state_names = [*self._state_dtypes]
        input_dtypes: dict[str, Dtype] = {STEP: np.float64, **self._state_dtypes}
        # `prepare` may branch on numbers: the branches of the next step are traced.
        samples = {STEP: self._arguments.get(STEP, 0) + 1}
        samples |= {name: self._arguments[name] for name in (*state_names, *names)}
        rate = self._rate
        if rate is not None:
            input_dtypes[RATE] = _DTYPES[rate.dtype]
            samples[RATE] = float(rate.item())
        arguments = np.float64, input_dtypes, names, self._make
        return Program(*arguments, storage_dtype=dtype, samples=samples, state_names=state_names)

    def _make(self, symbols: Mapping[str, Any], number: Any) -> dict[str, Any]:
        """Return {name: symbol} of all scalars, for the tracing of a program.

        A symbol is a traced value: arithmetic on symbols records operations.

        Args:
            symbols: {name: symbol} of the inputs of the program.
            number: `number(value)` returns the symbol of a constant.
        """
        step, read = symbols[STEP], {**symbols}
        if self._rate is not None:
            read[RATE] = TensorRate(read[RATE])
        own_numbers = {name: symbols[name] for name in self._state_dtypes}
        numbers = {**self._state_numbers, **own_numbers, "t": step, STEP: step}
        former_step = step - 1.0 if STEP in self._state_numbers else 1
        for option in self._adapter.optimizer.step_options.wrapping:
            numbers |= option.scalars((), former_step)
        if self._rule.codecs and STEP in self._state_numbers:
            numbers |= step_scalar(former_step)
        arguments = {**self.options.given(), **read, **numbers}
        prepare_arguments = {name: arguments[name] for name in self._prepare_arguments}
        scalars = {**self._hypers, **read, **numbers}
        if self._rule.prepare is not None:
            scalars |= self._rule.prepare(**prepare_arguments)
        return {name: _as_symbol(scalar, number) for name, scalar in scalars.items()}

    def _careful_key(self) -> Hashable:
        """Return the key of these parameters in a step without replay.

        It is the group's index, or a tuple of this index and the numbers that differ between
        parameters.
        """
        columns = self._adapter.part.columns
        differing_numbers = [column.of(self._first) for column in columns if column.common is None]
        return (self.place, *differing_numbers) if differing_numbers else self.place

    def _compute_with_tensor(self, tensor: Tensor, columns: Sequence[Column]) -> dict[str, Any]:
        """Return the scalars for a rate in a tensor, rounded as torch computes with tensors."""
        check_number(tensor)
        rate = self._prepare_arguments["learning_rate"] = TensorRate.of(tensor)
        scalars = self._compute(columns)
        scalars["learning_rate"] = rate.value
        return scalars

    def _compute(self, columns: Sequence[Column]) -> dict[str, Any]:
        """Return {name: scalar} of the next step from the present numbers in `columns`."""
        prepare_arguments, arguments = self._prepare_arguments, self._arguments
        for column in columns:
            name, value = column.name, column.of(self._first)
            if name == STEP:
                arguments["t"] = value = value + 1
                if "t" in prepare_arguments:
                    prepare_arguments["t"] = value
            arguments[name] = value
            if name in prepare_arguments:
                prepare_arguments[name] = value
        scalars = self._rule.prepare(**prepare_arguments)
        if self._rate is not None:
            scalars = {
                name: scalar.value if type(scalar) is TensorRate else scalar
                for name, scalar in scalars.items()
            }
        arguments.update(scalars)
        return arguments


class TensorFlowScalars(GroupScalars):
    """Scalars of a group, computed as `TensorFlowStepAdapter.scalars_of` computes them."""

    def __init__(self, adapter: Any, place: int, first: int) -> None:
        self._hypers: dict[Dtype, dict[str, Any]] = {}
        self._group_hypers: dict[str, Any] = {}
        super().__init__(adapter, place, first)

    def _read_options(self) -> None:
        """Read the options of the group, and values derived from them."""
        super()._read_options()
        former_hypers, self._group_hypers = self._group_hypers, self.options.given()
        # If only the rate changed, the scalars of all other hyperparameters stay.
        if {n for n, x in self._group_hypers.items() if x is not former_hypers.get(n)} - {RATE}:
            self._hypers = {}
        for dtype, dtype_hypers in self._hypers.items():
            rate = self._adapter.hyper(dtype, self.place, RATE, self._group_hypers[RATE])
            self._hypers[dtype] = {**dtype_hypers, RATE: rate}

    def numbers(self, columns: Sequence[Column], dtype: Dtype) -> tuple[dict[str, Any], int | None]:
        """Return ({name: scalar}, number of the next step), the arguments of `RuleScalars.made`.

        `made` adds the scalars that depend on the step. If options or codecs add scalars, or an
        option other than the rate is a tensor, return ({name: scalar}, None) with all scalars.

        Args:
            columns: The per-parameter numbers, each equal for all parameters.
        """
        if self._needs_full_prepare:
            return self._adapter.scalars_of(dtype, self.place), None
        if dtype not in self._hypers:
            dtype_hypers = self._adapter.hypers(dtype, self.place)
            self._hypers[dtype] = {**dtype_hypers, "is_first": dtype(0)}
        values, step = self._hypers[dtype], 0
        for column in columns:
            if column.name == STEP:
                step = column.common
            else:
                values = {**values, column.name: dtype(column.common)}
        return values, step + 1

    def made(self, columns: Sequence[Column], dtype: Dtype) -> dict[str, Any]:
        """Return {name: scalar} of the next step in a compute dtype."""
        values, step = self.numbers(columns, dtype)
        return values if step is None else derived(self._rule, {**values}, dtype, step)


def _as_symbol(value: Any, number: Any) -> Any:
    """Return a symbol, the symbol in a `TensorRate`, or `number(value)` for a number."""
    value = value.value if type(value) is TensorRate else value
    return value if isinstance(value, Symbol) else number(float(value))


def hold(options: Options | None, group: Group) -> bool:
    """Return True if `group` has the options of the snapshot `options`.

    A new `lr` is accepted if it is a number of magnitude below 1e30. Return False if `options` is
    None.
    """
    if options is None or options.hold(group):
        return options is not None
    rate: Any = group.get("lr")
    # A step without replay raises an error for other rates.
    is_ordinary_rate = type(rate) in (float, int) and -MOST_READ < rate < MOST_READ
    return is_ordinary_rate and not options.moves and options.hold_beside_rate(group)
