"""Collections of a graph: lists, each with a name."""

from __future__ import annotations

import re
from typing import Any


class GraphKeys:
    """Names of the collections that the library fills or reads."""

    GLOBAL_VARIABLES = "variables"
    VARIABLES = "variables"
    LOCAL_VARIABLES = "local_variables"
    MODEL_VARIABLES = "model_variables"
    METRIC_VARIABLES = "metric_variables"
    TRAINABLE_VARIABLES = "trainable_variables"
    TRAINABLE_RESOURCE_VARIABLES = "trainable_resource_variables"
    RESOURCES = "resources"
    LOCAL_RESOURCES = "local_resources"
    MOVING_AVERAGE_VARIABLES = "moving_average_variables"
    WEIGHTS = "weights"
    BIASES = "biases"
    ACTIVATIONS = "activations"
    LOSSES = "losses"
    REGULARIZATION_LOSSES = "regularization_losses"
    UPDATE_OPS = "update_ops"
    TRAIN_OP = "train_op"
    GLOBAL_STEP = "global_step"
    SUMMARIES = "summaries"
    SUMMARY_OP = "summary_op"
    INIT_OP = "init_op"
    LOCAL_INIT_OP = "local_init_op"
    READY_OP = "ready_op"
    READY_FOR_LOCAL_INIT_OP = "ready_for_local_init_op"
    SAVERS = "savers"
    SAVEABLE_OBJECTS = "saveable_objects"
    QUEUE_RUNNERS = "queue_runners"
    # TensorFlow's optimizers look for it.
    _STREAMING_MODEL_PORTS = "streaming_model_ports"


class Collections:
    """Mixin of a graph that stores collections: named lists."""

    def __init__(self) -> None:
        super().__init__()
        self._collections: dict[object, list[object]] = {}

    def add_to_collection(self, name: object, value: object) -> None:
        """Append a value to the collection `name`."""
        self._collections.setdefault(name, []).append(value)

    def add_to_collections(self, names: Any, value: object) -> None:
        """Append a value to each collection, once."""
        for name in [names] if isinstance(names, str) else dict.fromkeys(names):
            self.add_to_collection(name, value)

    def get_collection_ref(self, name: object) -> list[Any]:
        """Return the list of the collection itself, not a copy."""
        return self._collections.setdefault(name, [])

    def get_collection(self, name: object, scope: str | None = None) -> list[Any]:
        """Return a copy of a collection; an unknown collection is empty.

        Args:
            name: Name of the collection.
            scope: Optional regular expression. Only items whose names match from the first
                character are returned; items without names are left out.
        """
        values = self._collections.get(name, [])
        if not scope:
            return list(values)
        # Items without a name match nothing: no scope begins with a line break.
        return [x for x in values if re.match(scope, getattr(x, "name", None) or "\n")]

    def get_all_collection_keys(self) -> list[Any]:
        """Return the names of the collections that are not empty."""
        return [name for name, values in self._collections.items() if values]

    def clear_collection(self, name: object) -> None:
        """Delete all items of a collection."""
        self._collections.pop(name, None)
