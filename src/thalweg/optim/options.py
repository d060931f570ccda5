"""The options that every constructor of `thalweg.optim` takes, one class for each.

`Any`, `Mapping`, `Storage` and `torch` are for `typing.get_type_hints` of these classes.
"""

from __future__ import annotations

from collections.abc import Mapping as Mapping
from typing import Any as Any

import torch as torch

from thalweg._core.options.accumulation import Accumulation
from thalweg._core.options.clipping import Clipping
from thalweg._core.options.diagnostics import Diagnosed
from thalweg._core.options.flat_gradients import Flat
from thalweg._core.options.lookahead import Lookahead
from thalweg._core.options.loss_scale import Unscaling
from thalweg._core.options.master_weights import Masters, Offload, StateDtype
from thalweg._core.options.spikes import SpikeActions
from thalweg._core.options.split_weights import SplitWeights
from thalweg._core.options.state_storage import StateCodec
from thalweg._core.options.state_storage import Storage as Storage
from thalweg._core.options.step_in_backward import InBackward
from thalweg._core.options.stochastic_rounding import Rounding
from thalweg._core.options.weight_averaging import Average
from thalweg._core.options.wrappers import (
    Cautious,
    CautiousDecay,
    RadialBrake,
    RowFloor,
    Sphere,
    TrustRatio,
)

__all__ = [
    "Accumulation", "Average", "Cautious", "CautiousDecay", "Clipping", "Diagnosed", "Flat",
    "InBackward", "Lookahead", "Masters", "Offload", "RadialBrake", "Rounding", "RowFloor",
    "Sphere", "SpikeActions", "SplitWeights", "StateCodec", "StateDtype", "TrustRatio", "Unscaling",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
