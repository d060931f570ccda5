"""Tensors of a file by target, with the axes of the targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from thalweg._core import state
from thalweg._core.state import Entry
from thalweg.checkpoint.tensorflow.detection.checkpoint_contents import (
    FoundOptimizer,
    TensorFlowCheckpoint,
)
from thalweg.checkpoint.tensorflow.mapping.mapping_rules import Axes, Place, Rules
from thalweg.checkpoint.tensorflow.mapping.targets import TargetTensors
from thalweg.checkpoint.tensorflow.mapping.variable_mapping import map_variables

if TYPE_CHECKING:
    from thalweg._formats.stored_tensor import StoredTensor

Slots = list[tuple[Tensor, dict[str, Tensor]]]  # for each variable its slots by kind


@dataclass(frozen=True)
class MappedTensors:
    """A checkpoint whose variables are assigned to targets.

    Attributes:
        file: The checkpoint.
        targets: The targets.
        places: The destination of each variable, in the order of the targets; omitted variables are
            missing.
    """

    file: TensorFlowCheckpoint
    targets: TargetTensors
    places: Mapping[str, Place]

    @classmethod
    def of(
        cls, checkpoint: TensorFlowCheckpoint, targets: TargetTensors, rules: Rules | None
    ) -> MappedTensors:
        """Return a checkpoint with its variables assigned to targets.

        Raises:
            CheckpointMismatchError: A variable has no target, a target has no variable, or they
                differ.
        """
        places, problems = map_variables(
            checkpoint.variables, checkpoint.other_names, targets.tensors, targets.optional, rules
        )
        if problems:
            raise state.mismatch(problems)
        order = {target: index for index, target in enumerate(targets.tensors)}
        mapped = {name: place for name, place in places.items() if place.target is not None}
        names = sorted(mapped, key=lambda name: order[mapped[name].target or ""])
        return cls(checkpoint, targets, {name: mapped[name] for name in names})

    def target(self, name: str) -> Tensor:
        """Return the tensor that a variable is assigned to."""
        return self.targets.tensors[self.places[name].target or ""]

    def permute_like(self, name: str, stored_tensor: StoredTensor) -> Tensor:
        """Return a tensor with the axes permuted like those of a variable."""
        return with_axes(stored_tensor.tensor(), self.places[name].axes)

    def variables(self) -> list[tuple[Entry, Tensor]]:
        """Return the targets and their new values."""
        return [
            (
                Entry(place.target or "", self.target(name)),
                self.permute_like(name, self.file.variables[name]),
            )
            for name, place in self.places.items()
        ]

    def slots(self, detected: FoundOptimizer | None) -> Slots:
        """Return the slots of an optimizer, except those of omitted variables.

        Raises:
            CheckpointMismatchError: A variable lacks slots that others have.
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
        if missing:
            raise state.mismatch(missing)
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
