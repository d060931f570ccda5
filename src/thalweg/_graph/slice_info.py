"""Positions of the parts of partitioned variables and of the slots of parts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class SaveSliceInfo:
    """Position of a part in its whole variable.

    Attributes:
        full_name: Name of the whole variable.
        full_shape: Shape of the whole variable.
        var_offset: First index of the part along each axis.
        var_shape: Shape of the part.
        index: Number of the part, from 0.
    """

    full_name: str
    full_shape: list[int]
    var_offset: list[int]
    var_shape: list[int]
    index: int = 0

    @property
    def key(self) -> str:
        """Name of the part in a checkpoint that stores parts separately."""
        return f"{self.full_name}/part_{self.index}"

    @property
    def spec(self) -> str:
        """Shape of the whole variable, and first index and size along each axis: "4 2 0,2:0,1"."""
        pairs = zip(self.var_offset, self.var_shape, strict=True)
        sizes = " ".join(map(str, self.full_shape))
        return f"{sizes} " + ":".join(f"{start},{size}" for start, size in pairs)

    def cut(self, tensor: Any) -> Any:
        """Return the elements of the full tensor that belong to the part."""
        pairs = zip(self.var_offset, self.var_shape, strict=True)
        return tensor[tuple(slice(start, start + size) for start, size in pairs)]


def mark_slice_like(slot: Any, primary: Any) -> None:
    """Set the position of `slot` in place, if `primary` is a part and has the shape of `slot`."""
    info = getattr(primary, "_save_slice_info", None)
    if info is None or slot.shape != primary.shape:
        return
    slot_name = slot.op.name.rpartition(f"{primary.op.name}/")[2]
    slot._save_slice_info = replace(info, full_name=f"{info.full_name}/{slot_name}")
