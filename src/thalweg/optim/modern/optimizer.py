"""Base classes of the optimizers of rules that torch lacks."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

import torch

from thalweg._core.param_groups import Params
from thalweg.optim.fused_torch_optimizer import FusedTorchOptimizer
from thalweg.optim.modern.arguments import Arguments
from thalweg.rules import modern as rules


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
