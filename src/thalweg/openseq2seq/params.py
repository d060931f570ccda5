"""Parameters that come in a dict, as a config has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.errors import InvalidArgumentError, InvalidTypeError

Kind = type | list[Any]  # what a value is an instance of, or all values there are


def check_params(
    config: Mapping[str, Any], required: Mapping[str, Kind], optional: Mapping[str, Kind]
) -> None:
    """Refuse a config with parameters that are missing, unknown, or of another kind.

    An int is no float here, as in OpenSeq2Seq.

    Raises:
        ValueError: Names the parameter, what was given and what is accepted.
    """
    for name in required:
        if name not in config:
            raise InvalidArgumentError(f"{name} parameter has to be specified.")
    known = {**required, **optional}
    for name, value in config.items():
        if name not in known:
            raise InvalidArgumentError(
                f"Unknown parameter: {name}. There are: {', '.join(sorted(known))}."
            )
        kind = known[name]
        if isinstance(kind, list):
            if value not in kind:
                raise InvalidArgumentError(f"{name} has to be one of {kind}, not {value!r}.")
        elif not isinstance(value, kind):
            raise InvalidTypeError(
                f"{name} has to be of type {kind.__name__}, not {value!r} of type"
                f" {type(value).__name__}."
            )
