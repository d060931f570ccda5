"""Assignment of a file's tensors to target tensors, with permuted axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from thalweg._core import state
from thalweg._core.grads_and_vars import check_variables, flatten
from thalweg._core.state import Entry
from thalweg._formats.stored_tensor import StoredTensor
from thalweg.checkpoint.tensorflow.detection.checkpoint_contents import (
    FoundOptimizer,
    TensorFlowCheckpoint,
)
from thalweg.checkpoint.tensorflow.mapping.mapping_rules import Axes, Place, Rules
from thalweg.checkpoint.tensorflow.mapping.variable_mapping import map_variables
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.variable import Variable, is_variable, name_of, named_variables


@dataclass(frozen=True)
class TargetTensors:
    """Tensors to set from a file (targets), by name.

    Attributes:
        tensors: {name: tensor} of variables, or of a module's parameters and buffers.
        trained: The names of tensors for which an optimizer may have slots.
        optional: The names of tensors that a file may lack.
    """

    tensors: dict[str, Tensor]
    trained: frozenset[str]
    optional: frozenset[str]

    @classmethod
    def of(cls, module_or_variables: object) -> TargetTensors:
        """Return the tensors of a module, of a dictionary or of a list of variables.

        Unnamed parameters of a module or dictionary are named, as by `thalweg.named_variables`.

        Raises:
            InvalidArgumentError: Two variables of a list share a name.
            TypeError: An element is not a variable.
        """
        if isinstance(module_or_variables, torch.nn.Module):
            return cls._of_module(module_or_variables)
        if isinstance(module_or_variables, Mapping):
            mapping = cast(Mapping[Any, Any], module_or_variables)
            tensors = {str(name): mapping[name] for name in mapping}
            for name, tensor in tensors.items():
                if isinstance(tensor, Tensor) and not is_variable(tensor):
                    raise InvalidTypeError(
                        f"{name!r} is a tensor and no variable. Use thalweg.Variable or a leaf that"
                        " requires a gradient."
                    )
            check_variables(list(tensors.values()))
            named_variables([pair for pair in tensors.items() if not _has_name(pair[1])])
        else:
            variables = flatten(module_or_variables)
            check_variables(variables)
            names = [name_of(variable).split(":")[0] for variable in variables]
            duplicates = [name for name in dict.fromkeys(names) if names.count(name) > 1]
            if duplicates:
                raise InvalidArgumentError(
                    f"{names.count(duplicates[0])} variables are called {duplicates[0]!r}. Give a"
                    " dictionary of variables by name, or names by"
                    " thalweg.named_variables(module)."
                )
            tensors = dict(zip(names, variables, strict=True))
        return cls(tensors, frozenset(tensors), frozenset())

    @classmethod
    def _of_module(cls, module: torch.nn.Module) -> TargetTensors:
        """Return the parameters and persistent buffers of a module; name its unnamed parameters."""
        parameters = dict(module.named_parameters())
        named_variables([pair for pair in parameters.items() if not _has_name(pair[1])])
        # Buffers that are not persistent are not in the state dict.
        saved_names = module.state_dict(keep_vars=True).keys()
        buffers = {name: buffer for name, buffer in module.named_buffers() if name in saved_names}
        # TensorFlow has no counterpart of integer buffers, such as `num_batches_tracked`.
        counters = {name for name, buffer in buffers.items() if not buffer.is_floating_point()}
        return cls({**parameters, **buffers}, frozenset(parameters), frozenset(counters))


def _has_name(tensor: Tensor) -> bool:
    return isinstance(tensor, Variable) or hasattr(tensor, "_thalweg_name")


# For each variable its slots by kind.
Slots = list[tuple[Tensor, dict[str, Tensor]]]


@dataclass(frozen=True)
class MappedTensors:
    """A checkpoint whose variables are assigned to target tensors."""

    file: TensorFlowCheckpoint
    targets: TargetTensors
    places: Mapping[str, Place]

    @classmethod
    def of(
        cls, checkpoint: TensorFlowCheckpoint, targets: TargetTensors, rules: Rules | None
    ) -> MappedTensors:
        """Return a checkpoint with its variables assigned to target tensors.

        Raises:
            CheckpointMismatchError: A variable has no target, a target has no variable, or shapes
                or dtypes differ.
        """
        destinations, problems = map_variables(
            checkpoint.variables, checkpoint.other_names, targets.tensors, targets.optional, rules
        )
        state.raise_mismatch(problems)
        mapped = {place.target: (name, place) for name, place in destinations.items()}
        pairs = [mapped[target] for target in targets.tensors if target in mapped]
        return cls(checkpoint, targets, dict(pairs))

    def target(self, name: str) -> Tensor:
        """Return the tensor to which the file's variable `name` is assigned."""
        return self.targets.tensors[self.places[name].target or ""]

    def permute_like(self, name: str, stored_tensor: StoredTensor) -> Tensor:
        """Return a tensor with the axes permuted as for the file's variable `name`."""
        return with_axes(stored_tensor.tensor(), self.places[name].axes)

    def variables(self) -> list[tuple[Entry, Tensor]]:
        """Return (target, new value) pairs."""
        return [
            (
                Entry(destination.target or "", self.target(name)),
                self.permute_like(name, self.file.variables[name]),
            )
            for name, destination in self.places.items()
        ]

    def slots(self, detected: FoundOptimizer | None) -> Slots:
        """Return (variable, {slot name: slot}) pairs of an optimizer; [] for None.

        Slots of omitted variables are left out.

        Raises:
            CheckpointMismatchError: A variable lacks a slot that the optimizer has.
        """
        if detected is None:
            return []
        owned = {name: detected.slots[name] for name in self.places if name in detected.slots}
        all_kinds = [kind for slots in owned.values() for kind in slots]
        kinds = detected.family.slots if detected.family else dict.fromkeys(all_kinds)
        missing = [
            f"{name!r} has no slot {kind!r}"
            for name, slots in owned.items()
            for kind in kinds
            if kind not in slots
        ]
        state.raise_mismatch(missing)
        return [
            (
                self.target(name),
                {kind: self.permute_like(name, slot) for kind, slot in slots.items()},
            )
            for name, slots in owned.items()
        ]


def with_axes(tensor: Tensor, axes: Axes | None) -> Tensor:
    """Return a tensor with permuted axes; scalars are returned unchanged."""
    return tensor if axes is None or not tensor.dim() else tensor.permute(axes).contiguous()
