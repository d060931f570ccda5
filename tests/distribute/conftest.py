"""What ranks have found, for the tests of several files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def told(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """What so many ranks have found in the cases of `distribute_cases`; they run once.

    Four have run those of `sharding_cases` alone: the others are written for two and three.
    """
    import fcntl

    import distribute_cases
    import sharding_cases
    from workers import told_by_ranks

    count: int = request.param
    base = tmp_path_factory.getbasetemp()
    shared = base if not hasattr(request.config, "workerinput") else base.parent
    folder = shared / f"ranks-{count}"
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = folder / "found.json"
        if not found.exists():
            names = sharding_cases.CASES if count > 3 else ()
            told = told_by_ranks(Path(distribute_cases.__file__), folder, count, *names)
            found.write_text(json.dumps(told))
        return json.loads(found.read_text())
