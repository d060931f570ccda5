"""Work that several threads, or several processes of one group, do at the same time."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any


def together(*works: Callable[[], Any]) -> None:
    """Run each in a thread of its own; none may fail."""
    failed: list[BaseException] = []

    def guarded(work: Callable[[], Any]) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def told_by_ranks(script: str | Path, folder: Path, count: int = 2) -> list[Any]:
    """What a script prints last, as JSON, on each rank.

    It is given its rank, a file to meet, and the number of ranks.
    """
    command = [sys.executable, *(["-c", script] if isinstance(script, str) else [str(script)])]
    given = [str(folder / "store"), str(count)]
    ranks = [
        subprocess.Popen([*command, str(rank), *given], stdout=subprocess.PIPE, text=True)
        for rank in range(count)
    ]
    try:
        return [json.loads(rank.communicate(timeout=300)[0].splitlines()[-1]) for rank in ranks]
    finally:
        for rank in ranks:  # one may wait for another that is no more
            rank.kill()
            rank.wait()
