"""Arguments of a `Saver`: the session, and the step."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from torch import Tensor

from thalweg._base.showing import show_value
from thalweg._graph import GraphVariable, Session, is_symbolic
from thalweg.errors import InvalidTypeError


def as_session(sess: object) -> Session:
    """Return `sess` if it is a session.

    Raises:
        InvalidTypeError: It is none.
    """
    if isinstance(sess, Session):
        return sess
    hint = ""
    if hasattr(sess, "run") and hasattr(sess, "should_stop"):
        hint = " Hooks have the session of a MonitoredSession, as `run_context.session`."
    raise InvalidTypeError(f"'sess' must be a Session; {sess!r}.{hint}")


def values_of(
    session: Session, variables: list[GraphVariable], global_step: object
) -> tuple[list[Tensor], int | None]:
    """Return the values of variables in a session, and the step."""
    if isinstance(global_step, GraphVariable):
        *values, step = session.snapshot([*variables, global_step])
        return values, int(step)
    if is_symbolic(global_step) or isinstance(global_step, str):
        global_step = session.run(global_step)
    step = None if global_step is None else _as_step(global_step)
    return session.snapshot(variables), step


def _as_step(global_step: Any) -> int:
    if (
        not isinstance(global_step, (Integral, Tensor))
        and getattr(global_step, "shape", None) != ()
    ):
        raise InvalidTypeError(
            f"global_step must be a number, a variable or a tensor, not {show_value(global_step)}."
        )
    return int(global_step)
