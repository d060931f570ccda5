"""Extra states of modules, from `get_extra_state`, beside parameters and buffers."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, cast

from torch.nn import Module

from thalweg._core import state
from thalweg.errors import InvalidTypeError


def extra_states(module: Module | None) -> dict[str, Any]:
    """Return the extra states of a module and those inside, by the names that `state_dict` has for
    them.

    Args:
        module: The module; None has none.

    Raises:
        InvalidTypeError: A module has one that could not be set again.
    """
    return {name: part.get_extra_state() for name, part in _modules_with_state(module).items()}


@contextmanager
def with_extra_states(module: Module | None, given: Mapping[str, object]) -> Generator[None]:
    """Set extra states, and set them back if the block fails.

    Args:
        module: The module that `extra_states` was of.
        given: What it returned.

    Raises:
        CheckpointMismatchError: One is missing, or belongs to no module. Nothing was set.
    """
    keepers = _modules_with_state(module)
    found = [f"{name!r} is missing" for name in keepers if name not in given]
    found += [f"{name!r} belongs to nothing here" for name in given if name not in keepers]
    if found:
        raise state.mismatch(found, "The extra states of modules")
    before: dict[str, Any] = {}
    try:
        for name, part in keepers.items():
            before[name] = deepcopy(part.get_extra_state())
            part.set_extra_state(given[name])
        yield
    except BaseException:
        for name, value in before.items():
            keepers[name].set_extra_state(value)
        raise


def _modules_with_state(module: Module | None) -> dict[str, Any]:
    """The modules that have an extra state, by torch's names."""
    if module is None:
        return {}
    parts = cast("Iterable[tuple[str, Any]]", module.named_modules(remove_duplicate=False))
    found: dict[str, Any] = {
        f"{prefix}.{_KEY}" if prefix else _KEY: part
        for prefix, part in parts
        if part.__class__.get_extra_state is not Module.get_extra_state
    }
    for name, part in found.items():
        if part.__class__.set_extra_state is Module.set_extra_state:
            raise InvalidTypeError(f"{name!r}: {type(part).__name__} has no set_extra_state.")
    return found


_KEY = "_extra_state"
