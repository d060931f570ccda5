"""Options that are tensors with truncated storage are never read: constructors, steps, loaders."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import cut_options
from attack.server import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("cut_options") as server:
        yield server


@pytest.mark.one_in(3)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("act", cut_options.ACTS)
def test_cut_options_are_never_read(server: Server, act: str) -> None:
    cases = [case for case in cut_options.cases() if case[2] == act]
    messages = dict(zip(cases, server.run(cases), strict=True))
    wrong = {
        case: message
        for case, message in messages.items()
        if not message.startswith(("refused", "done"))
    }
    assert wrong == {}
    error_count = sum(message.startswith("refused") for message in messages.values())
    # A group beside the new one is read only for what both have in common.
    assert error_count > (0 if act == "add_beside" else len(cases) / 2)
