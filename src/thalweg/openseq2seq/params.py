"""Validation of parameters in a config's dict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg._base.showing import show_value
from thalweg.errors import InvalidArgumentError, InvalidTypeError, did_you_mean

# The type of a value, or a list of all accepted values.
Kind = type | list[Any]


def check_params(
    config: Mapping[str, object],
    required: Mapping[str, Kind],
    optional: Mapping[str, Kind],
    hints: Mapping[str, str] | None = None,
) -> None:
    """Raise for missing or unknown parameters, and for values of another type.

    An int is not accepted for a float, as in OpenSeq2Seq.

    Args:
        required: {name of a required parameter: type, or list of accepted values}.
        optional: {name of an optional parameter: type, or list of accepted values}.
        hints: Optional. {unknown name: sentence of the message}; by default the message has the
            nearest name.

    Raises:
        ValueError: A parameter is invalid; the message names it and the accepted values.
    """
    kinds = {**required, **optional}
    unknown = [name for name in config if name not in kinds]
    for name in required:
        if name not in config:
            hints_for_name = [
                f"Instead there is {show_value(unknown_name)}."
                for unknown_name in unknown
                if did_you_mean(show_value(unknown_name).strip("'"), [name])
            ]
            raise InvalidArgumentError(
                " ".join((f"{name} parameter has to be specified.", *hints_for_name))
            )
    for name in unknown:
        hint = (hints or {}).get(name) or did_you_mean(show_value(name).strip("'"), kinds)
        sentences = (
            f"Unknown parameter: {name}.",
            hint,
            f"There are: {', '.join(sorted(kinds))}.",
        )
        raise InvalidArgumentError(" ".join(filter(None, sentences)))
    for name, value in config.items():
        kind = kinds[name]
        if isinstance(kind, list):
            if value not in kind:
                raise InvalidArgumentError(
                    f"{name} has to be one of {kind}, not {show_value(value)}."
                )
        elif not isinstance(value, kind):
            raise InvalidTypeError(
                f"{name} has to be of type {kind.__name__}, not {show_value(value)} of type"
                f" {type(value).__name__}."
            )
