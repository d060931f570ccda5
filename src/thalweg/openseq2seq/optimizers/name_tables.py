"""Names of optimizers and summaries in configs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thalweg._base.showing import show_value
from thalweg.errors import InvalidArgumentError, InvalidTypeError, did_you_mean
from thalweg.v1 import train
from thalweg.v1.contrib.opt import AdamWOptimizer

OPTIMIZER_CLS_NAMES: dict[str, Callable[..., Any]] = {
    "Adagrad": train.AdagradOptimizer, "Adam": train.AdamOptimizer, "Ftrl": train.FtrlOptimizer,
    "Momentum": train.MomentumOptimizer, "RMSProp": train.RMSPropOptimizer,
    "SGD": train.GradientDescentOptimizer, "AdamW": AdamWOptimizer,
}  # fmt: skip

OPTIMIZER_SUMMARIES = [
    "learning_rate", "gradients", "gradient_norm", "global_gradient_norm", "variables",
    "variable_norm", "larc_summaries", "loss_scale",
]  # fmt: skip

DEFAULT_SUMMARIES = ("learning_rate", "global_gradient_norm", "loss_scale")

OF_GRADIENTS = frozenset(OPTIMIZER_SUMMARIES) - {"learning_rate", "loss_scale"}


def checked_summaries(summaries: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of summaries, by default `DEFAULT_SUMMARIES`; raise for an unknown name."""
    if summaries is None:
        return DEFAULT_SUMMARIES
    for name in summaries:
        if name not in OPTIMIZER_SUMMARIES:
            choices = ", ".join(OPTIMIZER_SUMMARIES)
            label = name if isinstance(name, str) else show_value(name)
            hint = did_you_mean(label, OPTIMIZER_SUMMARIES)
            raise InvalidArgumentError(
                f"Summaries should be one of [{choices}], you provided {label}. {hint}".rstrip()
            )
    return tuple(summaries)


def optimizer_class(optimizer: object) -> Callable[..., Any]:
    """Return the class or function of an optimizer's name; return a class or function unchanged.

    Raises:
        InvalidArgumentError: No optimizer has this name.
        InvalidTypeError: `optimizer` is neither a name nor callable.
    """
    if isinstance(optimizer, str):
        if optimizer not in OPTIMIZER_CLS_NAMES:
            choices = ", ".join(OPTIMIZER_CLS_NAMES)
            hint = did_you_mean(optimizer, OPTIMIZER_CLS_NAMES) or "For any other give its class."
            raise InvalidArgumentError(
                f"Optimizer name should be one of [{choices}], you provided {optimizer}. {hint}"
            )
        return OPTIMIZER_CLS_NAMES[optimizer]
    if not callable(optimizer):
        raise InvalidTypeError(f"optimizer must be a name or a class, not {show_value(optimizer)}.")
    return optimizer
