"""The variables of a training by the names of a file, and the state of their optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from thalweg._core.described import Described
from thalweg._core.meshes import is_on_mesh
from thalweg._core.pairs import distinct, flatten
from thalweg._core.slots import SlotStore
from thalweg._core.state import LISTED, Loading, differences, keys_of, mismatch
from thalweg._core.state import distinct as distinct_names
from thalweg.checkpoint.torch_adapter import TorchOptimizerAdapter
from thalweg.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from thalweg.optim.sharded import entry_of, locals_of
from thalweg.variable import is_variable, name_of

Variables = Mapping[str, Tensor] | Iterable[Tensor]
NAMELESS = "Variable"  # what `name_of` calls what has no name


def name_tensors(variables: Variables | None, module: object) -> dict[str, Tensor]:
    """Return the tensors by name: those given, and the parameters and buffers of a module.

    Raises:
        InvalidTypeError: What is given is neither.
        InvalidArgumentError: Two tensors have the same name, or one has none, or no shape yet.
    """
    found: dict[str, Any] = {}
    if module is not None:
        if not isinstance(module, torch.nn.Module):
            kind = type(module).__name__
            raise InvalidTypeError(f"module must be a torch.nn.Module, not {kind}.")
        found = _of_module(module)
    given = {} if variables is None else _by_name(variables)
    twice = sorted(found.keys() & given.keys())
    if twice:
        raise InvalidArgumentError(f"{twice[0]!r} is the name of a variable and in the module.")
    found |= given
    for name, each in found.items():
        if not isinstance(each, Tensor):
            raise InvalidTypeError(f"{name!r} is a {type(each).__name__}, not a tensor.")
        if is_lazy(each):
            raise InvalidArgumentError(
                f"{name!r} has no shape yet: call its lazy module once, and then save or restore."
            )
    return found


def _of_module(module: torch.nn.Module) -> dict[str, Tensor]:
    """The module's own tensors by the names of its `state_dict`, whatever hooks make of that."""
    found: dict[str, Tensor] = {}
    parts = cast("Iterable[tuple[str, Any]]", module.named_modules(remove_duplicate=False))
    for prefix, part in parts:
        left_out = part._non_persistent_buffers_set
        buffers = {name: each for name, each in part._buffers.items() if name not in left_out}
        for name, tensor in {**part._parameters, **buffers}.items():
            if tensor is not None:
                found[f"{prefix}.{name}" if prefix else name] = tensor
    return found


def _by_name(variables: Variables) -> dict[str, Tensor]:
    if isinstance(variables, Mapping):
        own = cast(Mapping[Any, Tensor], variables)
        return {str(name): each for name, each in own.items()}
    if isinstance(variables, torch.nn.Module):
        raise InvalidTypeError("variables must be tensors, not a module: give it as module=.")
    tensors = distinct(flatten(variables, "variables"))
    names = [name_of(each).split(":")[0] for each in tensors]
    # Their order would decide, and a list in another order would be given others' values.
    nameless = [tuple(each.shape) for name, each in zip(names, tensors) if name == NAMELESS]
    if nameless:
        raise InvalidArgumentError(
            f"{len(nameless)} of the variables have no name, the first of shape {nameless[0]}: give"
            " module=model, or a dictionary by name, such as dict(model.named_parameters())."
        )
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InvalidArgumentError(
            f"{names.count(twice[0])} of the variables are called {twice[0]!r}: give a dictionary"
            " of variables by names of your choice."
        )
    return dict(zip(names, tensors, strict=True))


def slots_of(optimizer: object) -> SlotStore | None:
    """Return the slot store of an optimizer, or of the optimizer of an `optimize_loss` step; else
    None.
    """
    return getattr(optimizer, "_slots", None)


def as_checkpointable(optimizer: object) -> TorchOptimizerAdapter | Described:
    """Return the optimizer itself, or a `TorchOptimizerAdapter` with the methods it lacks.

    Raises:
        InvalidTypeError: It is none of the library or torch's kind.
    """
    if isinstance(optimizer, torch.optim.Optimizer):
        return TorchOptimizerAdapter(optimizer)
    if not isinstance(optimizer, Described):
        raise InvalidTypeError(
            "optimizer must be one of thalweg.keras, thalweg.v1, thalweg.optim or torch.optim, or"
            f" a step of optimize_loss, not a {type(optimizer).__name__}."
        )
    return optimizer


def state_of(optimizer: Any, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """`state_dict` of an optimizer, with the slots of these variables by these names.

    Raises:
        InvalidArgumentError: It remembers something of others, which no fresh one could take.
    """
    return optimizer._saved(_Names(tensors, all_of_them=bool(tensors)))


def prepare_loading(
    optimizer: Any, state: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> AbstractContextManager[Loading]:
    """Return a context manager of the loading of a state from `state_of`; it holds the optimizer's
    lock.
    """
    if not tensors:
        _refuse_unplaced(optimizer, state)
        return optimizer._loading(state)
    owners = {*state.get("slots", ()), *(name.rpartition("/")[0] for name in state)}
    own = {name: each for name, each in tensors.items() if name in owners}
    others = [name for name, each in own.items() if not is_variable(each)]
    if others:
        raise InvalidArgumentError(
            f"The optimizer has slots of {others[0]!r}, which is no variable but a tensor as"
            f" state_dict() returns it. {_GIVE}"
        )
    variables = list(own.values())
    names = _Names(tensors, all_of_them=isinstance(optimizer, TorchOptimizerAdapter))
    return optimizer._loading(state, variables or None, names)


def _refuse_unplaced(optimizer: Any, state: Mapping[str, Any]) -> None:
    """Refuse slots of TensorFlow 1, which wait for no variables."""
    if state and optimizer._needs_variables and not optimizer._owners():
        raise FailedPreconditionError(
            f"The file has slots such as {next(iter(state))!r} and the optimizer has no variables"
            " to put them beside: give restore(..., module=...) or variables=; optimizer=False"
            " leaves them there. Nothing was loaded."
        )


def prepare_values(tensors: Mapping[str, Tensor], given: Mapping[str, object]) -> Loading:
    """Return the loading that sets the variables themselves.

    Raises:
        CheckpointMismatchError: Names, shapes or dtypes differ.
    """
    entries = [entry_of(name, each) for name, each in tensors.items()]
    found = differences(entries, given)
    if found:
        raise mismatch(found, "The variables", f"Nothing was loaded.{_prefix_hint(tensors, given)}")
    return Loading([(entry, given[entry.name]) for entry in entries], what="The variables")


def _prefix_hint(own: Mapping[str, object], given: Mapping[str, object]) -> str:
    """A hint at why names differ, where they show it."""
    for prefix in _WRAPPED:
        if {f"{prefix}{name}" for name in given} == {*own}:
            return f" The module given wraps the one that was saved: give that inside {prefix!r}."
        if {f"{prefix}{name}" for name in own} == {*given}:
            return f" The module that was saved wraps one such as this, as {prefix!r}."
    if any("/" in name for name in given.keys() - own.keys()):
        return " Names with / are TensorFlow's: convert the checkpoint with rules for the module's."
    return ""


_WRAPPED = ("module.", "_orig_mod.")  # by DistributedDataParallel and DataParallel, torch.compile


_GIVE = "Give the variables themselves: module=model, or dict(model.named_parameters())."


def _refuse_copies(given: Mapping[str, Tensor], variables: Sequence[Tensor]) -> None:
    """Refuse tensors over the memory of variables, in their place."""
    own = {each.data_ptr() for each in variables if each.numel()}
    for name, each in given.items():
        if each.numel() and not is_variable(each) and each.data_ptr() in own:
            raise InvalidArgumentError(
                f"{name!r} lies where a variable of the optimizer does, but is a tensor of its own,"
                f" as state_dict() returns it. {_GIVE}"
            )


def gather_dtensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors, with the values that DTensors have on all ranks; all of them call
    this.
    """
    parts = locals_of(list(tensors.values()))
    return {
        name: each if parts is None or not is_on_mesh(each) else parts.whole(parts.part(each), each)
        for name, each in tensors.items()
    }


class _Names:
    """Calls variables by the names of a file, and others by their own.

    Args:
        tensors: Variables by name.
        all_of_them: Whether to refuse others.
    """

    def __init__(self, tensors: Mapping[str, Tensor], all_of_them: bool = False) -> None:
        self._tensors = tensors
        self._known = {id(each): name for name, each in reversed(list(tensors.items()))}
        self._all_of_them = all_of_them

    def __call__(self, variables: Sequence[Tensor]) -> list[str]:
        keys = keys_of(variables)
        given = [self._known.get(id(var)) for var in variables]
        lacking = [key for key, name in zip(keys, given, strict=True) if name is None]
        if self._all_of_them and lacking:
            _refuse_copies(self._tensors, variables)
            raise InvalidArgumentError(
                "The optimizer has slots of variables that are neither in module nor in"
                f" variables: {lacking[:LISTED]}. Give all variables that the optimizer has slots"
                " of; no new optimizer could go on from the file otherwise."
            )
        return distinct_names([name or key for key, name in zip(keys, given, strict=True)])
