"""Names of TensorFlow devices: validated, and otherwise ignored."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from thalweg.errors import InvalidArgumentError

_DEVICE = re.compile(
    r"(/job:[a-z][a-z0-9_]*)?(/replica:\d+)?(/task:\d+)?((/device:[a-z_]+:|/(cpu|gpu|tpu):?)(\d+|\*)?)?",
    re.IGNORECASE,
)


@contextlib.contextmanager
def device(device_name_or_function: object) -> Iterator[None]:
    """Return a context manager that changes nothing: operations run on their tensors' devices.

    Move a module or variable with torch's `.to("cuda")`.

    Args:
        device_name_or_function: A name such as "/cpu:0" or "/job:worker/task:0/gpu:1", a function,
            or None.

    Raises:
        InvalidArgumentError: A string is not the name of a device.
    """
    name = device_name_or_function
    if isinstance(name, str) and not _DEVICE.fullmatch(f"/{name.lstrip('/')}" if name else ""):
        raise InvalidArgumentError(
            f"{name!r} is not the name of a device; expected one like '/gpu:0'."
        )
    yield
