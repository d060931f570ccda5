"""State of an optimizer: names, reads, checks and atomic loading, for every API.

An API lists `entries`. A state is loaded in four stages: list the entries, collect their
differences from the state, convert the values, and write all of them at once.
"""

from thalweg._core.state.aliases import alike
from thalweg._core.state.entries import (
    Entry,
    Item,
    Number,
    Part,
    flaw,
    kept,
    of_slots,
    readable,
    room_for,
    shown,
    taken,
    uncopied,
)
from thalweg._core.state.loading import (
    LISTED,
    Given,
    Loading,
    StateDict,
    check_eager,
    differences,
    fitting,
    mismatch,
    raise_mismatch,
    restore,
    snapshot,
)
from thalweg._core.state.names import (
    Names,
    as_now,
    distinct,
    keys_of,
    positioned,
    positioned_keys_of,
)
from thalweg._core.state.staging import Copied, Staged, making, published, staged, whole

__all__ = [
    "LISTED", "Copied", "Entry", "Given", "Item", "Loading", "Names", "Number", "Part", "Staged",
    "StateDict", "alike", "as_now", "check_eager", "differences", "distinct", "fitting", "flaw",
    "kept", "keys_of", "making", "mismatch", "of_slots", "positioned", "positioned_keys_of",
    "published", "raise_mismatch", "readable", "restore", "room_for", "shown", "snapshot", "staged",
    "taken", "uncopied", "whole",
]  # fmt: skip
