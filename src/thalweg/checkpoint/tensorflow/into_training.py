"""Sets a training of `thalweg.openseq2seq` to what a file has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from thalweg.checkpoint.tensorflow.placing import Placed, Slots


def is_training(opt: Any) -> bool:
    return False


def load_training(opt: Any, placed: Placed, slots: Slots, scalars: Mapping[str, Tensor]) -> None:
    raise NotImplementedError
