"""An optimizer in words that a file can hold: its class, by name, and its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from thalweg import schedules
from thalweg.catalogue import by_class
from thalweg.checkpoint.plain import SCALAR, Reader, Writer
from thalweg.core.hyperparameters import is_function
from thalweg.errors import InvalidConfigError, NotFoundError
from thalweg.formula import Rule
from thalweg.keras.optimizers import Nadam, RuleOptimizer
from thalweg.keras.optimizers import Optimizer as KerasOptimizer
from thalweg.openseq2seq.micro_batches import MicroBatchStep
from thalweg.openseq2seq.optimizers import lr_policies
from thalweg.openseq2seq.optimizers.mp_wrapper import MixedPrecisionOptimizerWrapper
from thalweg.openseq2seq.optimizers.optimizers import TrainingStep
from thalweg.rules import RULES
from thalweg.schedules import LearningRateSchedule
from thalweg.v1 import train
from thalweg.v1.contrib import opt
from thalweg.v1.train.followed import Followed
from thalweg.variable import dtype_name, is_variable, name_of, to_tensor

# Arguments of optimizers that are no numbers.
SCHEDULE = "$schedule"  # {"class_name": ..., "config": ...}
RATE = "$rate"  # {"function": ..., "arguments": ...}
RULE = "$rule"  # the name of a rule of the library
OPTIMIZER = "$optimizer"  # as `described` returns it
VARIABLE = "$variable"  # the name of one
NUMBER = "$number"  # [dtype, number]: a tensor of shape ()
YOURS = "$yours"  # what only its owner can make again, in words

STEP = "openseq2seq:optimize_loss"
_ASIDE = ("name", "use_locking", "use_own_namescope_for_non_slot_vars")  # no number depends on them
_WRAPPERS = {
    "v1:MovingAverageOptimizer": opt.MovingAverageOptimizer,
    "v1:VariableClippingOptimizer": opt.VariableClippingOptimizer,
    "openseq2seq:MixedPrecisionOptimizerWrapper": MixedPrecisionOptimizerWrapper,
}
_DECAYS = [name for name in train.__all__ if name.endswith("_decay")]
_RATES = {f"train.{name}": getattr(train, name) for name in (*_DECAYS, "piecewise_constant")}
_RATES |= {
    f"lr_policies.{name}": function
    for name, function in vars(lr_policies).items()
    if inspect.isfunction(function)
    and function.__module__ == lr_policies.__name__
    and not name.startswith("_")
}


def _classes() -> dict[str, type[Any]]:
    known = {name: each.cls for name, each in by_class().items()}
    return {**known, **_WRAPPERS, "RuleOptimizer": RuleOptimizer, STEP: TrainingStep}


def described(optimizer: Any) -> dict[str, Any]:
    """The optimizer's class and arguments, as JSON.

    Returns:
        "class": its name in the catalogue, "mine:" and its own for one that is not there;
        "arguments": by name, but for those that no number depends on.
    """
    if isinstance(optimizer, MicroBatchStep):
        optimizer = optimizer.step
    writer = Writer(_written)
    given = _arguments(optimizer)
    plain = {key: writer(value, key) for key, value in given.items() if key not in _ASIDE}
    return {"class": _name(optimizer), "arguments": plain}


def _name(optimizer: Any) -> str:
    known = {cls: name for name, cls in _classes().items()}
    return known.get(type(optimizer), f"mine:{type(optimizer).__name__}")


def differences(wanted: Mapping[str, Any], given: Mapping[str, Any], loaded: Any) -> list[str]:
    """Where two descriptions differ, in words.

    Args:
        wanted: Of the file.
        given: Of the optimizer that is there.
        loaded: The names of arguments whose numbers are part of the state, and so are set.
    """
    if wanted["class"] != given["class"]:
        return [f"the optimizer is {given['class']}, in the file it is {wanted['class']}"]
    found: list[str] = []
    for name in {**wanted["arguments"], **given["arguments"]}:
        own, other = given["arguments"].get(name), wanted["arguments"].get(name)
        if not (name in loaded and _is_number(own) and _is_number(other)):
            found += _different(name, own, other)
    return found


def _different(name: str, own: Any, other: Any) -> list[str]:
    """Where two values differ, by the names of what they hold."""
    if own == other:
        return []
    if isinstance(own, dict) and isinstance(other, dict) and own.keys() == other.keys():
        return [
            each
            for key in own
            for each in _different(
                name if key.startswith("$") else f"{name}.{key}", own[key], other[key]
            )
        ]
    return [f"{name} is {_shown(own)}, in the file {_shown(other)}"]


def made(plain: Mapping[str, Any], variables: Mapping[str, Any]) -> Any:
    """The optimizer that a description is of.

    Args:
        plain: The description.
        variables: Variables by name, for learning rates that follow one.

    Raises:
        InvalidConfigError: It is of no optimizer of the library, or its arguments are none of it.
        NotFoundError: It needs what only its owner can make; says what.
    """
    cls = _classes().get(plain["class"])
    if cls is None:
        raise NotFoundError(
            f"The optimizer is of your own class {plain['class'].removeprefix('mine:')!r}. Make it,"
            " and give it: restore(path, optimizer=...)."
        )
    reader = Reader({}, _Made(variables))
    arguments = {}
    for name, value in plain["arguments"].items():
        yours = _yours(value)
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


def _arguments(optimizer: Any) -> dict[str, Any]:
    if isinstance(optimizer, KerasOptimizer):
        return _of_keras(optimizer)
    if isinstance(optimizer, TrainingStep):
        return _of_training(optimizer)
    own, kinds = vars(optimizer), getattr(type(optimizer), "HYPERS", {})
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(type(optimizer)).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        attribute = kinds.get(name, f"_{name}")
        if attribute in own:
            found[name] = own[attribute]
    return found


def _of_training(step: TrainingStep) -> dict[str, Any]:
    """What `optimize_loss` was told; the optimizer's rate is the policy's."""
    moving = {id(tensor) for tensor in step._rate.tensors}
    inner = {
        name: value for name, value in _arguments(step._inner).items() if id(value) not in moving
    }
    post, scaler = step._how.post, step.loss_scaler
    mixed = step._mixed
    scale = None if mixed is None or scaler is not None else mixed.loss_scale
    return {
        "loss": step._loss,
        "optimizer": _name(step._inner),
        "optimizer_params": {key: each for key, each in inner.items() if key not in _ASIDE},
        "learning_rate": step._rate.source,
        "mixed": mixed is not None,
        "clip_gradients": post.clip_gradients,
        "larc": None if post.larc is None else post.larc._asdict(),
        "loss_scaling": scale if scaler is None else type(scaler.scaler).__name__,
        "loss_scaling_params": {} if scaler is None else scaler.scaler._params,
        "iter_size": step._how.iter_size,
    }


def _of_keras(optimizer: KerasOptimizer) -> dict[str, Any]:
    hyper = optimizer._hyper
    try:
        found = dict(optimizer.get_config())
    except NotImplementedError:  # a subclass without one
        found = {}
    numbers = hyper.numbers()
    found |= {name: numbers.get(name, hyper.raw(name)) for name in hyper}
    if isinstance(optimizer, Nadam):  # what its constructor calls the decay
        found["schedule_decay"] = found.pop("decay")
    if isinstance(optimizer, RuleOptimizer) and type(optimizer) is RuleOptimizer:
        found["rule"] = optimizer.rule
    if optimizer.gradient_transformers:
        found["gradient_transformers"] = optimizer.gradient_transformers
    if optimizer.gradient_aggregator is not None:
        found["gradient_aggregator"] = optimizer.gradient_aggregator
    return found


def _written(value: Any, name: str) -> Any:
    """What `Writer` does not know."""
    if isinstance(value, LearningRateSchedule):
        return _schedule(value)
    if isinstance(value, Followed) and value.source is not None:
        return _rate(value)
    if isinstance(value, Rule):
        return {RULE: value.name} if value in RULES else {YOURS: f"your rule {value.name!r}"}
    if isinstance(value, train.Optimizer):
        return {OPTIMIZER: described(value)}
    if isinstance(value, Tensor):
        if is_variable(value) and name_of(value, ""):
            return {VARIABLE: name_of(value).split(":")[0]}
        if value.dim():
            return {YOURS: f"a tensor of shape {tuple(value.shape)}"}
        return {NUMBER: [dtype_name(value.dtype), Writer()(value.item(), name)]}
    if is_function(value):
        return {YOURS: f"the function {getattr(value, '__name__', type(value).__name__)!r}"}
    if isinstance(value, frozenset | set):
        return sorted(map(str, value))
    return NotImplemented


def _schedule(schedule: LearningRateSchedule) -> Any:
    try:
        written = schedules.serialize(schedule)
        known = type(schedules.deserialize(written)) is type(schedule)
    except (NotImplementedError, TypeError, ValueError):
        known = False
    if not known:
        return {YOURS: f"your schedule {type(schedule).__name__!r}"}
    return {SCHEDULE: Writer(_written)(written, "")}


def _rate(rate: Followed) -> Any:
    function, arguments = rate.source or (None, {})
    for name, known in _RATES.items():
        if known is function:
            return {RATE: {"function": name, "arguments": Writer(_written)(arguments, "")}}
    return {YOURS: f"the learning rate {rate.__name__!r}"}


class _Made:
    """Makes what `_written` has described.

    Args:
        variables: Variables by name.
    """

    def __init__(self, variables: Mapping[str, Any]) -> None:
        self._variables = variables

    def __call__(self, mark: str, content: Any) -> Any:
        reader = Reader({}, self)
        if mark == SCHEDULE:
            return schedules.deserialize(reader(content))
        if mark == RATE:
            return _RATES[content["function"]](**reader(content["arguments"]))
        if mark == RULE:
            return {rule.name: rule for rule in RULES}[content]
        if mark == OPTIMIZER:
            return made(content, self._variables)
        if mark == NUMBER:
            return to_tensor(reader(content[1]), content[0])
        if mark == VARIABLE:
            if content not in self._variables:
                raise NotFoundError(
                    f"A learning rate follows the variable {content!r}, which is not among those"
                    " given."
                )
            return self._variables[content]
        return NotImplemented


def _yours(plain: Any) -> str:
    """What in a description only its owner can make; "" if nothing."""
    if isinstance(plain, dict):
        return plain[YOURS] if YOURS in plain else _yours(list(plain.values()))
    if isinstance(plain, list):
        return next(filter(None, map(_yours, plain)), "")
    return ""


def _is_number(plain: Any) -> bool:
    return type(plain) in (int, float) or (isinstance(plain, dict) and SCALAR in plain)


def _shown(plain: Any) -> str:
    if isinstance(plain, dict) and len(plain) == 1:
        ((_, content),) = plain.items()
        return str(content) if len(str(content)) < 80 else f"{str(content)[:77]}..."
    return repr(plain)
