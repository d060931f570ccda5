"""Description of an optimizer as JSON: its class, arguments and states of schedules."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from thalweg import schedules
from thalweg._core.config_registry import (
    LOSS_SCALERS,
    OPTIMIZERS,
    RATES,
    Configurable,
    Names,
    is_argument,
)
from thalweg._core.hyperparameters import is_function, is_number
from thalweg._core.state import Loading, differences, mismatch
from thalweg._formats.json_text import as_object
from thalweg.checkpoint.json_encoding import SCALAR, JsonReader, Writer
from thalweg.checkpoint.torch_adapter import OF_TORCH, TorchOptimizerAdapter
from thalweg.errors import InvalidConfigError, NotFoundError
from thalweg.formula import Rule
from thalweg.schedules import LearningRateSchedule
from thalweg.variable import dtype_name, is_variable, name_of, to_tensor

# Marks of arguments that are not numbers.
SCHEDULE = "$schedule"  # {"class_name": ..., "config": ...}
RATE = "$rate"  # {"function": ..., "arguments": ...}
RULE = "$rule"  # the name of a rule of the library
OPTIMIZER = "$optimizer"  # as `describe_optimizer` returns it
LOSS_SCALER = "$loss_scaler"  # its arguments
VARIABLE = "$variable"  # the name of a variable
NUMBER = "$number"  # [dtype, number]: a tensor of shape ()
YOURS = "$yours"  # the description of a value that only the user's code can make


def describe_optimizer(optimizer: object, variables: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return an optimizer's class and arguments as JSON.

    Args:
        variables: {name in a file: variable}; arguments that are variables are encoded by name.

    Returns:
        {"class": name, "arguments": {name: JSON value}}. The name of a user's class begins with
        "mine:". Functions, rules and classes of the user are represented by their names.

    Raises:
        InvalidTypeError: An argument has a type that cannot be encoded.
    """
    names = {id(variable): name for name, variable in variables.items()}
    return _ConfigWriter(names).describe(optimizer)


def _name_of_class(cls: type[object]) -> str:
    """Return the registered name of an optimizer class, or "mine:" and its name."""
    return OPTIMIZERS.name_of(cls) or f"mine:{cls.__name__}"


def describe_differences(
    saved_config: Mapping[str, Any], config: Mapping[str, Any], loaded_names: Any
) -> list[str]:
    """Return one line per difference between two results of `describe_optimizer`; [] if equal.

    If the classes differ, the only line names both classes. Numbers of arguments in `loaded_names`
    may differ, because loading sets them. `saved_config` is the description in the file.
    """
    if saved_config["class"] != config["class"]:
        return [f"the optimizer is {config['class']}, in the file it is {saved_config['class']}"]
    differences: list[str] = []
    current, saved = config["arguments"], saved_config["arguments"]
    for name in {**saved, **current}:
        current_value, saved_value = current.get(name), saved.get(name)
        if not (name in loaded_names and _is_number(current_value) and _is_number(saved_value)):
            differences += _value_differences(name, current_value, saved_value)
    return differences


def _value_differences(name: str, current_value: object, saved_value: object) -> list[str]:
    """Return one line per difference between two JSON values of an argument; [] if equal.

    A line begins with `name`. If both values are dicts with equal keys, they are compared key by
    key, and the line begins with `name.key`, or with `name` if the key begins with "$".
    """
    if current_value == saved_value:
        return []
    current_dict, saved_dict = as_object(current_value), as_object(saved_value)
    if current_dict and current_dict.keys() == saved_dict.keys():
        return [
            difference
            for key in current_dict
            for difference in _value_differences(
                name if key.startswith("$") else f"{name}.{key}", current_dict[key], saved_dict[key]
            )
        ]
    return [f"{name} is {_short_repr(current_value)}, in the file {_short_repr(saved_value)}"]


def make_optimizer(config: Mapping[str, Any], variables: Mapping[str, Tensor]) -> Any:
    """Return a new optimizer with the class and arguments of a description.

    Args:
        config: The description, from `describe_optimizer`.
        variables: {name: variable}, for arguments that are variables.

    Raises:
        InvalidConfigError: The class does not accept the arguments.
        NotFoundError: The class or an argument is the user's code, or the class needs parameters;
            the message names the class or the argument.
    """
    if config["class"].startswith(OF_TORCH):
        raise NotFoundError(
            f"The optimizer is {config['class']}, which is made with its parameters. Make it, and"
            " give it: restore(path, optimizer=...); optimizer=False reads the model alone."
        )
    cls = OPTIMIZERS.find(config["class"])
    if cls is None:
        raise NotFoundError(
            f"The optimizer is of your own class {config['class'].removeprefix('mine:')!r}. Make"
            " it, and give it: restore(path, optimizer=...)."
        )
    reader = _ConfigReader(variables)
    arguments = {}
    for name, argument in config["arguments"].items():
        user_code = _find_user_part(argument)
        if user_code:
            raise NotFoundError(
                f"{name} of {config['class']} was {user_code}, which no file can hold. Make the"
                " optimizer with it, and give it: restore(path, optimizer=...)."
            )
        arguments[name] = reader(argument)
    try:
        return cls(**arguments)
    except (TypeError, ValueError, KeyError) as error:
        raise InvalidConfigError(f"{config['class']} cannot be made: {error}") from error


class _ConfigWriter(Writer):
    """Encoder of an optimizer's class and arguments as JSON.

    Args:
        names: {id(variable): name}.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self._names = names

    def describe(self, optimizer: Any) -> dict[str, object]:
        """Return {"class": name, "arguments": {name: JSON value}} of an optimizer."""
        is_torchs = isinstance(optimizer, TorchOptimizerAdapter)
        return {
            "class": optimizer.title if is_torchs else _name_of_class(optimizer.__class__),
            "arguments": self(optimizer._arguments(), ""),
        }

    def __call__(self, python_value: Any, name: str) -> Any:
        """Return an argument of an optimizer, or a value inside an argument, as JSON.

        User functions, rules and schedules become {"$yours": description}. Errors contain `name`.
        """
        argument: object = python_value
        if isinstance(argument, LearningRateSchedule):
            return self._describe_schedule(argument)
        if isinstance(argument, Rule):
            if argument in _all_rules():
                return {RULE: argument.name}
            return {YOURS: f"your rule {argument.name!r}"}
        if is_argument(argument) and (origin := cast(Any, argument)._made_by()) is not None:
            return self._describe_argument(argument, *origin)
        if isinstance(argument, Tensor):
            return self._describe_tensor(argument)
        if inspect.isclass(argument):
            return _name_of_class(argument)
        if isinstance(argument, torch.dtype):
            return dtype_name(argument)
        if is_function(argument):
            function_name = getattr(argument, "__name__", type(argument).__name__)
            return {YOURS: f"the function {function_name!r}"}
        if isinstance(argument, frozenset | set):
            return sorted(map(str, cast(set[Any], argument)))
        return super().__call__(argument, name)

    def _describe_argument(self, argument: Any, kind: Names, maker: Any) -> object:
        """Return the JSON of an argument, such as a schedule, that a function or class has made.

        If the `maker` is the user's, so that the registry `kind` lacks it, return {"$yours": text}.
        """
        if kind is OPTIMIZERS:
            return {OPTIMIZER: self.describe(argument)}
        name = kind.name_of(maker)
        if name is None:
            return {YOURS: f"{kind.words} {maker.__name__!r}"}
        arguments = self(argument._arguments(), "")
        if kind is LOSS_SCALERS:
            return {LOSS_SCALER: arguments}
        return {RATE: {"function": name, "arguments": arguments}}

    def _describe_tensor(self, tensor: Tensor) -> object:
        """Return {"$variable": name}, {"$number": ...} or {"$yours": text} for a tensor."""
        variable_name = name_of(tensor, "").split(":")[0] if is_variable(tensor) else ""
        name = self._names.get(id(tensor), variable_name)
        if name:
            return {VARIABLE: name}
        if tensor.dim():
            return {YOURS: f"a tensor of shape {tuple(tensor.shape)}"}
        return {NUMBER: [dtype_name(tensor.dtype), self(tensor.item(), "")]}

    def _describe_schedule(self, schedule: LearningRateSchedule) -> object:
        """Return a schedule as a marked dict with its class and arguments."""
        # A schedule that cannot be rebuilt from its configuration is user code.
        with suppress(NotImplementedError, TypeError, ValueError):
            config = schedules.serialize(schedule)
            if type(schedules.deserialize(config)) is type(schedule):
                return {SCHEDULE: self(config, "")}
        return {YOURS: f"your schedule {type(schedule).__name__!r}"}


class _ConfigReader(JsonReader):
    """Decoder of the JSON of `_ConfigWriter`.

    Args:
        variables: {name: variable}.
    """

    def __init__(self, variables: Mapping[str, Tensor]) -> None:
        super().__init__({})
        self._variables = variables

    def read_marked(self, mark: str, content: Any) -> Any:
        """Return the object that the dict {mark: content} describes.

        Args:
            mark: The only key of the dict, such as "$schedule".
            content: The value of the key.

        Raises:
            NotFoundError: A variable is not among `variables`, or the argument needs user code.
            InvalidConfigError: A number is malformed, or a class rejects its arguments.
        """
        if mark == SCHEDULE:
            return schedules.deserialize(self(content))
        if mark == RATE:
            return RATES.find(content["function"])(**self(content["arguments"]))
        if mark == RULE:
            return {rule.name: rule for rule in _all_rules()}[content]
        if mark == OPTIMIZER:
            return make_optimizer(content, self._variables)
        if mark == LOSS_SCALER:
            return LOSS_SCALERS.find("AutomaticLossScaler")(**self(content))
        if mark == NUMBER:
            dtype, scalar = content
            if not is_number(decoded_scalar := self(scalar)):
                raise InvalidConfigError(f"{NUMBER} of {str(scalar)[:80]} is no number.")
            return to_tensor(decoded_scalar, dtype)
        if mark == VARIABLE:
            if content not in self._variables:
                raise NotFoundError(
                    f"A learning rate follows the variable {content!r}, which is not among those"
                    " given."
                )
            return self._variables[content]
        return super().read_marked(mark, content)


def _all_rules() -> Sequence[Rule]:
    """Return all rules of the library; imported late, since that is slow."""
    from thalweg.rules import RULES

    return RULES


def _find_user_part(encoded: object) -> str:
    """Return the first text in a description that stands for user code; "" if there is none."""
    fields, elements = as_object(encoded), list[Any]()
    if isinstance(encoded, list):
        elements = cast(list[Any], encoded)
    user_codes = [fields.get(YOURS, ""), *map(_find_user_part, [*elements, *fields.values()])]
    return next(filter(None, user_codes), "")


def _is_number(encoded: object) -> bool:
    """Return True for JSON numbers and encoded scalar tensors."""
    return type(encoded) in (int, float) or SCALAR in as_object(encoded)


def _short_repr(encoded: object) -> str:
    """Return the representation of a JSON value for messages, shortened."""
    for content in as_object(encoded).values() if len(as_object(encoded)) == 1 else ():
        return str(content) if len(str(content)) < 80 else f"{str(content)[:77]}..."
    return repr(encoded)


def list_schedule_states(optimizer: object) -> dict[str, dict[str, Any]]:
    """Return {path of an argument: state dict} of an optimizer's schedules that have a state.

    A path is "learning_rate", for example, or in a wrapped optimizer "inner.learning_rate".
    """
    return {name: rate.state_dict() for name, rate in _find_schedules(optimizer).items()}


def prepare_schedules(optimizer: object, states: Mapping[str, object], must_match: bool) -> Loading:
    """Return the validated writes that set the states of an optimizer's schedules; set nothing.

    Args:
        states: The states from `list_schedule_states`.
        must_match: False to ignore states that are missing or belong to no schedule.

    Raises:
        CheckpointMismatchError: With `must_match`, a state is missing or belongs to no schedule.
    """
    rates = _find_schedules(optimizer)
    problems = differences([], {name: None for name in states if name not in rates})
    missing = [name for name in rates if name not in states]
    problems += [f"the random numbers of {name} are missing" for name in missing]
    if problems and must_match:
        raise mismatch(problems, "The learning rates")
    calls: list[Callable[[], Any]] = []
    for name in rates.keys() & states.keys():
        # Loaded into a copy: an invalid state raises now, and leaves the schedule unchanged.
        rate_copy = copy.deepcopy(rates[name])
        rate_copy.load_state_dict(states[name])
        attributes: dict[str, Any] = rates[name].__dict__
        calls.append(partial(attributes.update, rate_copy.__dict__))
    return Loading(then=calls)


def _find_schedules(optimizer: Any, prefix: str = "") -> dict[str, Any]:
    """Return {path of an argument: learning-rate schedule} for all schedules with a state.

    Paths begin with `prefix`. Schedules of wrapped optimizers are included.
    """
    rates: dict[str, Any] = {}
    for name, argument in optimizer._arguments().items():
        if isinstance(argument, Configurable):
            rates |= _find_schedules(argument, f"{prefix}{name}.")
        elif is_argument(argument):
            inner_rates = enumerate(cast(Any, argument)._keeps())
            rates |= {f"{prefix}{name}#{index}": rate for index, rate in inner_rates}
        elif isinstance(argument, LearningRateSchedule) and hasattr(argument, "load_state_dict"):
            rates[prefix + name] = argument
    return rates
