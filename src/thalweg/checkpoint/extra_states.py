"""Extra states of modules (`get_extra_state`, `set_extra_state`)."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, cast

from torch.nn import Module

from thalweg._core import state
from thalweg.errors import InvalidTypeError


def extra_states(module: Module | None) -> dict[str, Any]:
    """Return the extra states of a module and its submodules, by their names in `state_dict`.

    Args:
        module: The module. None returns an empty dictionary.

    Raises:
        InvalidTypeError: A module has `get_extra_state` but no `set_extra_state`.
    """
    return {
        name: submodule.get_extra_state() for name, submodule in _modules_with_state(module).items()
    }


@contextmanager
def with_extra_states(module: Module | None, states: Mapping[str, object]) -> Generator[None]:
    """Set the extra states of a module; restore the former ones if the `with` block raises.

    Args:
        module: The module; None has no extra states.
        states: The states by name, from `extra_states` of such a module.

    Raises:
        CheckpointMismatchError: A state is missing, or belongs to no submodule. Nothing was set.
    """
    modules = _modules_with_state(module)
    problems = [f"{name!r} is missing" for name in modules if name not in states]
    problems += [f"{name!r} belongs to nothing here" for name in states if name not in modules]
    if problems:
        raise state.mismatch(problems, "The extra states of modules")
    previous_states: dict[str, Any] = {}
    try:
        for name, submodule in modules.items():
            previous_states[name] = deepcopy(submodule.get_extra_state())
            submodule.set_extra_state(states[name])
        yield
    except BaseException:
        for name, previous_state in previous_states.items():
            modules[name].set_extra_state(previous_state)
        raise


def _modules_with_state(module: Module | None) -> dict[str, Any]:
    """Return the submodules that have an extra state, by the name of the state in `state_dict`."""
    if module is None:
        return {}
    submodules = cast("Iterable[tuple[str, Any]]", module.named_modules(remove_duplicate=False))
    stateful_modules: dict[str, Any] = {
        f"{prefix}.{_KEY}" if prefix else _KEY: submodule
        for prefix, submodule in submodules
        if submodule.__class__.get_extra_state is not Module.get_extra_state
    }
    for name, submodule in stateful_modules.items():
        if submodule.__class__.set_extra_state is Module.set_extra_state:
            raise InvalidTypeError(f"{name!r}: {type(submodule).__name__} has no set_extra_state.")
    return stateful_modules


_KEY = "_extra_state"
