"""Arguments of a `Saver`: the session, and the step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from numbers import Integral
from typing import Any

from torch import Tensor

from thalweg._base.context_managers import writable
from thalweg._base.showing import show_value
from thalweg._core import atomic_section
from thalweg._graph import Graph, GraphVariable, Session, is_symbolic
from thalweg.errors import InvalidTypeError
from thalweg.variable import check_held


class EagerValues:
    """Values of eager variables, with the methods of a session that a `Saver` calls.

    Attributes:
        graph: A graph of its own, whose variables stand for the eager ones.
    """

    def __init__(self) -> None:
        self.graph = Graph()

    def _held(self, variables: Iterable[GraphVariable]) -> list[Tensor]:
        """Return the eager variables that graph variables stand for."""
        tensors = {variable: tensor for tensor, variable in self.graph.stand_ins.values()}
        leaves = [tensors[variable] for variable in variables]
        for tensor in leaves:
            check_held(tensor)
        return leaves

    def snapshot(self, variables: Iterable[GraphVariable]) -> list[Tensor]:
        """Return copies of the values, in the CPU's memory."""
        return [tensor.detach().to("cpu", copy=True) for tensor in self._held(variables)]

    def load_all(self, values: Mapping[GraphVariable, Tensor]) -> None:
        """Give variables values: all of them, or none if that fails."""
        pairs = zip(self._held(values), values.values(), strict=True)
        with writable():
            atomic_section.run([partial(leaf.detach().copy_, value) for leaf, value in pairs])


def as_session(sess: object, eager: EagerValues | None = None) -> Session | EagerValues:
    """Return a session, or the values of eager variables, which need no session.

    Raises:
        InvalidTypeError: `sess` is something else.
    """
    if isinstance(sess, Session):
        return sess
    if eager is not None:
        return eager
    hint = ""
    if hasattr(sess, "run") and hasattr(sess, "should_stop"):
        hint = " Hooks have the session of a MonitoredSession, as `run_context.session`."
    raise InvalidTypeError(f"'sess' must be a Session; {sess!r}.{hint}")


def values_of(
    session: Session | EagerValues, variables: list[GraphVariable], global_step: object
) -> tuple[list[Tensor], int | None]:
    """Return (values of variables in a session, step number or None).

    Args:
        session: The session, or the values of eager variables.
        variables: The variables.
        global_step: A number, a variable, a tensor, a name of a tensor, or None.

    Raises:
        InvalidTypeError: `global_step` is something else.
    """
    if isinstance(session, EagerValues):
        return session.snapshot(variables), None if global_step is None else _as_step(global_step)
    if isinstance(global_step, GraphVariable):
        *values, step = session.snapshot([*variables, global_step])
        return values, int(step)
    if is_symbolic(global_step) or isinstance(global_step, str):
        global_step = session.run(global_step)
    step = None if global_step is None else _as_step(global_step)
    return session.snapshot(variables), step


def _as_step(global_step: Any) -> int:
    """Return a step as an int.

    Raises:
        InvalidTypeError: `global_step` is not an integer, a tensor or a scalar array.
    """
    if (
        not isinstance(global_step, (Integral, Tensor))
        and getattr(global_step, "shape", None) != ()
    ):
        raise InvalidTypeError(
            f"global_step must be a number, a variable or a tensor, not {show_value(global_step)}."
        )
    return int(global_step)
