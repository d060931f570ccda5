"""Graph mode for optimizers and strategies: see `thalweg._core.graph_mode.GraphMode`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thalweg._base.lazy import offered

if TYPE_CHECKING:
    from thalweg._graph.control import as_one_update, group
    from thalweg._graph.default_graph import graph_variable_of as variable_of
    from thalweg._graph.derived_gradients import deduplicated
    from thalweg._graph.eager_or_graph import IndexedSlices as slices
    from thalweg._graph.keras.steps import apply_gradients, gradients, learning_rate
    from thalweg._graph.keras.traced_hooks import clip, update
    from thalweg._graph.keras.variables import (
        assign,
        check_graph,
        config_value,
        session,
        slot,
        use_session,
        values,
        variable,
    )
    from thalweg._graph.replicas import aggregate, all_reduce

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

__all__ = [
    "aggregate", "all_reduce", "apply_gradients", "as_one_update", "assign", "check_graph", "clip",
    "config_value", "deduplicated", "gradients", "group", "learning_rate", "session", "slices",
    "slot", "update", "use_session", "values", "variable", "variable_of",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    return offered(__name__, _HOMES, name, __package__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
