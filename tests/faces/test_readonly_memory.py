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
QUICK_CASES = (
    "optim-AdamW", "optim-ASGD", "optim-NAdam", "optim-Prodigy", "optim-ScheduleFreeAdamW",
    "optim-AdamH", "optim-MARS", "optim-sphere", "optim-accumulate", "optim-AdamW-half",
    "optim-RuleOptimizer", "tensorflow-Nadam", "tensorflow-AdamW", "named-Nadam", "named-Adam",
    "named-v1-AdamOptimizer", "named-v1-AdagradDAOptimizer", "named-openseq2seq-NovoGrad",
    "v1-loss-scale", "openseq2seq-mixed", "v1-MovingAverageOptimizer",
)  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("readonly_memory") as server:
        yield server


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK_CASES else [pytest.mark.slow]) for name in TABLE],
)
def test_counters_in_read_only_memory_raise(server: Server, name: str) -> None:
    is_torchs = name.startswith(("optim-", "tensorflow-"))
    cases = [
        (name, place, replaces)
        for place in range(count_numbers(name))
        for replaces in ((True, False) if is_torchs else (False,))
    ]
    assert cases or name not in QUICK_CASES
    texts = dict(zip(cases, server.run(cases), strict=True))
    start = "refused LayoutError: cannot update '"
    # A number that no step of this training writes may lie anywhere.
    wrong = {case: text for case, text in texts.items() if not text.startswith((start, "taken"))}
    assert wrong == {}
    assert not cases or any(text.startswith(start) for text in texts.values())
