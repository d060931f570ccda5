"""The scalars of a rule from step to step: how they are made is found once, and done in the call.

What `derived` makes of hyperparameters and the number of a step becomes a program; see
`symbols.py`. Where that cannot be `derived` makes the scalars at each step. The rules are those of
this library: what a user's does may be other arithmetic each time, and such steps are not taken in
one call.
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

_STEP = ""  # in the place of a name


def program_of(rule: Rule, dtype: Dtype, names: Sequence[str]) -> Program:
    """Return the program that computes a rule's scalars from given ones and the step number.

    Args:
        rule: The rule.
        dtype: The compute dtype.
        names: The names of the given scalars.

    Raises:
        TypeError: The rule reads other scalars, or C's `pow` is not available.
    """

    def make(values: Mapping[str, Any], kind: Any) -> Mapping[str, object]:
        return derived(rule, {name: values[name] for name in names}, kind, values[_STEP])

    return Program(dtype, {_STEP: dtype}, names, make)


class RuleScalars:
    """The scalars of one place of a launch, from step to step.

    Args:
        rule: The rule.
        launch: The launch.
        at: Which of its places it is.
        loads: Tensors of the compute dtype from which the program loads values, by name.

    Attributes:
        values: The dictionary of which a program makes the scalars; None if none does.
        set: Sets a number of that program: the step's at 0, one of a value at its place.
        places: The places of the values by name.
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
        self._may_have_program = launch.measures is None  # which are not made by programs

    def made(self, values: Mapping[str, object], step: int | None) -> Mapping[str, Any] | None:
        """The scalars of a step; None if its call makes them.

        Args:
            values: Hyperparameters as scalars of the compute dtype, as `derived` takes them; the
                dictionary is changed by `change` alone.
            step: The number of the step, from 1; None if the values are all there is to be.
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
        """Tell the program of one of the values that it has another value in the dictionary.

        Args:
            values: As given to `made`.
            name: The name of the value.
        """
        if values is self.values:
            if type(values[name]) is self._launch.dtype:
                self.set(self.places[name], values[name])
            else:
                self.values = None

    def pack(self, values: Mapping[str, object], step: int) -> bytes | None:
        """Return the numbers of a step as its program has them; None if no program makes scalars.

        Args:
            values, step: As those of `made`, of any step.
        """
        dtype = self._launch.dtype
        if self._may_have_program:
            self._take_up(values, dtype)
        program = self._program
        if program is None or {*map(type, values.values())} != {dtype}:
            return None
        if [*values] != program.names:
            return None
        self.values = None  # a step sets the numbers of the program, which are others then
        return program.pack((dtype(step), *values.values()))

    @property
    def span(self) -> tuple[int, int]:
        """As that of `Program`, once `pack` has returned numbers."""
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
        """Have no program."""
        if self._program is not None:
            self._launch.program(self._at)[0][:] = 0
        self._program = self.values = None
