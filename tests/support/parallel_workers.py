"""Work that several threads, or several processes of one group, do at the same time."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fresh_process import Fresh


def run_together(*works: Callable[[], Any]) -> None:
    """Run each function in a separate thread; raise if any fails."""
    failed: list[BaseException] = []

    def run_guarded(work: Callable[[], Any]) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run_guarded, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def run_ranks(script: str | Path, folder: Path, count: int = 2, *names: str) -> list[Any]:
    """Return the last line that each rank of a script prints, parsed from JSON.

    It is given its rank, a file to meet, the number of ranks, and names.
    """
    arguments = [str(folder / "store"), str(count), *names]
    with ExitStack() as stack:  # at its end one may wait for another that is no more
        ranks = [stack.enter_context(Fresh(script, str(rank), *arguments)) for rank in range(count)]
        finished = [rank.done(300) for rank in ranks]
    assert not any(run.returncode for run in finished), [run.stderr for run in finished]
    return [json.loads(run.stdout.splitlines()[-1]) for run in finished]


def run_ranks_once(folder: Path, script: str | Path, count: int, *names: str) -> list[Any]:
    """Return what ranks tell, as `run_ranks` does; they run once for each folder.

    Args:
        folder: Of `shared_folder`: processes that ask at the same time wait for the first.
        script: The program of each rank.
        count: The number of ranks.
        names: Further arguments of the program.
    """
    import fcntl

    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        report = folder / "found.json"
        if not report.exists():
            report.write_text(json.dumps(run_ranks(script, folder, count, *names)))
        return json.loads(report.read_text())


def shared_folder(
    config: pytest.Config, tmp_path_factory: pytest.TempPathFactory, title: str
) -> Path:
    """Return a temporary folder that all processes of a test session have under this title."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if hasattr(config, "workerinput") else base) / title
    folder.mkdir(exist_ok=True)
    return folder
