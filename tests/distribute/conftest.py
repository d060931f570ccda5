"""Fixture with the reports of all ranks, for the tests of several files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def reports(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """Return the report of each rank on the cases of `distribute_cases`; ranks run once.

    Four ranks run those of `sharding_cases` alone: the others are written for two and three.
    """
    import distribute_cases
    import sharding_cases
    from parallel_workers import run_ranks_once, shared_folder

    count: int = request.param
    folder = shared_folder(request.config, tmp_path_factory, f"ranks-{count}")
    names = sharding_cases.CASES if count > 3 else ()
    return run_ranks_once(folder, Path(distribute_cases.__file__), count, *names)
