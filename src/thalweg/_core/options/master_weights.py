"""Masters in float32, and in what the state of parameters is kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from thalweg._base.exports import exported_from
from thalweg._base.showing import show_value
from thalweg._core.options.base import Option, Others
from thalweg._core.options.step_in_backward import InBackward
from thalweg._core.options.update_targets import MASTER
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.formula import STORED
from thalweg.variable import REDUCED


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class Masters(Option):
    """Parameters of 16 bits that follow masters of 32.

    Attributes:
        masters: Whether parameters of 16 bits have a master in float32 in their state, as
            `master`, which steps update, and which they follow. What others write to a parameter
            counts, by `.data`, too; a write that rounds to the same value cannot be seen.
    """

    begins = (MASTER,)
    changes_state = True
    masters: bool = False

    def __post_init__(self) -> None:
        self._check_bool("masters")

    def keeps(self, param: Tensor) -> bool:
        return param.dtype in REDUCED

    def gradient_transforms(self) -> dict[str, bool]:
        return {"narrow": True}


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class StateDtype(Option):
    """The dtype of slots.

    Attributes:
        state_dtype: The dtype of slots: float32, float64, float16 or bfloat16. None stands for the
            parameter's, or that of its master.
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
    """State that is kept and updated on the CPU.

    Attributes:
        state_device: "cpu" keeps the state of parameters on a GPU on the CPU, and updates it there:
            gradients go there, values come back. None keeps it with the parameters. Not with
            `in_backward`. What others write in place by `.data` is not seen then.
    """

    changes_state = True
    state_device: str | None = None

    def __post_init__(self) -> None:
        if self.state_device not in (None, "cpu"):
            raise InvalidArgumentError(
                f"state_device must be None or 'cpu', not {show_value(self.state_device)}."
            )

    def check_beside(self, others: Others) -> None:
        if others.of(InBackward).in_backward:
            raise InvalidArgumentError(
                "state_device='cpu' updates all parameters in one step, and in_backward=True each"
                " by itself: choose one."
            )
