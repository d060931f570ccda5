"""Nothing reads an option that is a tensor whose storage was cut: constructors, steps, loaders."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import cut_options
from attack.server import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("cut_options") as made:
        yield made


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("act", cut_options.ACTS)
def test_cut_options_are_never_read(server: Server, act: str) -> None:
    cases = [case for case in cut_options.cases() if case[2] == act]
    found = dict(zip(cases, server.run(cases), strict=True))
    wrong = {case: said for case, said in found.items() if not said.startswith(("refused", "done"))}
    assert wrong == {}
    refused = sum(said.startswith("refused") for said in found.values())
    # A group beside the new one is read only for what both have in common.
    assert refused > (0 if act == "add_beside" else len(cases) / 2)
