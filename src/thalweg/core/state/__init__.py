"""Everything an optimizer remembers: named, described, copied, matched and set, for every face.

A face lists `entries`. A state is set in four parts: entries say what they want, differences are
looked for, values are converted, and then all is written at once.
"""

from thalweg.core.state.copies import Copied, published, staged
from thalweg.core.state.entries import Entry, Item, Number, flaw, kept, readable, room_for, shown
from thalweg.core.state.loading import differences, load, mismatch, restore, snapshot
from thalweg.core.state.names import as_now, distinct, keys_of, positioned, positioned_keys_of

__all__ = [
    "Copied",
    "Entry",
    "Item",
    "Number",
    "as_now",
    "differences",
    "distinct",
    "flaw",
    "kept",
    "keys_of",
    "load",
    "mismatch",
    "positioned",
    "positioned_keys_of",
    "published",
    "readable",
    "restore",
    "room_for",
    "shown",
    "snapshot",
    "staged",
]
