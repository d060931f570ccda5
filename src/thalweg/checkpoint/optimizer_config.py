"""An optimizer in words that a file can hold: its class, by name, and its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import torch
from torch import Tensor

from thalweg import schedules
from thalweg._core.described import LOSS_SCALERS, OPTIMIZERS, RATES, Names, is_argument
from thalweg._core.hyperparameters import is_function, is_number
from thalweg._formats.json_text import as_object
from thalweg.checkpoint.json_encoding import SCALAR, JsonReader, Writer
from thalweg.checkpoint.torch_adapter import OF_TORCH, TorchOptimizerAdapter
from thalweg.errors import InvalidConfigError, NotFoundError
from thalweg.formula import Rule
from thalweg.schedules import LearningRateSchedule
from thalweg.variable import dtype_name, is_variable, name_of, to_tensor

# Arguments of optimizers that are no numbers.
SCHEDULE = "$schedule"  # {"class_name": ..., "config": ...}
RATE = "$rate"  # {"function": ..., "arguments": ...}
RULE = "$rule"  # the name of a rule of the library
OPTIMIZER = "$optimizer"  # as `describe_optimizer` returns it
LOSS_SCALER = "$loss_scaler"  # its arguments
VARIABLE = "$variable"  # the name of one
NUMBER = "$number"  # [dtype, number]: a tensor of shape ()
YOURS = "$yours"  # what only its owner can make again, in words


def describe_optimizer(optimizer: object, variables: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the optimizer's class and arguments, as JSON.

    Args:
        optimizer: The optimizer.
        variables: Variables by the names of a file.

    Returns:
        "class": its name as its face tells it, "mine:" and its own for one that none has told;
        "arguments": by name, those that numbers depend on.
    """
    return _ConfigReader({id(each): name for name, each in variables.items()}).class_and_arguments(
        optimizer
    )


def _name_of_class(cls: type[object]) -> str:
    return OPTIMIZERS.name_of(cls) or f"mine:{cls.__name__}"


def describe_differences(
    wanted: Mapping[str, Any], given: Mapping[str, Any], loaded: Any
) -> list[str]:
    """Return descriptions of the differences of two optimizer descriptions.

    Args:
        wanted: The description in the file.
        given: The description of the existing optimizer.
        loaded: The names of arguments whose numbers are part of the state, and so are set.
    """
    if wanted["class"] != given["class"]:
        return [f"the optimizer is {given['class']}, in the file it is {wanted['class']}"]
    found: list[str] = []
    for name in {**wanted["arguments"], **given["arguments"]}:
        own, other = given["arguments"].get(name), wanted["arguments"].get(name)
        if not (name in loaded and _is_number(own) and _is_number(other)):
            found += _value_differences(name, own, other)
    return found


def _value_differences(name: str, own: object, other: object) -> list[str]:
    """Where two values differ, by the names of what they hold."""
    if own == other:
        return []
    ours, theirs = as_object(own), as_object(other)
    if ours and ours.keys() == theirs.keys():
        return [
            each
            for key in ours
            for each in _value_differences(
                name if key.startswith("$") else f"{name}.{key}", ours[key], theirs[key]
            )
        ]
    return [f"{name} is {_short_repr(own)}, in the file {_short_repr(other)}"]


def make_optimizer(plain: Mapping[str, Any], variables: Mapping[str, Tensor]) -> Any:
    """Return the optimizer that a description is of.

    Args:
        plain: The description.
        variables: Variables by name, for learning rates that follow one.

    Raises:
        InvalidConfigError: It is of no optimizer of the library, or its arguments are none of it.
        NotFoundError: It needs what only its owner can make; says what.
    """
    if plain["class"].startswith(OF_TORCH):
        raise NotFoundError(
            f"The optimizer is {plain['class']}, which is made with its parameters. Make it, and"
            " give it: restore(path, optimizer=...); optimizer=False reads the model alone."
        )
    cls = OPTIMIZERS.find(plain["class"])
    if cls is None:
        raise NotFoundError(
            f"The optimizer is of your own class {plain['class'].removeprefix('mine:')!r}. Make it,"
            " and give it: restore(path, optimizer=...)."
        )
    reader = JsonReader({}, _Made(variables))
    arguments = {}
    for name, value in plain["arguments"].items():
        yours = _only_yours(value)
        if yours:
            raise NotFoundError(
                f"{name} of {plain['class']} was {yours}, which no file can hold. Make the"
                " optimizer with it, and give it: restore(path, optimizer=...)."
            )
        arguments[name] = reader(value)
    try:
        return cls(**arguments)
    except (TypeError, ValueError, KeyError) as error:
        raise InvalidConfigError(f"{plain['class']} cannot be made: {error}") from error


class _ConfigReader:
    """Writes what `Writer` does not know.

    Args:
        names: Of variables, by their identity.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        self._writer = Writer(self)

    def class_and_arguments(self, optimizer: Any) -> dict[str, object]:
        """Class and arguments; see `describe_optimizer`."""
        is_torchs = isinstance(optimizer, TorchOptimizerAdapter)
        return {
            "class": optimizer.title if is_torchs else _name_of_class(optimizer.__class__),
            "arguments": self._writer(optimizer._arguments(), ""),
        }

    def __call__(self, value: object, name: str) -> Any:
        if isinstance(value, LearningRateSchedule):
            return self._describe_schedule(value)
        if isinstance(value, Rule):
            known = {RULE: value.name}
            return known if value in _all_rules() else {YOURS: f"your rule {value.name!r}"}
        if is_argument(value) and (made_by := cast(Any, value)._made_by()) is not None:
            return self._describe_argument(value, *made_by)
        if isinstance(value, Tensor):
            return self._describe_tensor(value)
        if inspect.isclass(value):
            return _name_of_class(value)
        if isinstance(value, torch.dtype):
            return dtype_name(value)
        if is_function(value):
            return {YOURS: f"the function {getattr(value, '__name__', type(value).__name__)!r}"}
        if isinstance(value, frozenset | set):
            return sorted(map(str, cast(set[Any], value)))
        return NotImplemented

    def _describe_argument(self, value: Any, kind: Names, maker: Any) -> object:
        if kind is OPTIMIZERS:
            return {OPTIMIZER: self.class_and_arguments(value)}
        name = kind.name_of(maker)
        if name is None:
            return {YOURS: f"{kind.words} {maker.__name__!r}"}
        arguments = self._writer(value._arguments(), "")
        if kind is LOSS_SCALERS:
            return {LOSS_SCALER: arguments}
        return {RATE: {"function": name, "arguments": arguments}}

    def _describe_tensor(self, value: Tensor) -> object:
        own = name_of(value, "").split(":")[0] if is_variable(value) else ""
        name = self._names.get(id(value), own)
        if name:
            return {VARIABLE: name}
        if value.dim():
            return {YOURS: f"a tensor of shape {tuple(value.shape)}"}
        return {NUMBER: [dtype_name(value.dtype), Writer()(value.item(), "")]}

    def _describe_schedule(self, schedule: LearningRateSchedule) -> object:
        with suppress(NotImplementedError, TypeError, ValueError):
            written = schedules.serialize(schedule)
            if type(schedules.deserialize(written)) is type(schedule):
                return {SCHEDULE: self._writer(written, "")}
        return {YOURS: f"your schedule {type(schedule).__name__!r}"}


class _Made:
    """Makes what `_ConfigReader` has written.

    Args:
        variables: Variables by name.
    """

    def __init__(self, variables: Mapping[str, Tensor]) -> None:
        self._variables = variables

    def __call__(self, mark: str, content: Any) -> Any:
        reader = JsonReader({}, self)
        if mark == SCHEDULE:
            return schedules.deserialize(reader(content))
        if mark == RATE:
            return RATES.find(content["function"])(**reader(content["arguments"]))
        if mark == RULE:
            return {rule.name: rule for rule in _all_rules()}[content]
        if mark == OPTIMIZER:
            return make_optimizer(content, self._variables)
        if mark == LOSS_SCALER:
            return LOSS_SCALERS.find("AutomaticLossScaler")(**reader(content))
        if mark == NUMBER:
            dtype, number = content
            if not is_number(found := reader(number)):
                raise InvalidConfigError(f"{NUMBER} of {str(number)[:80]} is no number.")
            return to_tensor(found, dtype)
        if mark == VARIABLE:
            if content not in self._variables:
                raise NotFoundError(
                    f"A learning rate follows the variable {content!r}, which is not among those"
                    " given."
                )
            return self._variables[content]
        return NotImplemented


def _all_rules() -> Sequence[Rule]:
    from thalweg.rules import RULES  # all of them, where an optimizer has one

    return RULES


def _only_yours(plain: object) -> str:
    """The part of a description that only the user's code can make; "" if there is none."""
    own, parts = as_object(plain), list[Any]()
    if isinstance(plain, list):
        parts = cast(list[Any], plain)
    found = [own.get(YOURS, ""), *map(_only_yours, [*parts, *own.values()])]
    return next(filter(None, found), "")


def _is_number(plain: object) -> bool:
    return type(plain) in (int, float) or SCALAR in as_object(plain)


def _short_repr(plain: object) -> str:
    for content in as_object(plain).values() if len(as_object(plain)) == 1 else ():
        return str(content) if len(str(content)) < 80 else f"{str(content)[:77]}..."
    return repr(plain)
