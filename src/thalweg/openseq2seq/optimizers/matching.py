"""Whether a state that is to be loaded fits: the same names, shapes and dtypes."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from thalweg.errors import CheckpointMismatchError
from thalweg.variable import dtype_name

_MOST = 10  # differences that a message names


def check_matches(given: Mapping[str, Tensor], wanted: Mapping[str, Tensor], what: str) -> None:
    """Refuse a state that does not fit.

    Args:
        given: The state.
        wanted: Tensors of the names, shapes and dtypes it is to have.
        what: Whose state it is, for the message.

    Raises:
        CheckpointMismatchError: Names the differences.
    """
    found = [f"{name!r} is missing" for name in wanted if name not in given]
    found += [f"{name!r} belongs to nothing here" for name in given if name not in wanted]
    for name in wanted.keys() & given.keys():
        fits, got = _described(wanted[name]), _described(given[name])
        if fits != got:
            found.append(f"{name!r} is {got}, not {fits}")
    if found:
        raise CheckpointMismatchError(
            f"{what}: {'; '.join(sorted(found)[:_MOST])}. Nothing was loaded."
        )


def _described(tensor: Tensor) -> str:
    return f"{dtype_name(tensor.dtype)} of shape {tuple(tensor.shape)}"
