"""Early validation of a config, before the first step."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from thalweg._base.execution_context import eagerly
from thalweg._base.scalars import as_scalar
from thalweg._base.showing import show_value
from thalweg._core.hyperparameters import is_function
from thalweg._graph import is_symbolic
from thalweg.errors import (
    InvalidArgumentError,
    InvalidTypeError,
    NotFoundError,
    ThalwegError,
    did_you_mean,
)
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler
from thalweg.openseq2seq.optimizers.learning_rate import called
from thalweg.openseq2seq.optimizers.mp_wrapper import checked_scale, refuse_no_scale
from thalweg.openseq2seq.optimizers.name_tables import checked_summaries, optimizer_class
from thalweg.openseq2seq.optimizers.post_process import PostProcessing, larc_of
from thalweg.v1.train.callable_rate import signature_of
from thalweg.v1.train.optimizer import Optimizer
from thalweg.variable import to_tensor

_KEYWORD_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@contextlib.contextmanager
def of_key(key: str) -> Iterator[None]:
    """Return a context manager that prefixes error messages with a key of the config."""
    try:
        yield
    # The library's errors come first, to keep their classes: they derive from ValueError, too.
    except (ThalwegError, ZeroDivisionError, OverflowError) as error:
        raise type(error)(f"{key}: {error}") from error
    except TypeError as error:
        raise InvalidTypeError(f"{key}: {error}") from error
    except (ValueError, IndexError, RuntimeError) as error:
        raise InvalidArgumentError(f"{key}: {error}") from error


def check_optimizer(params: Mapping[str, Any]) -> None:
    """Raise for an invalid `params["optimizer"]`, or if it rejects `params["optimizer_params"]`.

    Raises:
        ValueError: No optimizer has this name, or a value is out of range.
        TypeError: The optimizer is not a class, or a parameter is unknown, missing or of another
            type.
        KeyError: "AdamW" without `weight_decay`.
    """
    optimizer, optimizer_params = params["optimizer"], params["optimizer_params"]
    with of_key("optimizer"):
        make = optimizer_class(optimizer)
        if isinstance(optimizer, type) and not issubclass(optimizer, Optimizer):
            label = f"{optimizer.__module__}.{optimizer.__qualname__}"
            raise InvalidTypeError(
                f"{label} is no optimizer of thalweg.v1. Give a class"
                " out of thalweg.v1.train or thalweg.v1.contrib.opt, or a name."
            )
    has_name = isinstance(optimizer, str)
    label = optimizer if has_name else getattr(make, "__name__", repr(make))
    with of_key("optimizer_params"):
        if optimizer == "AdamW" and "weight_decay" not in optimizer_params:
            raise NotFoundError("AdamW needs weight_decay.")
        check_call(make, optimizer_params, "learning_rate", label)
        # Functions may have side effects, and symbols have no values yet.
        if has_name and not any(
            is_symbolic(x) or is_function(x) for x in optimizer_params.values()
        ):
            with eagerly():
                _evaluate(make(learning_rate=1.0, **copy.deepcopy(optimizer_params)))


def _evaluate(optimizer: Optimizer) -> None:
    read = optimizer._read_values()
    for name in getattr(optimizer, "HYPERS", ()):
        with of_key(name):
            as_scalar(read[name], np.float32)


def check_policy(
    policy: Callable[..., object], params: Mapping[str, object], last_step: int
) -> None:
    """Raise for parameters that a policy does not accept.

    Policies of the library are called for the first and the last step.

    Args:
        policy: `policy(global_step=..., **params)` returns the learning rate.
        params: The parameters, completed by `policy_params`.
        last_step: The number of updates in the training.

    Raises:
        TypeError: A parameter is unknown, missing or of another type.
        ValueError: The policy rejects a value.
    """
    label = getattr(policy, "__name__", repr(policy))
    with of_key("lr_policy_params"):
        check_call(policy, params, "global_step", label)
        is_builtin = str(getattr(policy, "__module__", "")).startswith("thalweg.")
        if not is_builtin or any(is_symbolic(x) or is_function(x) for x in params.values()):
            # Calling a user's function might have side effects.
            return
        with eagerly():
            rates = [_compute_rate(policy, params, step) for step in (0, last_step)]
        nones = [name for name, value in params.items() if value is None]
        if nones and any(rate.isnan() for rate in rates):
            raise InvalidTypeError(f"{nones[0]} is None, which gives no learning rate.")


def _compute_rate(
    policy: Callable[..., object], params: Mapping[str, object], step: int
) -> torch.Tensor:
    """Return the learning rate of a policy at a step as a tensor of shape ().

    An error of the policy is raised. If it is a TypeError, and a parameter is None or a string, an
    InvalidTypeError names the parameter. Raise InvalidArgumentError if the rate is not a scalar.
    """
    try:
        global_step = torch.tensor(step, dtype=torch.int64, device="cpu")
        rate = to_tensor(called(policy(global_step=global_step, **params)))
    except TypeError as error:
        suspects = [
            f"{name}={x!r}" for name, x in params.items() if x is None or isinstance(x, str)
        ]
        if not suspects:
            raise
        raise InvalidTypeError(f"there is {', '.join(suspects)}, and {error}") from error
    if rate.shape:
        raise InvalidArgumentError(f"a learning rate has shape (), not {tuple(rate.shape)}.")
    return rate


def check_gradients(params: Mapping[str, Any], as_shipped: bool) -> None:
    """Raise for invalid summaries, clipping, LARC or loss scales in `params`, a completed config.

    Raises:
        ValueError: A name is unknown, or a parameter is missing, unknown or of another type.
        AttributeError: There are both `max_grad_norm` and `larc_params`. With `as_shipped`, also if
            the static loss scale is not a float.
        TypeError: The static loss scale is not a number.
    """
    with of_key("summaries"):
        checked_summaries(params["summaries"])
    if params["larc_params"] is not None:
        with of_key("larc_params"):
            larc_of(params["larc_params"])
    with of_key("max_grad_norm"):
        PostProcessing.of(None, params["max_grad_norm"], params["larc_params"], as_shipped)
    scaling = params["loss_scaling"]
    if isinstance(scaling, str):
        with of_key("loss_scaling"), eagerly():
            AutomaticLossScaler(scaling)
        with of_key("loss_scaling_params"), eagerly():
            AutomaticLossScaler(scaling, params["loss_scaling_params"])
    elif params["dtype"] == "mixed":
        with of_key("loss_scaling"):
            refuse_no_scale(checked_scale(scaling, as_shipped))


def check_call(
    function: Callable[..., object], arguments: Mapping[str, object], supplied: str, label: str
) -> None:
    """Raise an error if a function does not accept keyword arguments from a config.

    Args:
        function: The function. A function without a signature is not checked.
        arguments: The arguments of the config.
        supplied: The name of a further argument, which the library passes.
        label: The name of the function in messages.

    Raises:
        TypeError: An argument is unknown or missing; the message names it.
    """
    strangers = [name for name in arguments if not isinstance(name, str)]
    if strangers:
        raise InvalidTypeError(f"keys must be strings, not {show_value(strangers[0])}.")
    try:
        signature = signature_of(function)
    except (TypeError, ValueError):
        return
    if supplied in arguments:
        raise InvalidTypeError(f"{supplied!r} is not to be given: {label} gets it in each step.")
    try:
        signature.bind(**{supplied: None}, **arguments)
    except TypeError as error:
        raise InvalidTypeError(
            _explain_mismatch(signature, arguments, supplied, label, error)
        ) from error


def _explain_mismatch(
    signature: inspect.Signature,
    arguments: Mapping[str, object],
    supplied: str,
    label: str,
    error: object,
) -> str:
    """Return a message that names unknown and missing arguments, and all accepted arguments.

    `arguments`, `supplied` and `label` are those of `check_call`. The message quotes `error` if no
    argument is unknown or missing.
    """
    parameters = signature.parameters
    accepted = [name for name, parameter in parameters.items() if parameter.kind in _KEYWORD_KINDS]
    kinds = {parameter.kind for parameter in parameters.values()}
    accepts_any = inspect.Parameter.VAR_KEYWORD in kinds
    if supplied not in accepted and not accepts_any:
        return f"{label} takes no {supplied!r}."
    accepted = [name for name in accepted if name != supplied]
    unknown = [] if accepts_any else [name for name in arguments if name not in accepted]
    required = [name for name in accepted if parameters[name].default is inspect.Parameter.empty]
    problems = [
        f"{label} takes no {name!r}. {did_you_mean(name, accepted)}".strip() for name in unknown
    ]
    problems += [f"{label} needs {name!r}." for name in required if name not in arguments]
    problems = problems or [f"{label}: {error}."]
    return f"{' '.join(problems)} It takes: {', '.join(accepted)}."
