"""Values of a checkpoint for the variables of a graph, checked for shape and dtype."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from torch import Tensor

from thalweg._core import state
from thalweg._graph import GraphVariable
from thalweg.errors import NotFoundError, listed
from thalweg.v1.train.saving.checkpoint_reader import CheckpointReader
from thalweg.v1.train.saving.saveables import whole_name
from thalweg.variable import dtype_name


def fitting_values(
    reader: CheckpointReader,
    prefix: str,
    variables: Mapping[str, GraphVariable],
    reshape: bool = False,
) -> dict[GraphVariable, Tensor]:
    """Return {variable: value of a checkpoint}, in the variables' shapes.

    Args:
        reader: The reader of the checkpoint.
        prefix: The prefix of the checkpoint, for errors.
        variables: Variables by their names in the checkpoint.
        reshape: True if a value with as many elements takes the variable's shape.

    Raises:
        NotFoundError: Names are not in the checkpoint.
        CheckpointMismatchError: Shapes or dtypes differ.
        OSError: The checkpoint is damaged, or cannot be read.
    """
    keys = {
        name: name if reader.has_tensor(name) else whole_name(name, variable)
        for name, variable in variables.items()
    }
    if not all(reader.has_tensor(key) for key in keys.values()):
        keys_by_name = reader.keys_by_name()
        keys = {name: keys_by_name.get(key, key) for name, key in keys.items()}
    missing = [name for name, key in keys.items() if not reader.has_tensor(key)]
    if missing:
        names = listed(f"'{name}'" for name in missing)
        raise NotFoundError(
            f"Key {missing[0]} not found in checkpoint\n{prefix} has no value for {len(missing)} of"
            f" {len(keys)} variables: {names}. Nothing was loaded. Give the"
            " Saver a list without them, or a dict of the variables by the names that the"
            " checkpoint has; list_variables lists these."
        )
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    misfits = {
        name: _describe_misfit(variable, shapes[keys[name]], dtypes[keys[name]], prefix, reshape)
        for name, variable in variables.items()
    }
    flaws = [f"'{name}' {misfit}" for name, misfit in misfits.items() if misfit]
    if flaws:
        raise state.mismatch(flaws)
    values = reader.tensors(set(keys.values()))
    return {var: _fit_value(values[keys[name]], var) for name, var in variables.items()}


def _describe_misfit(
    variable: GraphVariable, shape: Sequence[int], dtype: Any, prefix: str, reshape: bool
) -> str | None:
    """Return why a value does not fit its variable, or None."""
    expected, info = variable.shape, variable._save_slice_info
    is_full = info is not None and tuple(shape) == tuple(info.full_shape)
    if not (is_full or expected.accepts(shape) or (reshape and _has_as_many(expected, shape))):
        return f"has shape {tuple(shape)} in {prefix} but the variable has shape {tuple(expected)}"
    if variable.dtype not in (None, dtype):
        actual = dtype if isinstance(dtype, str) else dtype_name(dtype)
        return f"is {actual} in {prefix} but the variable is {dtype_name(variable.dtype)}"
    return None


def _has_as_many(expected: Sequence[int | None], shape: Sequence[int]) -> bool:
    sizes = [size for size in expected if size is not None]
    return len(sizes) == len(expected) and prod(sizes) == prod(shape)


def _fit_value(tensor: Tensor, variable: GraphVariable) -> Tensor:
    """Return the part of `tensor` that belongs to the variable, in its shape."""
    info, expected = variable._save_slice_info, variable.shape
    if info is not None and tuple(tensor.shape) == tuple(info.full_shape):
        return info.cut(tensor).clone()
    return tensor if expected.accepts(tensor.shape) else tensor.reshape(tuple(expected))  # pyright: ignore
