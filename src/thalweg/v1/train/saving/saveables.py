"""Variables that a `Saver` saves, their names in a checkpoint, and values from a session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from math import prod
from numbers import Integral
from typing import Any, NoReturn

import torch
from torch import Tensor

from thalweg._base.context_managers import writable
from thalweg._base.showing import show_value
from thalweg._core import atomic_section
from thalweg._graph import (
    Graph,
    GraphKeys,
    GraphVariable,
    Session,
    get_default_graph,
    graph_variable_of,
    is_symbolic,
)
from thalweg._graph.partitioned import PartitionedVariable
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.variable import Variable, check_held


def all_saveable() -> list[Any]:
    """Return the global variables and saveable objects of the default graph."""
    graph = get_default_graph()
    keys = GraphKeys.GLOBAL_VARIABLES, GraphKeys.SAVEABLE_OBJECTS
    return [member for key in keys for member in graph.get_collection(key)]


def by_name(var_list: object) -> dict[str, GraphVariable]:
    """Return a new dict {name in a checkpoint: graph variable}, sorted by name.

    Args:
        var_list: A list, tuple or set of variables, saved under their names in the graph; or a dict
            {name: variable}. A torch parameter or buffer is replaced by its graph variable. A
            partitioned variable is replaced by its parts, named "<name>/part_0" and so on.

    Raises:
        InvalidTypeError: `var_list` has another type, a member is not a variable, or a key is not a
            string.
        InvalidArgumentError: A list has two variables of one name or a variable twice; a dict has a
            variable under two names; or the variables belong to several graphs.
    """
    if isinstance(var_list, Mapping):
        variables_by_name = _name_mapped(var_list)
    elif isinstance(var_list, (list, tuple, set, frozenset)):
        variables_by_name = _name_listed(var_list)
    else:
        raise InvalidTypeError(
            f"Variables to save should be passed in a dict or a list: {show_value(var_list)}"
        )
    names: dict[GraphVariable, str] = {}
    for name, variable in variables_by_name.items():
        if names.setdefault(variable, name) != name:
            raise InvalidArgumentError(
                f"The same saveable will be restored with two names: {name} and {names[variable]}"
            )
    graphs = {id(variable.graph) for variable in names}
    if len(graphs) > 1:
        raise InvalidArgumentError(
            f"Variables to save belong to {len(graphs)} graphs; a saver is for one."
        )
    return variables_by_name


def as_variable(candidate: object) -> GraphVariable | None:
    """Return a graph variable unchanged; return a parameter's variable in the default graph.

    Return None for another object.
    """
    if isinstance(candidate, GraphVariable):
        return candidate
    stand_in = get_default_graph().stand_ins.get(id(candidate))
    variable = graph_variable_of(candidate) if stand_in is None else stand_in[1]
    return variable if isinstance(variable, GraphVariable) else None


def are_eager(var_list: object) -> bool:
    """Return True if all members of a list or dict are eager variables without a graph variable."""
    members = list(var_list.values()) if isinstance(var_list, Mapping) else var_list
    stand_ins = get_default_graph().stand_ins
    return isinstance(members, list | tuple | set | frozenset) and all(
        isinstance(member, Variable) and id(member) not in stand_ins for member in members
    )


def _split_partitioned(candidate: object) -> list[Any]:
    """Return the parts of a partitioned variable, or `candidate` alone."""
    return list(candidate) if isinstance(candidate, PartitionedVariable) else [candidate]


def join_parts(
    variables: Mapping[str, GraphVariable], values: Iterable[Tensor]
) -> dict[str, Tensor]:
    """Return {name: value}, in which the parts of a partitioned variable are concatenated.

    If `variables` lacks a part, the present parts of the variable remain separate entries.

    Args:
        variables: {name: variable or part}.
        values: One value per entry of `variables`, in order.
    """
    tensors, groups = {}, {}
    for (name, variable), tensor in zip(variables.items(), values, strict=True):
        tensors[name] = tensor
        if (info := variable._save_slice_info) is not None:
            groups.setdefault(whole_name(name, variable), []).append((info, name))
    for full_name, members in groups.items():
        shape = members[0][0].full_shape
        # As many elements as the whole: no part is missing.
        if sum(prod(info.var_shape) for info, _ in members) == prod(shape):
            sizes = zip(members[0][0].var_shape, shape, strict=True)
            axis = next(
                (dim for dim, (part_size, full) in enumerate(sizes) if part_size != full), 0
            )
            members.sort(key=lambda member: member[0].index)
            tensors[full_name] = torch.cat([tensors.pop(name) for _, name in members], axis)
    return tensors


def whole_name(name: str, variable: GraphVariable) -> str:
    """Return the name of a part's partitioned variable; for another variable, return `name`."""
    info = variable._save_slice_info
    return name if info is None else name.removesuffix(f"/part_{info.index}")


def _name_listed(var_list: Any) -> dict[str, GraphVariable]:
    """Return {name in the graph: variable or part} of a list, sorted by name.

    Raises:
        InvalidTypeError: A member is not a variable.
        InvalidArgumentError: Two members have one name.
    """
    variables_by_name: dict[str, GraphVariable] = {}
    parts = [part for listed_variable in var_list for part in _split_partitioned(listed_variable)]
    for candidate in parts:
        variable = as_variable(candidate)
        if variable is None:
            raise InvalidTypeError(f"Variable to save is not a Variable: {show_value(candidate)}")
        info = variable._save_slice_info
        name = variable.op.name if info is None else info.key
        if name in variables_by_name:
            raise InvalidArgumentError(f"At least two variables have the same name: {name}")
        variables_by_name[name] = variable
    return dict(sorted(variables_by_name.items()))


def _name_mapped(var_list: Mapping[object, object]) -> dict[str, GraphVariable]:
    """Return {name: variable or part} of a dict, sorted by name."""
    variables_by_name: dict[str, GraphVariable] = {}
    for name, candidate in var_list.items():
        if not isinstance(name, str):
            _refuse_names(f"Name is not a string: {name!r}")
        parts = candidate if isinstance(candidate, list | tuple) else _split_partitioned(candidate)
        infos: list[Any] = [getattr(part, "_save_slice_info", None) for part in parts]
        if not isinstance(candidate, GraphVariable) and infos and None not in infos:
            pairs = zip(infos, parts, strict=True)
            variables_by_name.update({f"{name}/part_{info.index}": part for info, part in pairs})
            continue
        variable = as_variable(candidate)
        if variable is None:
            _refuse_names(f"Not a variable: {show_value(candidate)}")
        variables_by_name[name] = variable
    return dict(sorted(variables_by_name.items()))


def _refuse_names(problem: str) -> NoReturn:
    raise InvalidTypeError(
        f"names_to_saveables must be a dict mapping string names to Tensors/Variables. {problem}"
    )


class EagerValues:
    """Values of eager variables, with the methods of a session that a `Saver` calls.

    Attributes:
        graph: A separate graph, whose variables represent the eager variables.
    """

    def __init__(self) -> None:
        self.graph = Graph()

    def _held(self, variables: Iterable[GraphVariable]) -> list[Tensor]:
        """Return the eager variables of graph variables, in order."""
        tensors = {variable: tensor for tensor, variable in self.graph.stand_ins.values()}
        leaves = [tensors[variable] for variable in variables]
        for tensor in leaves:
            check_held(tensor)
        return leaves

    def snapshot(self, variables: Iterable[GraphVariable]) -> list[Tensor]:
        """Return copies of the values, in the CPU's memory."""
        return [tensor.detach().to("cpu", copy=True) for tensor in self._held(variables)]

    def load_all(self, values: Mapping[GraphVariable, Tensor]) -> None:
        """Set all variables to their values; change none on an error."""
        pairs = zip(self._held(values), values.values(), strict=True)
        # Detached tensors, whose `copy_` is a function in C: no interruption splits the writes.
        with writable():
            atomic_section.run([partial(leaf.detach().copy_, value) for leaf, value in pairs])


def as_session(sess: object, eager: EagerValues | None = None) -> Session | EagerValues:
    """Return `sess` if it is a session, else `eager`.

    Raises:
        InvalidTypeError: `sess` is not a session, and `eager` is None.
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
    """Return (list of copied values, global step as an int or None).

    Args:
        session: The session, or the values of eager variables.
        variables: The variables to copy.
        global_step: A number, a variable, a tensor, a name of a tensor, or None.

    Raises:
        InvalidTypeError: `global_step` has another type.
    """
    if isinstance(session, EagerValues):
        return session.snapshot(variables), None if global_step is None else _as_step(global_step)
    # Read together with the variables, so that the step belongs to the values.
    if isinstance(global_step, GraphVariable):
        *values, step = session.snapshot([*variables, global_step])
        return values, int(step)
    if is_symbolic(global_step) or isinstance(global_step, str):
        global_step = session.run(global_step)
    step = None if global_step is None else _as_step(global_step)
    return session.snapshot(variables), step


def _as_step(global_step: Any) -> int:
    """Return a step count as an int.

    Raise InvalidTypeError if `global_step` is not an integer, a tensor or a scalar array.
    """
    if (
        not isinstance(global_step, (Integral, Tensor))
        and getattr(global_step, "shape", None) != ()
    ):
        raise InvalidTypeError(
            f"global_step must be a number, a variable or a tensor, not {show_value(global_step)}."
        )
    return int(global_step)
