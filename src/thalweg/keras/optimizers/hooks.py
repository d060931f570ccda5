"""Calling the hooks that subclasses override."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

ApplyState = dict[tuple[str, torch.dtype], dict[str, Any]]


def call(hook: Callable[..., Any], args: tuple[Any, ...], apply_state: ApplyState) -> Any:
    """Call a hook, with `apply_state` if it takes it: older subclasses' hooks do not."""
    code = getattr(hook, "__code__", None)
    names = () if code is None else code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if code is None or "apply_state" in names or code.co_flags & 0x08:
        return hook(*args, apply_state=apply_state)
    return hook(*args)
