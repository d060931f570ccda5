"""Graph mode for optimizers and strategies: see `thalweg.core.graph_mode.GraphMode`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thalweg.ground.lazily import offered

if TYPE_CHECKING:
    from thalweg.graph.control import group
    from thalweg.graph.default import graph_variable_of as variable_of
    from thalweg.graph.either import IndexedSlices as slices
    from thalweg.graph.keras.recorded import clip, update
    from thalweg.graph.keras.sessions import assign, config_value, session, use_session, values
    from thalweg.graph.keras.steps import apply_gradients, gradients, learning_rate
    from thalweg.graph.keras.variables import check_graph, slot, variable
    from thalweg.graph.one_update import as_one_update
    from thalweg.graph.replicas import aggregate, all_reduce
    from thalweg.graph.rows import deduplicated

# Imported when they are first asked for: `thalweg.v1` needs nothing of Keras.
_HOMES = {
    "aggregate": "replicas",
    "all_reduce": "replicas",
    "apply_gradients": "keras.steps",
    "as_one_update": "one_update",
    "assign": "keras.sessions",
    "check_graph": "keras.variables",
    "clip": "keras.recorded",
    "config_value": "keras.sessions",
    "deduplicated": "rows",
    "gradients": "keras.steps",
    "group": "control",
    "learning_rate": "keras.steps",
    "session": "keras.sessions",
    "slices": "either:IndexedSlices",
    "slot": "keras.variables",
    "update": "keras.recorded",
    "use_session": "keras.sessions",
    "values": "keras.sessions",
    "variable": "keras.variables",
    "variable_of": "default:graph_variable_of",
}

__all__ = [
    "aggregate",
    "all_reduce",
    "apply_gradients",
    "as_one_update",
    "assign",
    "check_graph",
    "clip",
    "config_value",
    "deduplicated",
    "gradients",
    "group",
    "learning_rate",
    "session",
    "slices",
    "slot",
    "update",
    "use_session",
    "values",
    "variable",
    "variable_of",
]


def __getattr__(name: str) -> Any:
    return offered(__name__, _HOMES, name, __package__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
