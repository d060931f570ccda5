"""What OpenSeq2Seq's mixed precision keeps in a checkpoint: masters and the loss scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from thalweg.checkpoint.tensorflow.contents import MixedPrecision

if TYPE_CHECKING:
    from thalweg.storage.stored import Stored


def mixed_precision(
    tensors: Mapping[str, Stored],
) -> tuple[MixedPrecision | None, dict[str, Stored]]:
    """Masters and loss scale, or None, and everything else."""
    return None, dict(tensors)
