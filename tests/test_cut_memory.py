"""No memory is touched that a storage no longer has: a named refusal, and nothing changes."""

from __future__ import annotations

import os

import pytest

from attack.server import Server
from cut_memory import CASES, GOOD

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

REFUSALS = ("LayoutError: ", "InvalidTypeError: ", "CheckpointMismatchError: ")
NAMES = ("Variable:0", "p:0", "w:0", "'p/", "/p'", "/p/", "/m'", "slices", "IndexedSlices")


def is_good(name: str, said: str) -> bool:
    if name in GOOD:
        return said == "taken"
    names_it = any(each in said for each in NAMES)
    return said.startswith(REFUSALS) and names_it


def test_what_was_cut_is_refused() -> None:
    with Server("cut_memory") as server:
        found = dict(zip(CASES, server.run([(name,) for name in CASES]), strict=True))
    assert {name: said for name, said in found.items() if not is_good(name, said)} == {}
