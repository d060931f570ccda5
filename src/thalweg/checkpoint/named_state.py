"""Names of variables, of optimizer state, and of modules' extra states in a file."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy

from thalweg._core import state
from thalweg._core.config_registry import Configurable
from thalweg._core.dtensor import is_on_mesh
from thalweg._core.grads_and_vars import distinct, flatten
from thalweg._core.slots import SlotStore
from thalweg._core.state import LISTED, Loading, differences, keys_of, mismatch
from thalweg._core.state import distinct as distinct_names
from thalweg.checkpoint.torch_adapter import TorchOptimizerAdapter
from thalweg.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from thalweg.optim.dtensor_params import make_entry, make_local_shards
from thalweg.variable import is_variable, name_of

Variables = Mapping[str, Tensor] | Iterable[Tensor]
# The result of `name_of` for tensors without a name.
NAMELESS = "Variable"


def name_tensors(variables: Variables | None, module: object) -> dict[str, Tensor]:
    """Return {name: tensor} of `variables`, and of a module's parameters and persistent buffers.

    Raises:
        InvalidTypeError: `module` is not a module, or `variables` contains an object that is not a
            tensor.
        InvalidArgumentError: Two tensors share a name, or a tensor has no name or no shape yet.
    """
    tensors: dict[str, Any] = {}
    if module is not None:
        if not isinstance(module, torch.nn.Module):
            kind = type(module).__name__
            raise InvalidTypeError(f"module must be a torch.nn.Module, not {kind}.")
        tensors = _tensors_of_module(module)
    variables_by_name = {} if variables is None else _by_name(variables)
    duplicates = sorted(tensors.keys() & variables_by_name.keys())
    if duplicates:
        name = duplicates[0]
        raise InvalidArgumentError(f"{name!r} is the name of a variable and in the module.")
    tensors |= variables_by_name
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise InvalidTypeError(f"{name!r} is a {type(tensor).__name__}, not a tensor.")
        if is_lazy(tensor):
            raise InvalidArgumentError(
                f"{name!r} has no shape yet: call its lazy module once, and then save or restore."
            )
    return tensors


def _tensors_of_module(module: torch.nn.Module) -> dict[str, Tensor]:
    """Return {name in `state_dict()`: tensor} of the parameters and persistent buffers of a module.

    Tensors are not detached. A shared tensor occurs under all its names. Hooks of `state_dict` are
    not called, and extra state is left out.
    """
    tensors: dict[str, Tensor] = {}
    submodules = cast("Iterable[tuple[str, Any]]", module.named_modules(remove_duplicate=False))
    for prefix, submodule in submodules:
        transient = submodule._non_persistent_buffers_set
        for name, tensor in {**submodule._parameters, **submodule._buffers}.items():
            if tensor is not None and name not in transient:
                tensors[f"{prefix}.{name}" if prefix else name] = tensor
    return tensors


def _by_name(variables: Variables) -> dict[str, Tensor]:
    """Return {name: tensor}; `variables` is a dict by name, or a list of tensors with names.

    Raises:
        InvalidArgumentError: A tensor has no name, or two tensors share a name.
        InvalidTypeError: `variables` is a module.
    """
    if isinstance(variables, Mapping):
        mapping = cast(Mapping[Any, Tensor], variables)
        return {str(name): tensor for name, tensor in mapping.items()}
    if isinstance(variables, torch.nn.Module):
        raise InvalidTypeError("variables must be tensors, not a module: give it as module=.")
    tensors = distinct(flatten(variables, "variables"))
    names = [name_of(tensor).split(":")[0] for tensor in tensors]
    # Names from the order of a list would give values to other variables after a reordering.
    nameless = [tuple(tensor.shape) for name, tensor in zip(names, tensors) if name == NAMELESS]
    if nameless:
        raise InvalidArgumentError(
            f"{len(nameless)} of the variables have no name, the first of shape {nameless[0]}: give"
            " module=model, or a dictionary by name, such as dict(model.named_parameters())."
        )
    duplicates = [name for name in names if names.count(name) > 1]
    if duplicates:
        raise InvalidArgumentError(
            f"{names.count(duplicates[0])} of the variables are called {duplicates[0]!r}: give a"
            " dictionary of variables by names of your choice."
        )
    return dict(zip(names, tensors, strict=True))


def slots_of(optimizer: object) -> SlotStore | None:
    """Return the slot store of an optimizer or an `optimize_loss` step; None for other objects."""
    return getattr(optimizer, "_slots", None)


def as_checkpointable(optimizer: object) -> TorchOptimizerAdapter | Configurable:
    """Return `optimizer`, or a `TorchOptimizerAdapter` around a `torch.optim.Optimizer`.

    Raises:
        InvalidTypeError: The object is not an optimizer of the library or of torch.
    """
    if isinstance(optimizer, torch.optim.Optimizer):
        return TorchOptimizerAdapter(optimizer)
    if not isinstance(optimizer, Configurable):
        raise InvalidTypeError(
            "optimizer must be one of thalweg.keras, thalweg.v1, thalweg.optim or torch.optim, or"
            f" a step of optimize_loss, not a {type(optimizer).__name__}."
        )
    return optimizer


def state_of(optimizer: Any, named_tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return an optimizer's state, with slots named after their variables in `named_tensors`.

    Raises:
        InvalidArgumentError: The optimizer has slots of variables that are not in `named_tensors`.
    """
    return optimizer._saved(partial(_file_names, named_tensors, bool(named_tensors)))


def prepare_loading(
    optimizer: Any, state: Mapping[str, Any], named_tensors: Mapping[str, Tensor]
) -> AbstractContextManager[Loading]:
    """Return a context manager that yields the validated writes that set an optimizer's state.

    The optimizer is locked in the `with` block. `_core.state.restore` executes the writes.

    Args:
        state: The optimizer's state in the file.
        named_tensors: {name in the file: variable}; {} to use the variables of the optimizer.

    Raises:
        FailedPreconditionError: The state has slots, and neither `named_tensors` nor the optimizer
            has variables.
        InvalidArgumentError: A tensor that has slots in the state is not a variable.
    """
    if not named_tensors:
        _require_variables(optimizer, state)
        return optimizer._loading(state)
    # A state of Keras has slots by variable; a state of `v1` has entries such as "w/m".
    names_with_slots = {*state.get("slots", ()), *(name.rpartition("/")[0] for name in state)}
    slot_variables = {
        name: tensor for name, tensor in named_tensors.items() if name in names_with_slots
    }
    copies = [name for name, tensor in slot_variables.items() if not is_variable(tensor)]
    if copies:
        raise InvalidArgumentError(
            f"The optimizer has slots of {copies[0]!r}, which is no variable but a tensor as"
            f" state_dict() returns it. {_GIVE}"
        )
    variables = list(slot_variables.values())
    names = partial(_file_names, named_tensors, isinstance(optimizer, TorchOptimizerAdapter))
    return optimizer._loading(state, variables or None, names)


def _require_variables(optimizer: Any, state: Mapping[str, Any]) -> None:
    """Raise FailedPreconditionError if there is state, but a `v1` optimizer has no variables."""
    if state and optimizer._needs_variables and not optimizer._owners():
        raise FailedPreconditionError(
            f"The file has slots such as {next(iter(state))!r} and the optimizer has no variables"
            " to put them beside: give restore(..., module=...) or variables=; optimizer=False"
            " leaves them there. Nothing was loaded."
        )


def prepare_values(named_tensors: Mapping[str, Tensor], values: Mapping[str, object]) -> Loading:
    """Return the validated writes that set variables to values in a file; set nothing.

    Raises:
        CheckpointMismatchError: Names, shapes or dtypes differ.
    """
    entries = [make_entry(name, tensor) for name, tensor in named_tensors.items()]
    problems = differences(entries, values)
    if problems:
        advice = _prefix_hint(named_tensors, values)
        raise mismatch(problems, "The variables", f"Nothing was loaded.{advice}")
    return Loading([(entry, values[entry.name]) for entry in entries], what="The variables")


def _prefix_hint(named_tensors: Mapping[str, object], saved_values: Mapping[str, object]) -> str:
    """Return a hint for names that differ, for example by a wrapping module; "" if unknown."""
    for prefix in _WRAPPER_PREFIXES:
        if {f"{prefix}{name}" for name in saved_values} == {*named_tensors}:
            return f" The module given wraps the one that was saved: give that inside {prefix!r}."
        if {f"{prefix}{name}" for name in named_tensors} == {*saved_values}:
            return f" The module that was saved wraps one such as this, as {prefix!r}."
    if any("/" in name for name in saved_values.keys() - named_tensors.keys()):
        return " Names with / are TensorFlow's: convert the checkpoint with rules for the module's."
    return ""


# Prefixes of names from DistributedDataParallel or DataParallel, and from torch.compile.
_WRAPPER_PREFIXES = ("module.", "_orig_mod.")


_GIVE = "Give the variables themselves: module=model, or dict(model.named_parameters())."


def _raise_for_copies(named_tensors: Mapping[str, Tensor], variables: Sequence[Tensor]) -> None:
    """Raise InvalidArgumentError if a named tensor is a detached alias of one of the variables.

    A detached alias shares the variable's memory but is not a variable, as in `state_dict()`.
    """
    addresses = {variable.data_ptr() for variable in variables if variable.numel()}
    for name, tensor in named_tensors.items():
        if tensor.numel() and not is_variable(tensor) and tensor.data_ptr() in addresses:
            raise InvalidArgumentError(
                f"{name!r} lies where a variable of the optimizer does, but is a tensor of its own,"
                f" as state_dict() returns it. {_GIVE}"
            )


def gather_dtensors(named_tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a copy of a dict of tensors, in which each DTensor is gathered to a full tensor.

    All ranks must call this function.
    """
    local_shards = make_local_shards(list(named_tensors.values()))
    return {
        name: tensor
        if local_shards is None or not is_on_mesh(tensor)
        else local_shards.whole(local_shards.part(tensor), tensor)
        for name, tensor in named_tensors.items()
    }


def _file_names(
    named_tensors: Mapping[str, Tensor], requires_all: bool, variables: Sequence[Tensor]
) -> list[str]:
    """Return the name in the file of each variable, in the order of `variables`.

    With `requires_all=False`, a variable that is not in `named_tensors` keeps its own name. Equal
    names are made distinct.

    Args:
        named_tensors: {name in the file: variable}. The first of several names of a variable
            counts.
        requires_all: True to raise InvalidArgumentError for variables not in `named_tensors`.
    """
    names_by_id = {id(named_tensors[name]): name for name in reversed([*named_tensors])}
    keys, file_names = keys_of(variables), [names_by_id.get(id(var)) for var in variables]
    missing = [key for key, name in zip(keys, file_names, strict=True) if name is None]
    if requires_all and missing:
        _raise_for_copies(named_tensors, variables)
        raise InvalidArgumentError(
            "The optimizer has slots of variables that are neither in module nor in"
            f" variables: {missing[:LISTED]}. Give all variables that the optimizer has slots"
            " of; no new optimizer could go on from the file otherwise."
        )
    return distinct_names([name or key for key, name in zip(keys, file_names, strict=True)])


def extra_states(module: Module | None) -> dict[str, Any]:
    """Return {name in `state_dict`: extra state} of a module and its submodules; {} for None.

    Raises:
        InvalidTypeError: A module has `get_extra_state` but no `set_extra_state`.
    """
    return {
        name: submodule.get_extra_state() for name, submodule in _modules_with_state(module).items()
    }


@contextmanager
def with_extra_states(module: Module | None, states: Mapping[str, object]) -> Generator[None]:
    """Set the extra states of a module; restore the former states if the `with` block raises.

    Args:
        module: The module, or None if `states` is empty.
        states: {name in `state_dict`: extra state}, as from `extra_states`.

    Raises:
        CheckpointMismatchError: A state is missing, or belongs to no submodule. Nothing was set.
    """
    modules = _modules_with_state(module)
    problems = [f"{name!r} is missing" for name in modules if name not in states]
    problems += [f"{name!r} belongs to nothing here" for name in states if name not in modules]
    state.raise_mismatch(problems, "The extra states of modules")
    previous_states: dict[str, Any] = {}
    try:
        for name, submodule in modules.items():
            # A module may return its own object, which `set_extra_state` may change.
            previous_states[name] = deepcopy(submodule.get_extra_state())
            submodule.set_extra_state(states[name])
        yield
    except BaseException:
        for name, previous_state in previous_states.items():
            modules[name].set_extra_state(previous_state)
        raise


def _modules_with_state(module: Module | None) -> dict[str, Any]:
    """Return {name in `state_dict`: submodule} of the submodules that have extra state."""
    if module is None:
        return {}
    submodules = cast("Iterable[tuple[str, Any]]", module.named_modules(remove_duplicate=False))
    stateful_modules: dict[str, Any] = {
        f"{prefix}.{_KEY}" if prefix else _KEY: submodule
        for prefix, submodule in submodules
        if submodule.__class__.get_extra_state is not Module.get_extra_state
    }
    for name, submodule in stateful_modules.items():
        if submodule.__class__.set_extra_state is Module.set_extra_state:
            raise InvalidTypeError(f"{name!r}: {type(submodule).__name__} has no set_extra_state.")
    return stateful_modules


_KEY = "_extra_state"
