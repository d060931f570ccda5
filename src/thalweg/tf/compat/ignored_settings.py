"""Settings of devices and sessions that programs make: accepted without effect."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from thalweg.errors import InvalidArgumentError

__all__ = [
    "AggregationMethod",
    "ConfigProto",
    "GPUOptions",
    "GraphOptions",
    "OptimizerOptions",
    "RunMetadata",
    "RunOptions",
    "device",
]

_DEVICE = re.compile(
    r"(/job:[a-z][a-z0-9_]*)?(/replica:\d+)?(/task:\d+)?((/device:[a-z_]+:|/(cpu|gpu|tpu):?)(\d+|\*)?)?",
    re.IGNORECASE,
)


@contextlib.contextmanager
def device(device_name_or_function: object) -> Iterator[None]:
    """Return a context manager that changes nothing: operations run where their tensors are.

    Move a module or variable with torch's `.to("cuda")`.

    Args:
        device_name_or_function: A name such as "/cpu:0" or "/job:worker/task:0/gpu:1", a function,
            or None.

    Raises:
        InvalidArgumentError: The string is not the name of a device.
    """
    name = device_name_or_function
    if isinstance(name, str) and not _DEVICE.fullmatch(f"/{name.lstrip('/')}" if name else ""):
        raise InvalidArgumentError(f"{name!r} is no name of a device; expected one like '/gpu:0'.")
    yield


class _Settings(SimpleNamespace):
    """Arbitrary settings as attributes, all ignored."""


class GPUOptions(_Settings):
    """Accepted and ignored."""


class OptimizerOptions(_Settings):
    """Accepted and ignored."""

    L0, L1, OFF, DEFAULT, ON_1, ON_2 = -1, 0, -1, 0, 1, 2


class GraphOptions(_Settings):
    """Accepted and ignored."""

    def __init__(self, **settings: object) -> None:
        super().__init__(
            **{"optimizer_options": OptimizerOptions(), "rewrite_options": _Settings(), **settings}
        )


class ConfigProto(_Settings):
    """Settings of a session: accepted and ignored."""

    def __init__(self, **settings: object) -> None:
        defaults = {
            "gpu_options": GPUOptions(),
            "graph_options": GraphOptions(),
            "experimental": _Settings(),
            "device_count": {},
            "device_filters": [],
        }
        super().__init__(**{**defaults, **settings})


class RunOptions(_Settings):
    """Settings of a run: accepted and ignored."""

    NO_TRACE, SOFTWARE_TRACE, HARDWARE_TRACE, FULL_TRACE = range(4)


class RunMetadata(_Settings):
    """Metadata of a run; empty."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**{"step_stats": _Settings(dev_stats=[]), **settings})


class AggregationMethod:
    """Methods of adding up gradients; accepted and ignored."""

    ADD_N = DEFAULT = 0
    EXPERIMENTAL_TREE, EXPERIMENTAL_ACCUMULATE_N = 1, 2
