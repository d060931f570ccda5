"""Operations for the in-place tensor methods that an optimizer's hook calls, run in order.

Each operation waits for the previous in-place operation, and later operations wait for it. So a
hook reads the values that it has written, as in eager mode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from thalweg._core.nest import mapped
from thalweg._graph.add_operation import add
from thalweg._graph.arguments import Reference, densify
from thalweg._graph.recording import prepare_nest, unwrap_gradient
from thalweg._graph.shapes import infer_outputs


def write(variable: Any, name: str, args: Sequence[object], kwargs: Mapping[str, Any]) -> None:
    """Add the operation that calls an in-place tensor method on a variable.

    Args:
        variable: A variable. Call `write` inside of `variable.graph.as_one()`.
        name: The method's name, one of `nodes.IN_PLACE`.
        args, kwargs: Arguments of the method.

    Raises:
        InvalidArgumentError: Shapes do not fit together.
    """
    graph, unit = variable.graph, variable.graph.unit
    call_args = mapped(densify, prepare_nest(graph, (tuple(args), dict(kwargs))))
    call = partial(_call_method, getattr(torch.Tensor, name))
    # Called for its errors: shapes that do not fit raise now, not in a run.
    infer_outputs(call, (Reference(variable), *mapped(unwrap_gradient, call_args)), name)
    op = add(graph, name.rstrip("_"), call, (Reference(variable), *call_args), kind="update")
    unit.note_write(variable, op)


def _call_method(
    method: Callable[..., object],
    variable: torch.Tensor,
    args: Sequence[object],
    kwargs: dict[str, object],
) -> object:
    """Call an in-place method on the session's tensor of a variable; return the result."""
    return method(variable, *args, **kwargs)
