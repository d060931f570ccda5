"""A number that a step would write to read-only memory is an error, and nothing changes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from attack.server import Server
from readonly_memory import TABLE, count_numbers

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.skipif(sys.platform != "linux", reason="no list of mappings is read elsewhere"),
]
# Those that run by default; the others are like one of them.
OFTEN = (
    "optim-AdamW", "optim-ASGD", "optim-NAdam", "optim-Prodigy", "optim-ScheduleFreeAdamW",
    "optim-AdamH", "optim-MARS", "optim-sphere", "optim-accumulate", "optim-AdamW-half",
    "optim-RuleOptimizer", "tensorflow-Nadam", "tensorflow-AdamW", "named-Nadam", "named-Adam",
    "named-v1-AdamOptimizer", "named-v1-AdagradDAOptimizer", "named-openseq2seq-NovoGrad",
    "v1-loss-scale", "openseq2seq-mixed", "v1-MovingAverageOptimizer",
)  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("readonly_memory") as made:
        yield made


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in OFTEN else [pytest.mark.slow]) for name in TABLE],
)
def test_numbers_in_read_only_memory_are_refused(server: Server, name: str) -> None:
    is_torchs = name.startswith(("optim-", "tensorflow-"))
    cases = [
        (name, place, is_replaced)
        for place in range(count_numbers(name))
        for is_replaced in ((True, False) if is_torchs else (False,))
    ]
    assert cases or name not in OFTEN
    found = dict(zip(cases, server.run(cases), strict=True))
    wanted = "refused LayoutError: cannot update '"
    # A number that no step of this training writes may lie anywhere.
    wrong = {case: said for case, said in found.items() if not said.startswith((wanted, "taken"))}
    assert wrong == {}
    assert not cases or any(said.startswith(wanted) for said in found.values())
