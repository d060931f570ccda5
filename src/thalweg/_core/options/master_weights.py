"""Options for master weights and for the dtype and device of state."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from thalweg._base.exports import exported_from
from thalweg._base.showing import show_value
from thalweg._core.options.base import Option
from thalweg._core.options.update_targets import MASTER
from thalweg.errors import InvalidTypeError
from thalweg.formula import STORED
from thalweg.variable import REDUCED


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class Masters(Option):
    """Float32 master weights for 16-bit parameters.

    Attributes:
        masters: True if steps update a float32 copy of each 16-bit parameter, `master` in its
            state, and round it to the parameter. A user's write to a parameter, also by `.data`,
            updates the master, unless the master already rounds to the written value.
    """

    begins = (MASTER,)
    changes_state = True
    masters: bool = False

    def keeps(self, param: Tensor) -> bool:
        return param.dtype in REDUCED

    def gradient_transforms(self) -> dict[str, bool]:
        return {"narrow": True}


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class StateDtype(Option):
    """Dtype of slots.

    Attributes:
        state_dtype: Dtype of the slots: torch.float32, float64, float16 or bfloat16. None is the
            dtype of the parameter, or of its master.
    """

    changes_state = True
    state_dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        if self.state_dtype not in (None, *STORED):
            raise InvalidTypeError(
                "state_dtype must be torch.float32, float64, float16 or bfloat16, not"
                f" {show_value(self.state_dtype)}."
            )


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class Offload(Option):
    """State and update on the CPU for parameters on a GPU.

    Attributes:
        state_device: "cpu" keeps and updates the state on the CPU. Gradients are copied to the CPU
            and new values back; with `in_backward`, during the backward pass. In-place writes by
            `.data` are then not detected. None keeps state on the device of its parameter.
    """

    changes_state = has_resources = True
    state_device: str | None = None

    def __post_init__(self) -> None:
        self._check_choice("state_device", "cpu")
