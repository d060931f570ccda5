"""Optimizers by name in Hugging Face's Trainer, and diagnostics logged by its own `log`."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import transformers
from transformers import TrainerCallback
from transformers.training_args import OptimizerNames

from thalweg._base.showing import show_value
from thalweg.diagnostics import COLUMNS, NewTables
from thalweg.errors import FailedPreconditionError, InvalidTypeError
from thalweg.optim.class_lookup import class_named
from thalweg.optim.rule_names import KINDS

PREFIX = "thalweg_"
_CODECS = {"": {}, "_8bit": {"state_storage": "8bit"}}


def register() -> tuple[str, ...]:
    """Register the classes of `thalweg.optim` as names for `TrainingArguments(optim=...)`.

    The name of a class is "thalweg_" with the class in lower case, such as "thalweg_adamw",
    "thalweg_muon" or "thalweg_ademamix"; "_8bit" at its end stores its state in 8 bits.
    `optim_args` are further options of the class, such as "ema_decay=0.999". Learning rate, betas,
    epsilon and weight decay are those of the arguments, where the class has them. Rules for
    matrices get the groups of their `for_model`. Call this before the arguments are parsed; a
    second call does nothing.

    Returns:
        The names.

    Raises:
        FailedPreconditionError: This version of transformers has no table of optimizers.
    """
    handlers: Any = _handlers()
    names: list[str] = []
    for kind in KINDS:
        for suffix, options in _CODECS.items():
            name = f"{PREFIX}{kind.lower()}{suffix}"
            handlers[_added_member(name)] = partial(_choose_class, kind, options)
            names.append(name)
    return tuple(names)


def _handlers() -> Any:
    """Return the functions of transformers that choose a class, by the name of an optimizer.

    Raises:
        FailedPreconditionError: There are none.
    """
    try:
        from transformers.trainer_optimizer import (
            _OPTIMIZER_HANDLERS,  # pyright: ignore[reportPrivateUsage]
        )
    except ImportError:
        raise FailedPreconditionError(
            f"transformers {transformers.__version__} has no table of optimizers, which exists"
            " since version 5: give the Trainer optimizer_cls_and_kwargs=(optim.AdamW, {...})."
        ) from None
    return _OPTIMIZER_HANDLERS


def _added_member(name: str) -> Any:
    """Return the member of `OptimizerNames` with a value; add it if there is none."""
    members: Any = OptimizerNames
    if name not in members._value2member_map_:
        member = str.__new__(members, name)
        member._name_, member._value_ = name.upper(), name
        members._member_map_[member._name_] = members._value2member_map_[name] = member
        members._member_names_.append(member._name_)
    return members(name)


def _choose_class(kind: str, options: dict[str, Any], context: Any) -> tuple[Any, dict[str, Any]]:
    """Return a class and its options, or a factory that makes the optimizer of a model.

    Args:
        kind: The name of the class.
        options: Options that belong to the name of the optimizer.
        context: The `OptimizerContext` of transformers.
    """
    cls: Any = class_named(kind)
    accepted = cls.constructor_signature.parameters
    adam_options = {
        name: option for name, option in context.adam_kwargs.items() if name in accepted
    }
    user_options = {name: _read(text) for name, text in context.optim_args.items()}
    all_options = {**context.optimizer_kwargs, **adam_options, **options, **user_options}
    if not cls._of_matrices:
        return cls, all_options
    decay = context.args.weight_decay
    make: Callable[..., Any] = cls.for_model
    return lambda: make, {**({"weight_decay": decay} if "weight_decay" in accepted else {}),
                          **all_options}  # fmt: skip


def _read(text: str) -> Any:
    """Return an option from its text: a Python literal, or else the text."""
    if re.fullmatch(r"true|false", text):
        return text == "true"
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


class LogDiagnostics(TrainerCallback):
    """Logs the diagnostics of a trainer's optimizer wherever that logs.

    `trainer.add_callback(LogDiagnostics(trainer))`; the numbers are `gradient_norm/layer.weight`
    and so on. The optimizer is measured if it was made with `diagnostics=`.

    Args:
        trainer: The trainer.
        columns: Those that are logged.

    Raises:
        InvalidTypeError: The first is no trainer.
        InvalidArgumentError: A column is not known.
    """

    def __init__(self, trainer: Any, columns: Iterable[str] = COLUMNS) -> None:
        if not callable(getattr(trainer, "log", None)):
            raise InvalidTypeError(f"trainer must be a Trainer, not {show_value(trainer)}.")
        self._trainer, self._tables = trainer, NewTables(columns)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log what is new."""
        optimizer = kwargs.get("optimizer")
        numbers = self._tables.numbers_of(getattr(optimizer, "optimizer", optimizer))
        if numbers:
            self._trainer.log(numbers)
