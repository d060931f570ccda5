"""The variables of a training by the names of a file, and the state of their optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import Tensor

from thalweg.core.pairs import distinct, flatten
from thalweg.core.slots import SlotStore
from thalweg.core.state import LISTED, Entry, Loading, Part, fitting, keys_of
from thalweg.core.state import distinct as distinct_names
from thalweg.distribute import Locals, is_on_mesh
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.keras.optimizers import Optimizer as KerasOptimizer
from thalweg.openseq2seq.micro_batches import MicroBatchStep
from thalweg.openseq2seq.optimizers.optimizers import TrainingStep
from thalweg.v1.train import Optimizer as V1Optimizer

Variables = Mapping[str, Tensor] | Iterable[Tensor]


def named(variables: Variables | None, module: Any) -> dict[str, Tensor]:
    """The tensors by name: those given, and the parameters and buffers of a module.

    Raises:
        InvalidTypeError: What is given is neither.
        InvalidArgumentError: Two tensors have the same name.
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
    tensors = distinct(flatten(variables))
    return dict(zip(keys_of(tensors), tensors, strict=True))


def slots_of(optimizer: Any) -> SlotStore | None:
    """Where an optimizer, or that of a step of `optimize_loss`, has its slots."""
    if isinstance(optimizer, MicroBatchStep):
        optimizer = optimizer.step
    own = cast(Any, optimizer)._inner if isinstance(optimizer, TrainingStep) else optimizer
    return getattr(own, "_slots", None)


def check_kind(optimizer: Any) -> None:
    """Refuse what is no optimizer.

    Raises:
        InvalidTypeError: It is none of the library.
    """
    if not isinstance(optimizer, KerasOptimizer | V1Optimizer | TrainingStep | MicroBatchStep):
        raise InvalidTypeError(
            "optimizer must be one of thalweg.keras or thalweg.v1, or a step of optimize_loss, not"
            f" a {type(optimizer).__name__}."
        )


def state_of(optimizer: Any, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """`state_dict` of an optimizer, with the slots of these variables by these names.

    Raises:
        InvalidArgumentError: It remembers something of others, which no fresh one could take.
    """
    return optimizer._saved(_Names(tensors, all_of_them=bool(tensors)))


def loading(
    optimizer: Any, state: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> AbstractContextManager[Loading]:
    """What sets an optimizer to a state that `state_of` returned; its lock is held meanwhile."""
    if not tensors:
        return optimizer._loading(state)
    owners = {*state.get("slots", ()), *(name.rpartition("/")[0] for name in state)}
    variables = [each for name, each in tensors.items() if name in owners]
    return optimizer._loading(state, variables or None, _Names(tensors))


def values(tensors: Mapping[str, Tensor], given: Mapping[str, Any]) -> Loading:
    """What sets the variables themselves.

    Raises:
        CheckpointMismatchError: Names, shapes or dtypes differ.
    """
    parts = Locals()
    entries = [
        Part(name, parts.part(each), var=each, parts=parts)
        if is_on_mesh(each)
        else Entry(name, each)
        for name, each in tensors.items()
    ]
    return fitting(entries, given, "The variables")


def whole(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, with the values that DTensors have on all ranks; all of them call this."""
    parts = Locals()
    return {
        name: parts.whole(parts.part(each), each) if is_on_mesh(each) else each
        for name, each in tensors.items()
    }


class _Names:
    """Calls variables by the names of a file, and others by their own.

    Args:
        tensors: Variables by name.
        all_of_them: Whether to refuse others.
    """

    def __init__(self, tensors: Mapping[str, Tensor], all_of_them: bool = False) -> None:
        self._known = {id(each): name for name, each in reversed(list(tensors.items()))}
        self._all_of_them = all_of_them

    def __call__(self, variables: Sequence[Tensor]) -> list[str]:
        keys = keys_of(variables)
        given = [self._known.get(id(var)) for var in variables]
        lacking = [key for key, name in zip(keys, given, strict=True) if name is None]
        if self._all_of_them and lacking:
            raise InvalidArgumentError(
                "The optimizer has slots of variables that are neither in module nor in"
                f" variables: {lacking[:LISTED]}. Give all variables that the optimizer has slots"
                " of; no new optimizer could go on from the file otherwise."
            )
        return distinct_names([name or key for key, name in zip(keys, given, strict=True)])
