"""Comparison of ranks before a step of an optimizer over DTensors."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from thalweg._core.dtensor import any_on_mesh, is_on_mesh
from thalweg._core.options.diagnostics import Diagnosed
from thalweg._core.param_groups import parameter_names, params_of
from thalweg._engines import current
from thalweg.distribute.sharding.dtensor_step import are_misplaced
from thalweg.distribute.sharding.matrix_group import MatrixProcessGroup, describe_dtensors

if TYPE_CHECKING:
    from thalweg.formula import Rule


def gather_ranks(optimizer: Any) -> MatrixProcessGroup | None:
    """Return the process group of a step over DTensors; None if ranks need not communicate.

    Ranks communicate to compute norms and diagnostics, to update matrices, and to redistribute
    gradients. The process group is created once, and stored in `step_cache.known_team`.
    """
    params = list(filter(is_on_mesh, params_of(optimizer.param_groups)))
    if not params:
        return None
    options, matrix = optimizer.step_options, None
    # A rank that lacks a gradient cannot see that others must redistribute theirs: once is always.
    sends = (
        optimizer.step_cache.known_team is not None
        or options.clips
        or options.of(Diagnosed).diagnostics is not None
    )
    sends = sends or current().check_numerics or are_misplaced((p.grad, p) for p in params)
    for group in optimizer.param_groups:
        dtensors = [param for param in group["params"] if is_on_mesh(param)]
        rules = _rules_of(optimizer, group) if dtensors else set[Any]()
        sends = sends or any(rule is None or rule.is_measured for rule in rules)
        if matrix is None and any(rule is None or rule.passes for rule in rules):
            matrix = dtensors[0]
    if not (sends or matrix is not None):
        return None
    cache = optimizer.step_cache
    if cache.known_team is None:
        cache.known_team = MatrixProcessGroup(params, partial(_describe_step, optimizer), matrix)
    else:
        cache.known_team.begin(params, partial(_describe_step, optimizer), matrix)
    return cache.known_team


def _rules_of(optimizer: Any, group: dict[str, Any]) -> set[Rule | None]:
    """Return the rules of a group; return {None} if a rule cannot be chosen.

    The step then raises an error, which is sent to the other ranks.
    """
    try:
        return optimizer.rules_around(group)
    except Exception:
        return {None}


def _describe_step(optimizer: Any) -> list[str]:
    """Return lines of text that must be equal on all ranks: options, groups, gradients, states."""
    found_inf = optimizer.__dict__.get("found_inf")
    lines = [
        f"the class of the optimizer: {type(optimizer).__name__}",
        f"what the scaler found: {_describe_value(found_inf)}",
    ]
    options = sorted(optimizer.step_options.on.items())
    lines += [f"{name}: {_describe_value(value)}" for name, value in options]
    for group_index, group in enumerate(optimizer.param_groups):
        if not any_on_mesh(group["params"]):
            continue
        names = [*optimizer._wanted_options(group), "rule"]
        lines += [
            f"{n} of group {group_index}: {_describe_value(group[n])}" for n in names if n in group
        ]
    params: list[Tensor] = list(filter(is_on_mesh, params_of(optimizer.param_groups)))
    labels = parameter_names(optimizer.param_groups, params)
    lines += describe_dtensors(params, labels, [param.grad for param in params])
    states = [optimizer.state.get(param, {}) for param in params]
    pairs = zip(labels, map(_describe_entries, states), strict=True)
    return lines + [f"the state of '{title}': {texts}" for title, texts in pairs]


def _describe_value(value: object) -> str:
    """Return a value as text, so that ranks can compare it.

    The text shows numbers, strings, None, CPU tensors of shape (), and tuples or lists of these.
    For any other value, the text is the name of the type.
    """
    if isinstance(value, Tensor):
        is_number = value.device.type == "cpu" and not value.dim() and not is_on_mesh(value)
        return repr(value.item()) if is_number else _TENSOR
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_describe_value, value))})"  # pyright: ignore[reportUnknownArgumentType]
    return type(value).__name__


_TENSOR = "a tensor"


def _describe_entries(entries: dict[str, Any]) -> str:
    """Return the names of a parameter's state entries, with the values of host numbers."""
    texts = {name: _describe_value(entries[name]) for name in sorted(entries, key=str)}
    return " ".join(n if word == _TENSOR else f"{n}={word}" for n, word in texts.items()) or "none"
