"""Settings of devices and sessions that programs make: accepted without effect."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from thalweg._graph.device_names import device

__all__ = [
    "AggregationMethod", "ConfigProto", "GPUOptions", "GraphOptions", "OptimizerOptions",
    "RunMetadata", "RunOptions", "device",
]  # fmt: skip


class _Settings(SimpleNamespace):
    """Namespace for arbitrary settings, all without effect.

    `DEFAULTS` is {name: function that returns the default}, for settings that programs read.
    """

    DEFAULTS: dict[str, Callable[[], object]] = {}

    def __init__(self, **settings: object) -> None:
        defaults = {name: make() for name, make in self.DEFAULTS.items()}
        super().__init__(**{**defaults, **settings})


class GPUOptions(_Settings):
    """Accepted and ignored."""


class OptimizerOptions(_Settings):
    """Accepted and ignored."""

    L0, L1, OFF, DEFAULT, ON_1, ON_2 = -1, 0, -1, 0, 1, 2


class GraphOptions(_Settings):
    """Accepted and ignored."""

    DEFAULTS = {"optimizer_options": OptimizerOptions, "rewrite_options": _Settings}


class ConfigProto(_Settings):
    """Settings of a session: accepted and ignored."""

    DEFAULTS = {
        "gpu_options": GPUOptions, "graph_options": GraphOptions, "experimental": _Settings,
        "device_count": dict, "device_filters": list,
    }  # fmt: skip


class RunOptions(_Settings):
    """Settings of a run: accepted and ignored."""

    NO_TRACE, SOFTWARE_TRACE, HARDWARE_TRACE, FULL_TRACE = range(4)


class RunMetadata(_Settings):
    """Metadata of a run; empty."""

    DEFAULTS = {"step_stats": lambda: _Settings(dev_stats=[])}


class AggregationMethod:
    """Methods of adding up gradients; accepted and ignored."""

    ADD_N = DEFAULT = 0
    EXPERIMENTAL_TREE, EXPERIMENTAL_ACCUMULATE_N = 1, 2
