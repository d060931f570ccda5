"""Memory that a user's function takes away in the course of a step is looked at before a write."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from attack.server import Server
from cutting import MAKE, STEADY, VICTIMS

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("cutting") as server:
        yield server


def crashes(server: Server, cases: list[tuple[Any, ...]], good: tuple[str, ...]) -> dict[Any, str]:
    """The cases that did not end well, with what became of them."""
    return {
        case: message
        for case, message in zip(cases, server.run(cases), strict=True)
        if message not in good
    }


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_memory_truncated_by_a_step_callback_is_not_written(
    server: Server, name: str, sparse: bool
) -> None:
    cases = [
        ("updating", name, victim, sparse, steps)
        for victim in VICTIMS
        for steps in (0, STEADY)
        if steps or victim != "slot"
    ]
    assert not crashes(server, cases, ("refused", "not called"))


@pytest.mark.parametrize("face", ["keras", "v1"])
@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
def test_memory_truncated_by_a_constraint_is_not_written(
    server: Server, face: str, twice: bool
) -> None:
    victims = ("variable", "other", "value", "slot", "counter")
    cases = [("constrained", face, victim, twice) for victim in victims]
    assert not crashes(server, cases, ("refused", "taken"))
    assert crashes(server, cases[:3], ("refused",)) == {}


@pytest.mark.parametrize("name", ["policy", "skip", "writer"])
def test_memory_truncated_in_a_mixed_step_is_not_written(server: Server, name: str) -> None:
    victims = ("variable", "master", "slot", "gradient", "counter")
    cases = [("mixed", name, victim) for victim in victims]
    assert not crashes(server, cases, ("refused",))
