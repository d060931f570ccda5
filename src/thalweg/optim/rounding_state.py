"""Options `round` and `seed` of stochastic rounding in the groups of state dicts."""

from __future__ import annotations

from typing import Any

from thalweg._base.showing import show_value
from thalweg._core.options.stochastic_rounding import Rounding
from thalweg._core.state import mismatch

NAMES = tuple(field.name for field in Rounding.keywords())


def make_rounding_entries(optimizer: Any) -> dict[str, Any]:
    """Return the entries of groups with the rounding option of an optimizer and its seed."""
    rounding = optimizer.step_options.of(Rounding)
    return {} if rounding.round is None else {name: getattr(rounding, name) for name in NAMES}


def fit_rounding(optimizer: Any, saved_state: dict[str, Any], convert: bool) -> dict[str, Any]:
    """Return a copy of a saved state whose groups lack the options `round` and `seed`.

    Args:
        convert: True to ignore saved options that differ from the optimizer's.

    Raises:
        CheckpointMismatchError: Options differ from the optimizer's, and `convert` is False.
    """
    settings = {name: getattr(optimizer.step_options.of(Rounding), name) for name in NAMES}
    problems = [
        f"'{name}' of group {group_index} is {show_value(group[name])}, here {settings[name]!r};"
        " convert=True goes on with what is here"
        for group_index, group in enumerate(saved_state["param_groups"])
        for name in optimizer.step_options.others(group)
        if name in settings
    ]
    if problems and not convert:
        raise mismatch(problems, type(optimizer).__name__)
    groups = saved_state["param_groups"]
    groups = [{k: x for k, x in group.items() if k not in settings} for group in groups]
    return {**saved_state, "param_groups": groups}
