"""Length of a training, completed from a config and passed to its policy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from thalweg._base.showing import show_value
from thalweg.errors import InvalidArgumentError, InvalidTypeError


@dataclass(frozen=True)
class TrainingLength:
    """Length of a training in updates.

    Attributes:
        last_step: Updates until the end.
        steps_in_epoch: Updates in one pass over the data; None if the config counts steps.
    """

    last_step: int
    steps_in_epoch: int | None


def training_length(
    *,
    max_steps: int | None = None,
    num_epochs: int | None = None,
    dataset_size: int | None = None,
    batch_size_per_gpu: int | None = None,
    workers: int = 1,
    iter_size: int = 1,
) -> TrainingLength:
    """Return the length of a training from a number of steps or epochs.

        steps_in_epoch = dataset_size // batch_size_per_gpu // workers // iter_size

    Args:
        max_steps: The number of updates. Set either `max_steps` or `num_epochs`.
        num_epochs: Passes over the data; requires `dataset_size` and `batch_size_per_gpu`.
        dataset_size: The number of examples of all workers.
        batch_size_per_gpu: Examples per batch of one worker.
        workers: The number of workers that share the data.
        iter_size: Batches per update.

    Raises:
        ValueError: Both lengths or none are set, a required number is missing or not positive, or
            there are too few examples for one update.

    Reference: OpenSeq2Seq, models.Model
    """
    divisors = _check_positive_int("workers", workers), _check_positive_int("iter_size", iter_size)
    if max_steps is not None and num_epochs is not None:
        raise InvalidArgumentError(
            "max_steps and num_epochs cannot both be given. Remove one of them from the config."
        )
    if max_steps is not None:
        return TrainingLength(_check_positive_int("max_steps", max_steps), None)
    if num_epochs is None:
        raise InvalidArgumentError("Either max_steps or num_epochs has to be given for training.")
    steps = _check_positive_int("dataset_size", dataset_size)
    for count in (_check_positive_int("batch_size_per_gpu", batch_size_per_gpu), *divisors):
        steps //= count
    if steps == 0:
        raise InvalidArgumentError(
            f"One update takes more examples than there are: dataset_size is {dataset_size},"
            f" batch_size_per_gpu {batch_size_per_gpu}, workers {workers}, iter_size {iter_size}."
        )
    return TrainingLength(_check_positive_int("num_epochs", num_epochs) * steps, steps)


def policy_params(
    policy: Callable[..., object], params: Mapping[str, Any], length: TrainingLength
) -> dict[str, Any]:
    """Return a policy's parameters, completed from the length of the training, as a new dict.

    If `decay_steps` is missing, `begin_decay_at` is raised to the end of the warm-up, and
    `decay_steps` is the number of updates after `begin_decay_at`. A missing `steps_per_epoch`
    becomes `length.steps_in_epoch`. Only parameters in the policy's signature are added.

    Args:
        policy: `policy(global_step=..., **params)` returns a learning rate.
        params: The parameters in a config; not changed.
        length: See `training_length`.

    Raises:
        TypeError: `policy` is not callable, or has no signature, or `begin_decay_at` or
            `warmup_steps` is not a number.
        ValueError: The training ends before the decay begins.

    Differs from:
        OpenSeq2Seq, which passes a `decay_steps` of 0 or less to the policy.

    Example:
        >>> from thalweg.openseq2seq.optimizers.lr_policies import poly_decay
        >>> policy_params(poly_decay, {"warmup_steps": 100}, training_length(max_steps=1000))
        {'warmup_steps': 100, 'begin_decay_at': 100, 'decay_steps': 900}

    Reference: OpenSeq2Seq, models.Model
    """
    parameters = _read_signature(policy)
    new_params = dict(params)
    for name in ("begin_decay_at", "warmup_steps"):
        if name in parameters and isinstance(
            new_params.get(name), str | bytes | list | tuple | dict
        ):
            raise InvalidTypeError(
                f"lr_policy_params: {name} must be a number of steps, not"
                f" {show_value(new_params[name])}."
            )
    if "decay_steps" in parameters and "decay_steps" not in new_params:
        begin = 0
        if "begin_decay_at" in parameters:
            begin = new_params.get("begin_decay_at") or 0
            if "warmup_steps" in parameters:
                begin = max(begin, new_params.get("warmup_steps") or 0)
                new_params["begin_decay_at"] = begin
        new_params["decay_steps"] = length.last_step - begin
        if new_params["decay_steps"] <= 0:
            raise InvalidArgumentError(
                f"No steps are left to decay in: the decay begins at step {begin} of"
                f" {length.last_step}. Give decay_steps, or lower begin_decay_at or warmup_steps."
            )
    if (
        "steps_per_epoch" in parameters
        and "steps_per_epoch" not in new_params
        and length.steps_in_epoch is not None
    ):
        new_params["steps_per_epoch"] = length.steps_in_epoch
    return new_params


def _read_signature(policy: object) -> Mapping[str, inspect.Parameter]:
    """Return {name: parameter} of a policy's signature; raise InvalidTypeError if there is none."""
    if not callable(policy):
        raise InvalidTypeError(
            f"lr_policy must be a function of the global step, not {show_value(policy)}."
        )
    try:
        return inspect.signature(policy).parameters
    except ValueError as error:
        raise InvalidTypeError(f"lr_policy has no signature that can be read: {error}") from error


def _check_positive_int(name: str, count: object) -> int:
    if count is None:
        raise InvalidArgumentError(f"{name} has to be given for a training in epochs.")
    if isinstance(count, bool) or not isinstance(count, int):
        raise InvalidTypeError(f"{name} must be an int, not {show_value(count)}.")
    if count <= 0:
        raise InvalidArgumentError(f"{name} must be positive, not {count}.")
    return count
