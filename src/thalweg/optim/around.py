"""What is done around the update of a step, in its own sweeps: clipping, unscaling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from thalweg.core.common_factor import Factor
from thalweg.core.hyperparameters import as_number
from thalweg.core.processing import NOTHING, Known, Processing
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.formula import STORED, Rule
from thalweg.optim.averaging import EMA, averaged
from thalweg.optim.narrow import MASTER, Kinds
from thalweg.variable import REDUCED

FOUND_INF = "GradScaler found a gradient that is not finite"


class LastStep(NamedTuple):
    """What has become of a step.

    Args:
        taken: Whether it was taken.
        reason: Why not; "" if it was.
        count: How many steps were taken, by this optimizer since it was made or loaded.
        grad_norm: The common norm of the gradients, unscaled, their elements clipped. None where
            nothing asked for it.
        clip_factor: What they were multiplied by; 1 if their norm was small enough.
    """

    taken: bool
    reason: str = ""
    count: int = 0
    grad_norm: float | None = None
    clip_factor: float | None = None


@dataclass(frozen=True, kw_only=True)
class Around:
    """What a constructor was given for it.

    Attributes:
        clip_grad_norm: All gradients are scaled so that their common norm is no higher.
        clip_grad_value: Elements of gradients are clipped to [-value, value]. With either, rows of
            sparse gradients are added up before.
        fused_unscale: Whether `torch.amp.GradScaler` leaves it to the step to unscale. Steps of
            parameters on a GPU are counted there then.
        ema_decay: An average of each parameter is kept in its state, as `ema`, and moves by
            1 - ema_decay of the way in each step. It is float32 for parameters of 16 bits.
        masters: Whether parameters of 16 bits have a master in float32 in their state, as
            `master`, which steps update, and which they follow. What others write to a parameter
            counts, by `.data`, too; a write that rounds to the same value cannot be seen.
        state_dtype: The dtype of slots: float32, float64, float16 or bfloat16. None stands for the
            parameter's, or that of its master.
        accumulate: How many calls of `step` add up gradients, and free them, for one that is taken:
            the last of them. Clipping sees the sum, and so does the update.
        wide_sums: Whether sums of 16-bit gradients are float32; they are beside masters.
        in_backward: Whether each gradient is applied and freed as it arrives; `step` counts then.
            Not beside what needs all gradients first: `clip_grad_norm`, `accumulate`, a scaler.
        gradients: "flat" gives all parameters gradients in a few buffers, which stay where they are
            and which `zero_grad` clears at once. A parameter that had no gradient has one of 0, a
            frozen one none.
        state_device: "cpu" keeps the state of parameters on a GPU on the CPU, and updates it there:
            gradients go there, values come back. None keeps it with the parameters. Not with
            `in_backward`. What others write in place by `.data` is not seen then.
    """

    clip_grad_norm: float | None = None
    clip_grad_value: float | None = None
    fused_unscale: bool = False
    ema_decay: float | None = None
    masters: bool = False
    state_dtype: torch.dtype | None = None
    accumulate: int = 1
    wide_sums: bool = False
    in_backward: bool = False
    gradients: str | None = None
    state_device: str | None = None

    def __post_init__(self) -> None:
        for name in ("clip_grad_norm", "clip_grad_value"):
            value = getattr(self, name)
            if value is not None:
                number = float(as_number(name, value))
                if number < 0 or number == float("inf"):
                    raise InvalidArgumentError(f"{name} must be a number from 0 on, not {value!r}.")
                object.__setattr__(self, name, number)
        if self.ema_decay is not None:
            decay = float(as_number("ema_decay", self.ema_decay))
            if not 0 <= decay < 1:
                raise InvalidArgumentError(f"ema_decay must be in [0, 1), not {self.ema_decay!r}.")
            object.__setattr__(self, "ema_decay", decay)
        if type(self.accumulate) is not int or self.accumulate < 1:
            raise InvalidArgumentError(
                f"accumulate must be a whole number from 1 on, not {self.accumulate!r}."
            )
        for name in ("fused_unscale", "masters", "wide_sums", "in_backward"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidTypeError(f"{name} must be a bool, not {getattr(self, name)!r}.")
        if self.gradients not in (None, "flat"):
            raise InvalidArgumentError(f"gradients must be None or 'flat', not {self.gradients!r}.")
        freed = "in_backward" if self.in_backward else "accumulate"
        if self.gradients and (self.in_backward or self.accumulate > 1):
            raise InvalidArgumentError(f"gradients='flat' keeps gradients, which {freed} frees.")
        if self.in_backward:
            for name in ("clip_grad_norm", "fused_unscale"):
                if getattr(self, name) or self.accumulate > 1:
                    other = name if getattr(self, name) else "accumulate"
                    raise InvalidArgumentError(
                        f"in_backward applies each gradient as it arrives, and {other} needs all of"
                        " them first."
                    )
        if self.state_device not in (None, "cpu"):
            raise InvalidArgumentError(
                f"state_device must be None or 'cpu', not {self.state_device!r}."
            )
        if self.state_device and self.in_backward:
            raise InvalidArgumentError(
                "state_device='cpu' updates all parameters in one step, and in_backward=True each"
                " by itself: choose one."
            )
        if self.state_dtype not in (None, *STORED):
            raise InvalidTypeError(
                "state_dtype must be torch.float32, float64, float16 or bfloat16, not"
                f" {self.state_dtype!r}."
            )

    @property
    def clips(self) -> bool:
        """Whether gradients are clipped."""
        return self.clip_grad_norm is not None or self.clip_grad_value is not None

    def __bool__(self) -> bool:
        """Whether anything happens that a step of torch's would not do."""
        own = not self.keeps_as_torch
        return self.clips or own or self.accumulate > 1 or self.in_backward

    @property
    def is_lossless(self) -> bool:
        """Whether torch's own loader would keep all dtypes."""
        return self.keeps_as_torch and not self.wide_sums

    @property
    def keeps_as_torch(self) -> bool:
        """Whether the state is what torch would keep, where it would."""
        others = self.ema_decay, self.state_dtype, self.state_device
        return not self.masters and all(each is None for each in others)

    def keys(self, param: Tensor) -> list[str]:
        """What the state of a parameter holds beside torch's own."""
        ema = [EMA] if self.ema_decay is not None else []
        return [*ema, MASTER] if self.masters and param.dtype in REDUCED else ema

    @property
    def kinds(self) -> Kinds:
        """What the state of parameters is kept in."""
        device = None if self.state_device is None else torch.device(self.state_device)
        return Kinds(self.masters, self.state_dtype, device, self.accumulate > 1)

    def rule(self, rule: Rule) -> Rule:
        """A rule with all that is done beside it."""
        return rule if self.ema_decay is None else averaged(rule)

    @property
    def on(self) -> dict[str, Any]:
        """What differs from a constructor that was given nothing."""
        own = {each.name: (getattr(self, each.name), each.default) for each in fields(self)}
        return {name: value for name, (value, default) in own.items() if value != default}

    def named(self) -> str:
        """What is on, for messages."""
        return ", ".join(self.on)

    def others(self, group: Mapping[str, Any]) -> list[str]:
        """Options in a group that are not as here, where they are for all groups together."""
        return [n for n in KEYWORDS if n in group and not _equal(group[n], getattr(self, n))]


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except (RuntimeError, TypeError, ValueError):  # such as a tensor of several elements
        return False


KEYWORDS = tuple(each.name for each in fields(Around))
NONE = Around()
_NARROW = Processing(narrow=True)
EPSILON = 1e-6  # what `torch.nn.utils.clip_grad_norm_` adds to a norm


def apart(keywords: dict[str, Any]) -> Around:
    """Take what is meant for the surroundings out of keywords."""
    own = {name: keywords.pop(name) for name in KEYWORDS if name in keywords}
    return Around(**own) if own else NONE


class Seen:
    """What a step tells of its gradients: numbers, or tensors of their device until asked for."""

    def __init__(self) -> None:
        self.grad_norm: Any = None
        self.clip_factor: Any = None

    def __call__(self, known: Known) -> None:
        self.grad_norm, self.clip_factor = known.global_norm, known.clip_scale


def processing(
    around: Around,
    unscaling: float | Tensor | None,
    count: int,
    seen: Seen,
    is_torchs: bool,
    factor: Factor | None = None,
) -> Processing:
    """What happens to the gradients of a step.

    Args:
        around: What is on.
        unscaling: What gradients are multiplied by first, or None; a tensor stays one.
        count: How many gradients there are.
        seen: Is told of them where they are measured.
        is_torchs: Whether torch's factor clips a common norm, or TensorFlow's.
        factor: What clips them by a common norm, where that is known; see `CommonNorm`.
    """
    if not around.clips and unscaling is None:
        return _NARROW if around.masters else NOTHING
    by_norm = around.clip_grad_norm is not None
    each: Any = None
    if isinstance(unscaling, Tensor):
        each = unscaling.expand(count)
    elif unscaling is not None:
        each = np.full(count, unscaling, np.float32)
    return Processing(
        unscaling=each,
        clipvalue=around.clip_grad_value,
        global_clipnorm=around.clip_grad_norm,
        overflow=False,  # not even with TensorFlow's numbers: the option is ours
        whole_is_nan=not is_torchs,
        epsilon=EPSILON if is_torchs else None,
        clip_factor=factor,
        watch=seen if by_norm and factor is None else None,
        narrow=around.masters,
    )
