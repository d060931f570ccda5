"""Optimizers by name in Hugging Face's Trainer, and diagnostics logged by `Trainer.log`."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import transformers
from transformers import TrainerCallback
from transformers.training_args import OptimizerNames

from thalweg._base.literals import split_at_commas
from thalweg._base.showing import show_value
from thalweg.diagnostics import COLUMNS, NewTables
from thalweg.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from thalweg.optim.class_lookup import class_named
from thalweg.optim.rule_names import KINDS

PREFIX = "thalweg_"
_CODECS: dict[str, dict[str, str]] = {"": {}, "_8bit": {"state_storage": "8bit"}}
# Class and further options, by the name of an optimizer.
_SETTINGS = {
    f"{PREFIX}{kind.lower()}{suffix}": (kind, codecs)
    for kind in KINDS
    for suffix, codecs in _CODECS.items()
}


def register() -> tuple[str, ...]:
    """Register the classes of `thalweg.optim` as names for `TrainingArguments(optim=...)`.

    A name is "thalweg_" and the class in lower case: "thalweg_adamw", "thalweg_muon". A name that
    ends in "_8bit" stores the state in 8 bits. The options "lr", "betas", "eps" and "weight_decay"
    come from the `TrainingArguments`. `optim_args` sets further options, such as "ema_decay=0.999".
    Optimizers for matrices, such as Muon, get the groups of `for_model`; "adamw={'lr': 1e-4}" in
    `optim_args` sets options of their AdamW. The Trainer splits `optim_args` at each comma, so that
    values with commas need `optimizer_cls_and_kwargs`. Call `register` before the arguments are
    parsed; a second call does nothing.

    Returns:
        All registered names.

    Raises:
        FailedPreconditionError: This version of transformers has no table of optimizers.
    """
    handlers: Any = _handlers()
    for name in _SETTINGS:
        handlers[_added_member(name)] = partial(_class_in_context, name)
    return tuple(_SETTINGS)


def optimizer_cls_and_kwargs(name: str, args: Any) -> tuple[Any, dict[str, Any]]:
    """Return the Trainer's argument `optimizer_cls_and_kwargs` for the name of an optimizer.

    A call of `register` is not required. Options come from `args` and `args.optim_args`, as
    `register` describes; here, values such as "betas=(0.9,0.95)" may contain commas.

    Args:
        name: A name that `register` returns, such as "thalweg_adamw_8bit".
        args: The `TrainingArguments`.

    Returns:
        (optimizer class, options). For an optimizer of matrices, (function, options), where
        `function()` returns the method `for_model` of the class.

    Raises:
        InvalidArgumentError: The name is unknown, or `optim_args` is not "key=value,key=value".
    """
    if name not in _SETTINGS:
        raise InvalidArgumentError(
            f"name is {show_value(name)}; known are {', '.join(map(repr, _SETTINGS))}."
        )
    kind, codecs = _SETTINGS[name]
    cls: Any = class_named(kind)
    read_options = {**codecs, **_read_options(args.optim_args)}
    if not cls._of_matrices:
        # The Trainer gives the decay by groups.
        return cls, {**_shared_options(cls, args, "weight_decay"), **read_options}
    adamw = read_options.get("adamw", {})
    if isinstance(adamw, dict):
        read_options["adamw"] = {**_shared_options(class_named("AdamW"), args), **adamw}
    make: Callable[..., Any] = cls.for_model
    # The Trainer calls a function that is no class without arguments, and its result with a model.
    return lambda: make, {**_shared_options(cls, args), **read_options}


def _shared_options(cls: Any, args: Any, excluded_name: str = "") -> dict[str, Any]:
    """Return {option: value} for `lr`, `betas`, `eps` and `weight_decay`, read from `args`.

    Options that the constructor of `cls` lacks are left out, and the option `excluded_name`.
    """
    options = {
        "lr": args.learning_rate,
        "betas": (args.adam_beta1, args.adam_beta2),
        "eps": args.adam_epsilon,
        "weight_decay": args.weight_decay,
    }
    option_names = cls.constructor_signature.parameters.keys() - {excluded_name}
    return {name: setting for name, setting in options.items() if name in option_names}


def _class_in_context(name: str, context: Any) -> tuple[Any, dict[str, Any]]:
    """Return the class and its options, for the `OptimizerContext` of transformers."""
    return optimizer_cls_and_kwargs(name, context.args)


def _handlers() -> Any:
    """Return transformers' own table {optimizer name: function}; a caller may add entries.

    Raise FailedPreconditionError if this version of transformers has no such table.
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
    """Return the member of the enum `OptimizerNames` with the value `name`; add it if missing."""
    members: Any = OptimizerNames
    # Enums with members cannot be extended, but `TrainingArguments` accepts only members.
    if name not in members._value2member_map_:
        member = str.__new__(members, name)
        member._name_, member._value_ = name.upper(), name
        members._member_map_[member._name_] = members._value2member_map_[name] = member
        members._member_names_.append(member._name_)
    return members(name)


def _read_options(text: str | None) -> dict[str, Any]:
    """Return {option: value} from a text such as "ema_decay=0.999,betas=(0.9,0.95)".

    Raise InvalidArgumentError if an entry has no "=", or brackets do not match.
    """
    options: dict[str, Any] = {}
    text = (text or "").replace(" ", "")
    _check_brackets(text)
    for entry in split_at_commas(text):
        key, separator, setting = entry.partition("=")
        if separator:
            options[key] = _read(setting)
        else:
            raise InvalidArgumentError(
                f"optim_args has {show_value(entry)}; an entry is key=value, after a comma."
            )
    return options


def _check_brackets(text: str) -> None:
    """Raise InvalidArgumentError if the brackets outside of quotes do not match."""
    rest = re.sub(r"'[^']*'|\"[^\"]*\"|[^][(){}]", "", text)
    # The innermost pairs are removed again and again.
    while rest != (outer := re.sub(r"\(\)|\[\]|\{\}", "", rest)):
        rest = outer
    if rest:
        raise InvalidArgumentError(
            f"optim_args has brackets that do not match: {show_value(text)}."
        )


def _read(text: str) -> Any:
    """Return an option from its text: a Python literal, or else the text."""
    if re.fullmatch(r"true|false", text):
        return text == "true"
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


class LogDiagnostics(TrainerCallback):
    """Callback that logs the diagnostics of a trainer's optimizer with `trainer.log`.

    Add it with `trainer.add_callback(LogDiagnostics(trainer))`. Entries have names such as
    `gradient_norm/layer.weight`. The optimizer must be made with `diagnostics=`; others are not
    logged.

    Args:
        trainer: The trainer.
        columns: The names of the logged columns.

    Raises:
        InvalidTypeError: `trainer` is not a `Trainer`.
        InvalidArgumentError: A column is unknown.
    """

    def __init__(self, trainer: Any, columns: Iterable[str] = COLUMNS) -> None:
        if not callable(getattr(trainer, "log", None)):
            raise InvalidTypeError(f"trainer must be a Trainer, not {show_value(trainer)}.")
        self._trainer, self._tables = trainer, NewTables(columns)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log the numbers of a new table."""
        optimizer = kwargs.get("optimizer")
        scalars = self._tables.numbers_of(getattr(optimizer, "optimizer", optimizer))
        if scalars:
            self._trainer.log(scalars)
