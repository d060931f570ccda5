"""Functions of graph mode that optimizers and strategies call by `thalweg._core.graph_mode`.

`slices` makes `IndexedSlices`, and `variable_of` is `default_graph.graph_variable_of`.
"""

from __future__ import annotations

from typing import Any

from thalweg._base.lazy import offered

# Imported at the first access: `thalweg.v1` does not need Keras.
_MODULES = {
    "control": "as_one_update group",
    "derived_gradients": "deduplicated",
    "keras.steps": "apply_gradients gradients learning_rate",
    "keras.traced_hooks": "clip update",
    "keras.variables": "assign check_graph config_value session slot use_session values variable",
    "replicas": "aggregate all_reduce",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()} | {
    "slices": "eager_or_graph:IndexedSlices", "variable_of": "default_graph:graph_variable_of"
}  # fmt: skip

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    return offered(__name__, _HOMES, name, __package__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
