"""Parameters that come in a dict, as a config has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg._base.showing import show_value
from thalweg.errors import InvalidArgumentError, InvalidTypeError, did_you_mean

Kind = type | list[Any]  # what a value is an instance of, or all values there are


def check_params(
    config: Mapping[str, object],
    required: Mapping[str, Kind],
    optional: Mapping[str, Kind],
    hints: Mapping[str, str] | None = None,
) -> None:
    """Refuse a config with parameters that are missing, unknown, or of another kind.

    An int is no float here, as in OpenSeq2Seq.

    Args:
        config: The parameters.
        required: Those that must be there.
        optional: Those that may be there.
        hints: Optional. What to say of some unknown ones; for others the nearest name is said.

    Raises:
        ValueError: Names the parameter, what was given and what is accepted.
    """
    known = {**required, **optional}
    unknown = [name for name in config if name not in known]
    for name in required:
        if name not in config:
            missed = [
                f"Instead there is {show_value(each)}."
                for each in unknown
                if did_you_mean(show_value(each).strip("'"), [name])
            ]
            raise InvalidArgumentError(
                " ".join((f"{name} parameter has to be specified.", *missed))
            )
    for name in unknown:
        hint = (hints or {}).get(name) or did_you_mean(show_value(name).strip("'"), known)
        said = (f"Unknown parameter: {name}.", hint, f"There are: {', '.join(sorted(known))}.")
        raise InvalidArgumentError(" ".join(filter(None, said)))
    for name, value in config.items():
        kind = known[name]
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
