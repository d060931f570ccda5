"""`tf.contrib.framework`: the global step, variables by their names, and files."""

from __future__ import annotations

from typing import Any

from thalweg._graph import GraphKeys, get_collection
from thalweg.v1.missing import attribute_of
from thalweg.v1.train.global_step import (
    assert_global_step,
    create_global_step,
    get_global_step,
    get_or_create_global_step,
)
from thalweg.v1.train.saving import checkpoint_utils
from thalweg.v1.train.saving.checkpoint_utils import *  # noqa: F403

__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    *checkpoint_utils.__all__, "assert_global_step", "create_global_step", "get_global_step",
    "get_local_variables", "get_or_create_global_step", "get_trainable_variables", "get_variables",
]  # fmt: skip


def get_variables(
    scope: Any = None, suffix: str | None = None, collection: str = GraphKeys.GLOBAL_VARIABLES
) -> list[Any]:
    """Return the variables of a collection of the default graph, in order of creation.

    Args:
        scope: Optional. A variable scope, or a regular expression for the beginning of names.
        suffix: Optional. Only variables whose name ends with this suffix are returned.
        collection: The key of the collection.
    """
    scope = getattr(scope, "name", scope)
    if suffix is not None:
        # Names of variables end with the index of an output, such as ":0".
        end = suffix if ":" in suffix else f"{suffix}:"
        scope = f"{scope or ''}.*{end}"
    return get_collection(collection, scope)


def get_trainable_variables(scope: object = None, suffix: str | None = None) -> list[Any]:
    """Return the trainable variables of a scope; see `get_variables`."""
    return get_variables(scope, suffix, GraphKeys.TRAINABLE_VARIABLES)


def get_local_variables(scope: object = None, suffix: str | None = None) -> list[Any]:
    """Return the local variables of a scope; see `get_variables`."""
    return get_variables(scope, suffix, GraphKeys.LOCAL_VARIABLES)


__getattr__ = attribute_of("contrib.framework")
