"""Base class of the constructors of rules that torch lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from thalweg._base.locks import importing
from thalweg._base.showing import show_value
from thalweg.errors import InvalidTypeError
from thalweg.optim.group_options import PAIRS
from thalweg.optim.state_mismatch import are_numbers, is_flag

Rate = float | Tensor
Betas = tuple[Rate, Rate]
ThreeBetas = tuple[Rate, Rate, Rate]
UNORDERED = (
    "ns_coefficients", "ns_steps", "adjust_lr_fn", "update_scale", "heads", "layout", "ns_dtype",
    "mars_type",
)  # fmt: skip


class Arguments(torch.optim.Optimizer):
    """Base class that checks the numbers in groups of parameters.

    Raises:
        ValueError: A number is negative, or a beta or momentum is not below 1.
    """

    _has_step = False

    def __init__(self, params: Any, **defaults: Any) -> None:
        for name, value in defaults.items():
            if name == "layout" and value is not None:
                with importing:
                    from thalweg._base.matrix_layout import layout_text
                defaults[name] = layout_text(value)
            # The choice of the rule validates these.
            if name in UNORDERED:
                continue
            values = self._numbers_in(name, value)
            # A tensor or array of numbers becomes a tuple, as torch's groups have it.
            if name in PAIRS and not isinstance(value, tuple | list):
                defaults[name] = tuple(values)
            is_fraction = name in (
                "betas",
                "betas_1d",
                "momentum",
                "beta1",
                "beta2",
                "beta3",
                "shampoo_beta",
            )
            if not all(value_ >= 0 and (value_ < 1 or not is_fraction) for value_ in values):
                raise ValueError(f"Invalid {name} value: {value}")
        super().__init__(params, defaults)

    def _numbers_in(self, name: str, value: Any) -> Iterable[Any]:
        """Return all numbers in `value`: the elements of a pair such as `betas`, or `value` itself.

        Raises:
            InvalidTypeError: `value` is not a number or, for an argument such as `betas`, not a
                sequence of two or three numbers.
        """
        if name in PAIRS:
            count = getattr(self, "_betas", 2) if name == "betas" else 2
            if not are_numbers(value, count):
                expected = "a pair of numbers" if count == 2 else "three numbers"
                raise InvalidTypeError(
                    f"Invalid {name} value: {show_value(value)}; expected: {expected}."
                )
            return value.tolist() if hasattr(value, "tolist") else value
        if not is_flag(value):
            raise InvalidTypeError(
                f"Invalid {name} value: {show_value(value)}; expected: a number."
            )
        return (value,)

    def step(self, closure: Callable[[], object] | None = None) -> Any:
        """Raise NotImplementedError: these rules have no step in torch's operations."""
        raise NotImplementedError(
            f"{type(self).__name__} takes steps on real tensors, each in its groups once;"
            " capturable=True on GPUs with kernels alone, and no differentiable=True."
        )
