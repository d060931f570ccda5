"""Whether a state that is to be loaded fits: the same names, shapes and dtypes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg.errors import CheckpointMismatchError, InvalidTypeError
from thalweg.variable import dtype_name, to_tensor

_MOST = 10  # differences that a message names


def distinct_names(names: Sequence[str], mark: str) -> list[str]:
    """The names, with `mark` and their position behind those that others have, too."""
    counts, found = Counter(names), []
    taken = {name for name, count in counts.items() if count == 1}
    for index, name in enumerate(names):
        while counts[name] > 1 and f"{name}{mark}{index}" in taken:
            index += len(names)
        found.append(f"{name}{mark}{index}" if counts[name] > 1 else name)
        taken.add(found[-1])
    return found


def tensors_of(state: Any) -> dict[str, Tensor]:
    """The tensors of a state by name.

    Raises:
        InvalidTypeError: It is no mapping, or holds what is no tensor.
    """
    if not isinstance(state, Mapping):
        raise InvalidTypeError(f"A state is a dict of tensors by name, not {repr(state)[:80]}.")
    found: dict[str, Tensor] = {}
    for name, value in state.items():
        try:
            found[name] = to_tensor(value).detach()
        except InvalidTypeError as error:
            raise InvalidTypeError(f"{name!r} of the state: {error}") from error
    return found


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
    described = f"{dtype_name(tensor.dtype)} of shape {tuple(tensor.shape)}"
    if tensor.is_meta:
        return f"{described} on the meta device"
    return described if tensor.layout == torch.strided else f"{described}, {tensor.layout}"
