"""Base classes of the optimizers of rules that torch lacks, and the matrix layout of a group."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from thalweg._base.matrix_layout import MatrixLayout, as_layout, layout_text
from thalweg._base.showing import show_value
from thalweg._core.param_groups import Params
from thalweg.errors import InvalidTypeError
from thalweg.optim.fused_torch_optimizer import FusedTorchOptimizer
from thalweg.optim.group_options import PAIRS
from thalweg.optim.state_mismatch import are_numbers, is_flag
from thalweg.rules import modern as rules
from thalweg.rules.modern.common import check_count

Rate = float | Tensor
Betas = tuple[Rate, Rate]
ThreeBetas = tuple[Rate, Rate, Rate]
# Options of other values than numbers, which the choice of the rule validates.
_UNORDERED = (
    "ns_coefficients", "ns_steps", "adjust_lr_fn", "update_scale", "heads", "layout", "ns_dtype",
    "mars_type",
)  # fmt: skip
_FRACTIONS = (
    "betas", "betas_1d", "momentum", "beta1", "beta2", "beta3", "shampoo_beta",
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
                defaults[name] = layout_text(value)
            if name in _UNORDERED:
                continue
            values = self._numbers_in(name, value)
            # A tensor or array of numbers becomes a tuple, as torch's groups have it.
            if name in PAIRS and not isinstance(value, tuple | list):
                defaults[name] = tuple(values)
            has_end = name in _FRACTIONS
            if not all(number >= 0 and (number < 1 or not has_end) for number in values):
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


class DeclaredArguments(Arguments):
    """Base class of constructors whose arguments are declared by the signature of `_arguments`."""

    _class_name: ClassVar[str]  # the class of this package that declares them
    _added_options: ClassVar[tuple[str, ...]] = ()  # options that a state may lack

    def _arguments(self, params: Params) -> None:
        """Define the arguments of the constructor by the signature; the body does nothing."""

    def __init__(self, *args: object, **keywords: object) -> None:
        declared: Any = self._arguments
        try:
            declared(*args, **keywords)
        except TypeError as error:
            # Python's message names `_arguments`, but the user called the class.
            label = f"{self._class_name}.__init__"
            raise TypeError(str(error).replace(declared.__qualname__, label, 1)) from None
        bound = inspect.signature(declared).bind(*args, **keywords)
        bound.apply_defaults()
        super().__init__(**self._completed(bound.arguments))

    def _completed(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of the constructor with defaults that depend on others."""
        return arguments

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        optimizer: Any = self
        for name in self._added_options:
            parameter = optimizer.constructor_signature.parameters[name]
            default = optimizer.defaults.get(name, parameter.default)
            for group in optimizer.param_groups:
                group.setdefault(name, default)


class ModernOptimizer(FusedTorchOptimizer, DeclaredArguments):
    """Base class of optimizers with one rule; subclasses define `_rule` and `_arguments`."""

    _rule_package = rules
    _number_dtype = torch.float32

    def __init_subclass__(cls) -> None:
        if "_rule" in vars(cls):
            cls._class_name = cls.__name__
        super().__init_subclass__()

    @classmethod
    def _signature(cls) -> inspect.Signature:
        signature = inspect.signature(cls._arguments, eval_str=True)
        _, *parameters = signature.parameters.values()  # without `self`
        return signature.replace(parameters=parameters)


def layout_of(group: Mapping[str, Any]) -> MatrixLayout | None:
    """Return the matrix layout that `layout` or `heads` of a group describes; None without either.

    Raises:
        ValueError: An option is invalid, or both are set.
    """
    option, layout = group.get("heads"), as_layout(group.get("layout"))
    is_array = isinstance(option, np.generic | np.ndarray | Tensor)
    heads: int | list[int] | tuple[int, ...] | None = (
        cast("Any", option).tolist() if is_array else option
    )
    if heads is None:
        return layout
    if layout is not None:
        raise ValueError(
            f"heads={show_value(heads)} and layout={str(layout)!r} both describe the matrices of a"
            " parameter: leave out heads."
        )
    # A loaded file may have a list; layouts need tuples, which are hashable.
    if isinstance(heads, list):
        heads = tuple(heads)
    if not isinstance(heads, tuple):
        check_count("heads", heads)
    return MatrixLayout(rows=heads)
