"""Whether a saved state of an optimizer fits the variables it is loaded into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thalweg.core.state import mismatch


def check_saved(variables: Sequence[Any], store: Any) -> None:
    """Refuse what Keras would skip or load in part.

    Raises:
        CheckpointMismatchError: The numbers of variables or their shapes differ.
    """
    if len(store.keys()) != len(variables):
        counts = f"the state has {len(store.keys())} variables, the optimizer {len(variables)}"
        raise mismatch([counts])
    differences = []
    for index, variable in enumerate(variables):
        saved, own = tuple(store[str(index)].shape), tuple(variable.shape)
        if saved != own:
            differences.append(f"'{variable.path}' has shape {saved} in the state but {own} here")
    if differences:
        raise mismatch(differences)
