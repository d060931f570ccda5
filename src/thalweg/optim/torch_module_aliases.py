"""Modules with the names of those of `torch.optim`, such as `thalweg.optim.adamw`.

Each has the classes of this package in place of torch's; all other names are torch's own. A
module without such a class, such as `lr_scheduler`, is torch's itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from thalweg.optim.class_lookup import class_named
from thalweg.optim.rule_names import KINDS


def module_alias(
    name: str, public: Sequence[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a module in place of the torch module of that name.

    `public` lists names of this package.
    """
    module_name = name.rpartition(".")[2]

    def get(attribute: str) -> Any:
        """Return the class of this package, or else the attribute of the torch module."""
        if attribute in KINDS:  # which torch's module may have imported
            return class_named(attribute)
        try:
            return getattr(import_module(f"torch.optim.{module_name}"), attribute)
        except (AttributeError, ModuleNotFoundError):
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}") from None

    return get, lambda: sorted(public)
