"""Functions that read values of checkpoints, and initialize variables from checkpoints."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from thalweg._base.static_shape import Shape
from thalweg._graph import GraphKeys, GraphVariable, Output, get_default_graph, operation
from thalweg._graph.partitioned import PartitionedVariable
from thalweg._graph.slice_info import SaveSliceInfo
from thalweg._graph.variables import begin_with
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.v1.train.saving.checkpoint_management import Path, latest_checkpoint
from thalweg.v1.train.saving.checkpoint_reader import CheckpointReader
from thalweg.v1.train.saving.saveables import as_variable
from thalweg.variable import dtype_name

__all__ = ["init_from_checkpoint", "list_variables", "load_checkpoint", "load_variable"]


def load_checkpoint(ckpt_dir_or_file: Path) -> CheckpointReader:
    """Return a new reader of a checkpoint.

    Args:
        ckpt_dir_or_file: The checkpoint's prefix, or a folder, whose newest checkpoint is read.

    Raises:
        ValueError: The folder has no checkpoint.
        NotFoundError: No checkpoint has the prefix.
        OSError: The checkpoint is damaged, or cannot be read.
    """
    return CheckpointReader(_resolve_prefix(ckpt_dir_or_file))


def list_variables(ckpt_dir_or_file: Path) -> list[tuple[str, list[int]]]:
    """Return a sorted list of (name, shape) of a checkpoint's values; see `load_checkpoint`.

    Example:
        >>> import tempfile
        >>> from thalweg import v1
        >>> folder = tempfile.mkdtemp()
        >>> with v1.Graph().as_default(), v1.Session() as session:
        ...     w = v1.Variable([[1.0, 2.0]], name="w")
        ...     session.run(w.initializer)
        ...     path = v1.train.Saver().save(session, f"{folder}/model.ckpt", global_step=7)
        >>> list_variables(folder), load_variable(folder, "w")
        ([('w', [1, 2])], array([[1., 2.]], dtype=float32))
    """
    return sorted(load_checkpoint(ckpt_dir_or_file).get_variable_to_shape_map().items())


def load_variable(ckpt_dir_or_file: Path, name: str) -> Any:
    """Return one value of a checkpoint, as `CheckpointReader.get_tensor` does.

    Args:
        ckpt_dir_or_file: As in `load_checkpoint`.
        name: The name of the value; it may end with ":0".

    Raises:
        NotFoundError: The checkpoint has no value named `name`.
        ValueError, OSError: As in `load_checkpoint`.
    """
    return load_checkpoint(ckpt_dir_or_file).get_tensor(name.removesuffix(":0"))


def init_from_checkpoint(
    ckpt_dir_or_file: Path, assignment_map: Mapping[str, object] | Iterable[tuple[str, object]]
) -> None:
    """Set initial values of the default graph's variables to values of a checkpoint.

    No value is read now: initializers created after this call read the checkpoint when they run.
    `assignment_map` has two kinds of entries:

    * `{"name": variable}`: the initial value is the checkpoint's value "name". The variable's name
      may replace the variable. A partitioned variable, or a list of parts, gets slices.
    * `{"scope/": "other/"}`: each variable "other/x" gets the value "scope/x". The scope "/"
      contains all names.

    A scope contains variables of `get_variable`, trainable variables, and parameters and buffers of
    modules used in the graph.

    Args:
        ckpt_dir_or_file: As in `load_checkpoint`.
        assignment_map: A dict, or pairs if several variables get one value.

    Raises:
        ValueError: The checkpoint does not exist or lacks a name, a variable is not in the graph,
            or shapes differ. Nothing was changed.
        TypeError: Dtypes differ.

    Differs from:
        TensorFlow finds variables by name only if `get_variable` created them.
    """
    prefix = _resolve_prefix(ckpt_dir_or_file)
    reader = CheckpointReader(prefix)
    shapes = reader.get_variable_to_shape_map()
    pairs: dict[GraphVariable, str] = {}
    table: Any = assignment_map.items() if isinstance(assignment_map, Mapping) else assignment_map
    # By name alone: variables with equal names cannot be compared.
    for name, target in sorted(table, key=itemgetter(0)):
        variables = _find_variables(target)
        if variables:
            if name not in shapes:
                raise InvalidArgumentError(
                    f"Tensor {name} is not found in {prefix} checkpoint {sorted(shapes)}"
                )
            for variable in variables:
                pairs[variable] = name
        else:
            pairs.update(_match_scope(name, target, prefix, shapes))
    dtypes = reader.get_variable_to_dtype_map()
    for variable, name in pairs.items():
        _check_fits(variable, name, shapes[name], dtypes[name])
    # All operations are added before the first initial value changes, since adding may raise.
    starts = [
        (variable, _read_initial_value(variable, prefix, name)) for variable, name in pairs.items()
    ]
    for variable, start in starts:
        with variable.graph.control_dependencies(None):
            begin_with(variable, start)


def _resolve_prefix(ckpt_dir_or_file: Path) -> str:
    """Return the prefix of a folder's newest checkpoint; return another path unchanged.

    Raise InvalidArgumentError if the folder has no checkpoint.
    """
    path = os.fspath(ckpt_dir_or_file)
    if not os.path.isdir(path):
        return path
    prefix = latest_checkpoint(path)
    if prefix is None:
        raise InvalidArgumentError(
            f"Couldn't find 'checkpoint' file or checkpoints in given directory {path}"
        )
    return prefix


def _find_variables(target: Any) -> list[GraphVariable]:
    """Return the variables of a target of `assignment_map`; [] for a name without a variable.

    Raise InvalidTypeError if `target` has another type.

    Args:
        target: A variable, a partitioned variable, a list of parts, or a name.
    """
    if isinstance(target, str):
        graph = get_default_graph()
        if target in graph.partitioned_store:
            return list(graph.partitioned_store[target])
        variables = graph.get_collection(GraphKeys.GLOBAL_VARIABLES)
        by_name = {variable.op.name: variable for variable in variables} | graph.variable_store
        return [by_name[target]] if target in by_name else []
    is_partitioned = isinstance(target, list | tuple | PartitionedVariable)
    variables = [as_variable(member) for member in (target if is_partitioned else [target])]
    graph_variables = [variable for variable in variables if variable is not None]
    if not variables or len(graph_variables) < len(variables):
        raise InvalidTypeError(
            "assignment_map maps names of a checkpoint to variables, their names, or scopes, not to"
            f" {target!r}."
        )
    return graph_variables


def _match_scope(
    scope: str, target: str, prefix: str, shapes: Mapping[str, object]
) -> dict[GraphVariable, str]:
    """Return {variable: name in the checkpoint} for the variables below the scope `target`.

    Raise InvalidArgumentError if a scope does not end with "/", or a name is not in the checkpoint.

    Args:
        scope: The scope of the names in the checkpoint, ending with "/".
        target: The scope of the variables in the graph, ending with "/".
    """
    outer = target[: target.rindex("/")] if "/" in target else ""
    if not scope.endswith("/") or not target.endswith("/"):
        raise InvalidArgumentError(
            f"Assignment map with scope only name {target} should map to scope only {scope}. Should"
            " be 'scope/': 'other_scope/'. There is no variable of that name."
        )
    names_by_variable: dict[GraphVariable, str] = {}
    graph = get_default_graph()
    # `stand_ins` has the variables of torch's parameters and buffers, trainable or not.
    variables = [variable for _, variable in graph.stand_ins.values()]
    variables += graph.get_collection(GraphKeys.TRAINABLE_VARIABLES)
    by_name = {variable.op.name: variable for variable in variables} | graph.variable_store
    for name, variable in sorted(by_name.items()):
        slice_info = variable._save_slice_info
        name = name if slice_info is None else slice_info.full_name
        if outer and not name.startswith(f"{outer}/"):
            continue
        inner = name[len(outer) + 1 :] if outer else name
        full = inner if scope == "/" else scope + inner
        if full not in shapes:
            raise InvalidArgumentError(
                f"Tensor {full} ({inner} in {scope}) is not found in {prefix} checkpoint"
            )
        names_by_variable[variable] = full
    return names_by_variable


def _check_fits(variable: GraphVariable, name: str, shape: list[int], dtype: object) -> None:
    """Raise unless the shape and dtype of a saved value fit a variable.

    Raises:
        InvalidArgumentError: The shapes differ.
        InvalidTypeError: The dtypes differ.
    """
    slice_info = variable._save_slice_info
    expected_shape = variable.shape if slice_info is None else Shape(slice_info.full_shape)
    if not expected_shape.accepts(tuple(shape)):
        raise InvalidArgumentError(
            f"Shape of variable {variable.name} ({tuple(expected_shape)}) doesn't match with shape"
            f" of tensor {name} ({tuple(shape)}) from checkpoint reader."
        )
    if variable.dtype not in (None, dtype):
        raise InvalidTypeError(
            f"Variable {variable.name} is {dtype_name(variable.dtype)}, tensor {name} of the"
            f" checkpoint is {str(dtype).removeprefix('torch.')}."
        )


def _read_initial_value(variable: GraphVariable, prefix: str, name: str) -> Any:
    """Return a symbolic tensor; a run of it reads the value of `name` from the checkpoint."""
    output = Output(variable.dtype, variable.shape, ())
    with variable.graph.as_default(), variable.graph.control_dependencies(None):
        return operation(
            partial(_read_tensor, prefix, name, variable.op.device, variable._save_slice_info),
            [],
            "checkpoint_initializer",
            kind="pure",
            outputs=output,
        )


def _read_tensor(
    prefix: str, name: str, device: torch.device, slice_info: SaveSliceInfo | None
) -> Tensor:
    full_tensor = CheckpointReader(prefix).tensors({name})[name]
    return (full_tensor if slice_info is None else slice_info.cut(full_tensor).clone()).to(device)
