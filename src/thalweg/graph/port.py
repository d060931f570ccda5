"""What graphs do for optimizers and strategies: see `thalweg.core.graph_mode.GraphMode`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thalweg.lazily import offering

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
_NAMES = {
    "control": "group",
    "default": "variable_of=graph_variable_of",
    "either": "slices=IndexedSlices",
    "keras.recorded": "clip update",
    "keras.sessions": "assign config_value session use_session values",
    "keras.steps": "apply_gradients gradients learning_rate",
    "keras.variables": "check_graph slot variable",
    "one_update": "as_one_update",
    "replicas": "aggregate all_reduce",
    "rows": "deduplicated",
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

__getattr__ = offering(__name__, _NAMES, __package__)
