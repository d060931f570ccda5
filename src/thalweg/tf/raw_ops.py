"""`tf.raw_ops`: training kernels and updates of variables under names of graph operations.

All arguments are keyword-only, as in TensorFlow. Other operations are in `tf`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from thalweg import _graph
from thalweg._base.scatter import UPDATES, scatter
from thalweg._graph.variables import scatter_node as scattered  # the documented name
from thalweg.tf.arrays import gather, identity
from thalweg.tf.missing import attribute_of
from thalweg.v1 import training_ops


def AssignVariableOp(
    *, resource: Any, value: Any, validate_shape: bool = False, name: str | None = None
) -> Any:
    """Call `resource.assign(value)`; `validate_shape` is ignored."""
    return _operation_or_none(resource.assign(value, name=name))


def AssignAddVariableOp(*, resource: Any, value: Any, name: str | None = None) -> Any:
    """Call `resource.assign_add(value)`."""
    return _operation_or_none(resource.assign_add(value, name=name))


def AssignSubVariableOp(*, resource: Any, value: Any, name: str | None = None) -> Any:
    """Call `resource.assign_sub(value)`."""
    return _operation_or_none(resource.assign_sub(value, name=name))


def ReadVariableOp(*, resource: object, dtype: object, name: str | None = None) -> Any:
    """Return the value of a variable; `dtype` must be the variable's."""
    return identity(resource, name)


def ResourceGather(
    *,
    resource: object,
    indices: object,
    dtype: object,
    batch_dims: int = 0,
    validate_indices: bool = True,
    name: str | None = None,
) -> Any:
    """Return the rows of a variable at `indices`; `dtype` is ignored.

    Raise ValueError if `batch_dims` is not 0.
    """
    if batch_dims:
        raise ValueError(f"ResourceGather takes batch_dims=0 alone, not {batch_dims}.")
    return gather(resource, indices, name=name)


def _operation_or_none(updated: object) -> Any:
    """Return the operation of an updated variable, or None in eager mode."""
    return getattr(updated, "op", None) if isinstance(updated, _graph.SymbolicTensor) else None


def _scatter_function(update: str) -> Callable[..., Any]:
    def function(*, resource: Any, indices: Any, updates: Any, name: str | None = None) -> Any:
        if isinstance(resource, _graph.GraphVariable):
            title = name or f"ResourceScatter{update.capitalize()}"
            return scattered(resource, indices, updates, update, title).op
        return scatter(resource, indices, updates, update)

    function.__doc__ = f'Change rows of a variable by "{update}": see `_base.scatter.scatter`.'
    return function


def _keywords_alone(kernel: Callable[..., object]) -> Callable[..., Any]:
    @functools.wraps(kernel)
    def function(**arguments: object) -> Any:
        return kernel(**arguments)

    return function


# Parts of names that are written in capitals.
_ACRONYMS = {"rms": "RMS", "da": "DA"}


def _raw_name(name: str) -> str:
    return "".join(_ACRONYMS.get(part, part.capitalize()) for part in name.split("_"))


for _update in UPDATES:
    globals()[f"ResourceScatter{_update.capitalize()}"] = _scatter_function(_update)
for _name in training_ops.__all__:
    globals()[_raw_name(_name)] = _keywords_alone(getattr(training_ops, _name))

__getattr__ = attribute_of("raw_ops")
