"""Programs that compute the scalars of a rule in each replayed step.

`derived` computes them from hyperparameters and the step count; `scalar_tracing.py` traces it to a
program that the native call runs. If tracing fails, `derived` runs in Python at each step. This
applies to the rules of this library: a user's function may compute differently each time, so its
steps are not replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch import Tensor

from thalweg._core.scalar_tracing import Program
from thalweg._core.step_scalars import derived
from thalweg._engines.cpu.guard_table import KINDS

if TYPE_CHECKING:
    from thalweg._core.replay import Launch
    from thalweg._engines.protocol import Dtype
    from thalweg.formula import Rule

# The name of the step count among the inputs of a program; the others are hyperparameters.
_STEP = ""


def program_of(rule: Rule, dtype: Dtype, names: Sequence[str]) -> Program:
    """Return a program that computes a rule's scalars from hyperparameters and the step count.

    Args:
        dtype: The compute dtype.
        names: The names of the hyperparameters.

    Raises:
        TypeError: The rule reads other scalars, or C's `pow` is not available.
    """

    def make(values: Mapping[str, Any], kind: Any) -> Mapping[str, object]:
        return derived(rule, {name: values[name] for name in names}, kind, values[_STEP])

    return Program(dtype, {_STEP: dtype}, names, make)


class RuleScalars:
    """Scalars of a rule for a set of variables, recomputed at each replayed step.

    The program is traced at first use. It reads its inputs from registers: the step count, and each
    hyperparameter.

    Args:
        launch: The kernel that reads the scalars.
        at: The index of the set of variables in `launch`.
        loads: {hyperparameter: tensor of the compute dtype from which the program loads it}.

    Attributes:
        values: The dict of hyperparameters whose numbers are in the registers; None without a
            program.
        set: `set(index, number)` sets a register; index 0 is the step count.
        places: The register indices of hyperparameters by name.
    """

    values: Mapping[str, Any] | None = None
    set: Callable[[int, Any], None]
    places: Mapping[str, int]

    def __init__(
        self,
        rule: Rule,
        launch: Launch,
        at: int = 0,
        loads: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> None:
        self._loads = loads
        self._rule, self._launch, self._at = rule, launch, at
        self._program: Program | None = None
        # A program writes to the kernel's rows only, but reductions read these scalars, too.
        self._may_have_program = launch.measures is None

    def made(self, values: Mapping[str, object], step: int | None) -> Mapping[str, Any] | None:
        """Return {name: scalar} of a step; None if the native call computes the scalars.

        Args:
            values: {name: hyperparameter}, scalars of the compute dtype. After a change of this
                dict, call `change`.
            step: The number of the step, from 1. None returns `values` unchanged, and drops the
                program.
        """
        if step is None:
            self._forget()
            return values
        dtype = self._launch.dtype
        if values is not self.values:
            self._take_up(values, dtype)
        program = self._program
        if program is None:
            return derived(self._rule, {**values}, dtype, step)
        program.set(0, dtype(step))
        return None

    def change(self, values: Mapping[str, Any], name: str) -> None:
        """Copy the new number of one hyperparameter to the program's register.

        If the number has another dtype than the compute dtype, the next call of `made` drops the
        program and computes in Python.

        Args:
            values: The dict of the last call of `made`; a call with another dict has no effect.
        """
        if values is self.values:
            if type(values[name]) is self._launch.dtype:
                self.set(self.places[name], values[name])
            else:
                self.values = None

    def pack(self, values: Mapping[str, object], step: int) -> bytes | None:
        """Return the step number and the hyperparameters as bytes of the program's registers.

        The registers are not changed. Return None if there is no program, if a value has another
        dtype, or if the names differ from the names of the program.
        """
        dtype = self._launch.dtype
        if self._may_have_program:
            self._take_up(values, dtype)
        program = self._program
        if program is None or {*map(type, values.values())} != {dtype}:
            return None
        if [*values] != program.names:
            return None
        # A step with these bytes sets the registers, so they no longer have the numbers of a dict.
        self.values = None
        return program.pack((dtype(step), *values.values()))

    @property
    def span(self) -> tuple[int, int]:
        """Address of the first register, and number of inputs; (0, 0) without a program."""
        return (0, 0) if self._program is None else self._program.span

    def register(self, name: str) -> int:
        """Return the address of the register of a value by its name."""
        return self.span[0] + 8 * self.places[name]

    def computed_register(self, name: str) -> int:
        """Return the address of the register of a scalar that the program computes, or 0."""
        if self._program is None:
            return 0
        return self.span[0] + 8 * int(self._program.registers_of([name])[0])

    def _take_up(self, values: Mapping[str, object], dtype: Dtype) -> None:
        """Copy all hyperparameters to the program's registers; the first call traces the program.

        If a value is not of `dtype`, or the names have changed, drop the program permanently.
        """
        are_usual = set(map(type, values.values())) <= {dtype}
        if self._may_have_program:
            self._may_have_program = False
            try:
                self._program = program_of(self._rule, dtype, [*values]) if are_usual else None
            except TypeError:
                return
            if self._program is not None:
                self.places = {name: place for place, name in enumerate(values, 1)}
                loads = [
                    (self.places[name], tensor.data_ptr(), KINDS[tensor.dtype])
                    for name, tensor in self._loads.items()
                ]
                self._program.place(*self._launch.program(self._at), loads)
                self.set = self._program.set
        program = self._program
        if program is None:
            return
        if not are_usual or [*values] != program.names:
            self._forget()
            return
        program.give(values.values())
        self.values = values

    def _forget(self) -> None:
        """Drop the program and clear its record in the launch."""
        if self._program is not None:
            self._launch.program(self._at)[0][:] = 0
        self._program = self.values = None
