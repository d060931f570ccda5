"""The tensors of a file as their targets need them: by parameter, and with its axes."""

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
    """A file whose variables have found their targets.

    Attributes:
        file: The file.
        targets: The targets.
        places: Where each variable goes, in the order of the targets; those that are left out are
            not there.
    """

    file: TensorFlowCheckpoint
    targets: TargetTensors
    places: Mapping[str, Place]

    @classmethod
    def of(
        cls, file: TensorFlowCheckpoint, targets: TargetTensors, rules: Rules | None
    ) -> MappedTensors:
        """Return a file and its targets.

        Raises:
            CheckpointMismatchError: A variable finds no target, a target no variable, or they
                differ.
        """
        places, found = map_variables(
            file.variables, file.other_names, targets.tensors, targets.optional, rules
        )
        if found:
            raise state.mismatch(found)
        order = {target: index for index, target in enumerate(targets.tensors)}
        kept = {name: place for name, place in places.items() if place.target is not None}
        ordered = sorted(kept, key=lambda name: order[kept[name].target or ""])
        return cls(file, targets, {name: kept[name] for name in ordered})

    def target(self, name: str) -> Tensor:
        """Return the tensor that a variable goes to."""
        return self.targets.tensors[self.places[name].target or ""]

    def permute_like(self, name: str, value: StoredTensor) -> Tensor:
        """Return a tensor beside a variable, with the axes of its target."""
        return with_axes(value.tensor(), self.places[name].axes)

    def variables(self) -> list[tuple[Entry, Tensor]]:
        """Return the targets and their values."""
        return [
            (
                Entry(place.target or "", self.target(name)),
                self.permute_like(name, self.file.variables[name]),
            )
            for name, place in self.places.items()
        ]

    def slots(self, found: FoundOptimizer | None) -> Slots:
        """Return the slots of an optimizer; those of variables that are left out are left out, too.

        Raises:
            CheckpointMismatchError: A variable lacks slots that others have.
        """
        if found is None:
            return []
        own = {name: found.slots[name] for name in self.places if name in found.slots}
        every = [kind for slots in own.values() for kind in slots]
        kinds = found.family.slots if found.family else dict.fromkeys(every)
        missing = [
            f"{name!r} has no slot {kind!r}"
            for name, slots in own.items()
            for kind in kinds
            if kind not in slots
        ]
        if missing:
            raise state.mismatch(missing)
        return [
            (
                self.target(name),
                {kind: self.permute_like(name, each) for kind, each in slots.items()},
            )
            for name, slots in own.items()
        ]


def with_axes(tensor: Tensor, axes: Axes | None) -> Tensor:
    """Return a tensor with its axes in another order; one without axes has none to turn."""
    return tensor if axes is None or not tensor.dim() else tensor.permute(axes).contiguous()
