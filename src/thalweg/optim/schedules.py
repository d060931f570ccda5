"""Schedules that `torch.optim.lr_scheduler` lacks: warm-up, stable phase, decay; per group.

A *factor* is a function of the number of steps taken, by which an option of the groups is
multiplied. `Schedule` applies factors to learning rates and is a scheduler of torch;
`OptionSchedule` applies them to another option, such as `weight_decay`. Factors are functions that
`torch.optim.lr_scheduler.LambdaLR` takes, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import EllipsisType
from typing import Any, cast

import torch
from torch.optim.lr_scheduler import LRScheduler

from thalweg._base.showing import show_value
from thalweg.errors import CheckpointMismatchError, InvalidArgumentError, InvalidTypeError

__all__ = [
    "InverseSquareRoot",
    "OptionSchedule",
    "Schedule",
    "WarmupCosine",
    "WarmupStableDecay",
]

Factor = Callable[[int], float]
GroupSelector = int | str | EllipsisType
SHAPES = ("linear", "cosine", "1-sqrt")


def _check_count(name: str, count: object, minimum: int = 0) -> None:
    """Raise InvalidArgumentError unless `count` is an integer of at least `minimum`."""
    if type(count) is not int or count < minimum:
        raise InvalidArgumentError(
            f"{name} must be an integer of {minimum} or more, not {show_value(count)}."
        )


def _check_share(name: str, fraction: object) -> None:
    """Raise InvalidArgumentError unless `fraction` is in [0, 1]."""
    if not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
        raise InvalidArgumentError(f"{name} must be in [0, 1], not {show_value(fraction)}.")


@dataclass(frozen=True)
class WarmupStableDecay:
    """Factor that rises from `begin` to 1, stays there, and decays to `floor` at the end.

    Args:
        total: The number of steps of the training.
        warmup: The number of steps of the rise, which is linear.
        decay: The number of steps of the decay, at the end.
        shape: The shape of the decay: "linear", "cosine" or "1-sqrt".
        floor: The factor after the decay.
        begin: The factor of the first step.

    Raises:
        InvalidArgumentError: A value is invalid, or `warmup + decay` is larger than `total`.

    Source: Hu et al. 2024, https://arxiv.org/abs/2404.06395; Hagele et al. 2024,
    https://arxiv.org/abs/2405.18392. The numbers are those of `get_wsd_schedule` of transformers
    with `begin == floor`, and those of torchtitan, for its `warmup_steps` and `decay_steps`, with
    `warmup=warmup_steps, decay=decay_steps + 1, begin=1 / (warmup_steps + 1)`.
    """

    total: int
    warmup: int = 0
    decay: int = 0
    shape: str = "linear"
    floor: float = 0.0
    begin: float = 0.0

    def __post_init__(self) -> None:
        """Raise InvalidArgumentError for invalid values."""
        for name in ("total", "warmup", "decay"):
            _check_count(name, getattr(self, name), minimum=int(name == "total"))
        _check_share("floor", self.floor)
        _check_share("begin", self.begin)
        if self.shape not in SHAPES:
            names = ", ".join(map(repr, SHAPES))
            raise InvalidArgumentError(f"shape is {show_value(self.shape)}; known are {names}.")
        # Torchtitan counts one step of the decay before its first one.
        if self.warmup + self.decay > self.total + 1:
            raise InvalidArgumentError(
                f"warmup={self.warmup} and decay={self.decay} are more than total={self.total}."
            )

    def __call__(self, step: int) -> float:
        """Return the factor after `step` steps."""
        if step < self.warmup:
            return step / self.warmup * (1.0 - self.begin) + self.begin
        first = self.total - self.decay
        if step < first:
            return 1.0
        # Without a decay, the factor stays 1 after the end.
        if step >= self.total:
            return float(self.floor) if self.decay else 1.0
        return _decay_factor(self.shape, (step - first) / self.decay, self.floor)


def _decay_factor(shape: str, progress: float, floor: float) -> float:
    """Return the factor at `progress`, the finished fraction of a decay from 1 to `floor`.

    `shape` is "linear", "cosine" or, for any other value, 1 minus the square root of `progress`.
    """
    if shape == "linear":
        fraction = 1.0 - progress
    elif shape == "cosine":
        fraction = 0.5 * (1.0 + math.cos(math.pi * progress))
    else:
        fraction = 1.0 - math.sqrt(progress)
    # As in transformers: rounding must not make the factor negative.
    return max(0.0, fraction * (1.0 - floor) + floor)


@dataclass(frozen=True)
class WarmupCosine:
    """Factor that rises linearly to 1 and then falls to `floor` along a half cosine.

    Args:
        total: The number of steps of the training.
        warmup: The number of steps of the rise.
        floor: The factor at the end and afterwards.
        begin: The factor of the first step.

    Raises:
        InvalidArgumentError: A value is invalid.

    Source: Loshchilov and Hutter 2017, https://arxiv.org/abs/1608.03983. The numbers are those of
    `get_cosine_schedule_with_warmup` of transformers with a floor of 0.
    """

    total: int
    warmup: int = 0
    floor: float = 0.0
    begin: float = 0.0

    def __post_init__(self) -> None:
        _check_count("total", self.total, 1)
        _check_count("warmup", self.warmup)
        if self.warmup > self.total:
            raise InvalidArgumentError(f"warmup={self.warmup} is more than total={self.total}.")
        # Validates `floor` and `begin` in the constructor of `WarmupStableDecay`.
        self(0)

    def __call__(self, step: int) -> float:
        """Return the factor after so many steps."""
        decay = self.total - self.warmup
        factor = WarmupStableDecay(self.total, self.warmup, decay, "cosine", self.floor, self.begin)
        return factor(step) if step < self.total else float(self.floor)


@dataclass(frozen=True)
class InverseSquareRoot:
    """Factor that rises linearly to 1 and then falls with the inverse square root of the step.

    Args:
        warmup: The number of steps of the rise.
        timescale: After the warm-up, the factor is the root of timescale / (timescale + steps
            since). None is `warmup`, or 10,000 without a warm-up.

    Raises:
        InvalidArgumentError: A value is invalid.

    Source: Zhai et al. 2022, https://arxiv.org/abs/2106.04560; with the numbers of
        `get_inverse_sqrt_schedule` of transformers.
    """

    warmup: int = 0
    timescale: int | None = None

    def __post_init__(self) -> None:
        _check_count("warmup", self.warmup)
        if self.timescale is not None:
            _check_count("timescale", self.timescale, 1)

    def __call__(self, step: int) -> float:
        """Return the factor after so many steps."""
        if step < self.warmup:
            return step / self.warmup
        # The defaults of transformers.
        timescale = self.timescale or self.warmup or 10_000
        return 1.0 / math.sqrt((step + timescale - self.warmup) / timescale)


def _factors_of(
    optimizer: torch.optim.Optimizer, factors: Factor | Mapping[GroupSelector, Factor]
) -> list[Factor]:
    """Return the factor function of each group, in order.

    Raises:
        InvalidTypeError: A factor is not a function, or a selector has another type.
        InvalidArgumentError: A group is selected by no selector or by two, or a selector selects no
            group.
    """
    groups = optimizer.param_groups
    by_selector = cast(
        "Mapping[GroupSelector, Factor]",
        factors if isinstance(factors, Mapping) else {...: factors},
    )
    for selector, factor in by_selector.items():
        if not callable(factor):
            raise InvalidTypeError(
                f"The factor of {_show_selector(selector)} must be a function of the number of"
                f" steps, not {show_value(factor)}."
            )
    rest_selectors = [selector for selector in by_selector if selector is ...]
    owners = [
        [x for x in by_selector if _selects(x, index, group)] or rest_selectors
        for index, group in enumerate(groups)
    ]
    for selector in by_selector:
        if selector is not ... and not any(selector in selectors for selectors in owners):
            raise InvalidArgumentError(
                f"{_show_selector(selector)} selects no group of parameters."
            )
    for index, selectors in enumerate(owners):
        if len(selectors) != 1:
            names = " and ".join(map(_show_selector, selectors)) or "no selector; add `...`"
            raise InvalidArgumentError(f"Group {index} is selected by {names}.")
    return [by_selector[selectors[0]] for selectors in owners]


def _selects(selector: GroupSelector, index: int, group: Mapping[str, Any]) -> bool:
    """Return True if `selector` selects `group`, which has the index `index`; False for `...`.

    A selector is an index, the name of a rule, or a pattern for the names of all parameters.
    """
    if isinstance(selector, int) and not isinstance(selector, bool):
        return index == selector
    if isinstance(selector, str):
        names = cast("Sequence[str]", group.get("param_names", ()))
        is_rule = group.get("rule") == selector
        return is_rule or (bool(names) and all(fnmatchcase(name, selector) for name in names))
    if selector is ...:
        return False
    raise InvalidTypeError(
        "A selector of groups must be an index, the name of a rule, a pattern of names of"
        f" parameters, or `...`, not {show_value(selector)}."
    )


def _show_selector(selector: GroupSelector) -> str:
    """Return a selector as text for messages."""
    return "`...`" if selector is ... else repr(selector)


class Schedule(LRScheduler):
    """Scheduler that multiplies the initial learning rates by factors.

    Args:
        optimizer: The optimizer.
        factors: A function of the number of steps, or a dict of such functions by selector of
            groups: an index, the name of a rule of `Mixed`, a pattern that the names of all
            parameters of a group match, or `...` for all other groups.
        last_epoch: As for the schedulers of torch.

    Raises:
        InvalidTypeError, InvalidArgumentError: A factor or a selector is invalid, or a group has
            not exactly one factor.

    Example:
        >>> import torch
        >>> from thalweg import optim
        >>> from thalweg.optim import schedules
        >>> optimizer = optim.AdamW([torch.zeros(2, requires_grad=True)], lr=0.1)
        >>> factor = schedules.WarmupStableDecay(total=10, warmup=2, decay=4)
        >>> schedule = schedules.Schedule(optimizer, factor)
        >>> schedule.get_last_lr()
        [0.0]
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        factors: Factor | Mapping[GroupSelector, Factor],
        last_epoch: int = -1,
    ) -> None:
        self._factors = _factors_of(optimizer, factors)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """Return the rate of each group after `last_epoch` steps."""
        pairs = zip(self.base_lrs, self._factors, strict=True)
        return [rate * factor(self.last_epoch) for rate, factor in pairs]

    def state_dict(self) -> dict[str, Any]:
        """Return the state without optimizer and factors, which the constructor gets again."""
        excluded = ("optimizer", "_factors")
        return {name: attribute for name, attribute in vars(self).items() if name not in excluded}


class OptionSchedule:
    """Scheduler that multiplies an option of groups, such as `weight_decay`, by factors.

    Call `step` after each step of the optimizer, as for the schedulers of torch.

    Args:
        optimizer: The optimizer. Its groups have the initial values.
        option: The name of the option, a number in each group.
        factors: As for `Schedule`.

    Raises:
        InvalidTypeError, InvalidArgumentError: As for `Schedule`, or a group lacks the option.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        option: str,
        factors: Factor | Mapping[GroupSelector, Factor],
    ) -> None:
        self._factors = _factors_of(optimizer, factors)
        for index, group in enumerate(optimizer.param_groups):
            if not isinstance(group.get(option), int | float):
                raise InvalidArgumentError(
                    f"{option!r} of group {index} is {show_value(group.get(option))}, not a number."
                )
        self.optimizer, self.option, self.last_epoch = optimizer, option, 0
        self.initial = [float(group[option]) for group in optimizer.param_groups]
        # Torch's schedulers, too, write the first values when they are created.
        self._apply()

    def _apply(self) -> None:
        """Write the values after `last_epoch` steps to the groups."""
        for group, option_value in zip(self.optimizer.param_groups, self.get_values(), strict=True):
            group[self.option] = option_value

    def get_values(self) -> list[float]:
        """Return the value of each group after `last_epoch` steps."""
        pairs = zip(self.initial, self._factors, strict=True)
        return [initial * factor(self.last_epoch) for initial, factor in pairs]

    def step(self) -> None:
        """Count a step and write the new values to the groups."""
        self.last_epoch += 1
        self._apply()

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps and the initial values."""
        return {"option": self.option, "last_epoch": self.last_epoch, "initial": [*self.initial]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the state of a schedule, and write its values to the groups.

        Raises:
            CheckpointMismatchError: The state is of another option or number of groups.
        """
        initial, step = state_dict.get("initial"), state_dict.get("last_epoch")
        if (
            state_dict.get("option") != self.option
            or not isinstance(initial, list)
            or len(cast("list[object]", initial)) != len(self.initial)
            or type(step) is not int
        ):
            raise CheckpointMismatchError(
                f"The state is not one of a schedule of {self.option!r} with"
                f" {len(self.initial)} groups: {show_value(dict(state_dict))}."
            )
        self.initial = [float(number) for number in cast("list[Any]", initial)]
        self.last_epoch = step
        self._apply()
