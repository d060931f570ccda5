"""Work that several threads, or several processes of one group, do at the same time."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fresh import Fresh


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


def told_by_ranks(script: str | Path, folder: Path, count: int = 2, *names: str) -> list[Any]:
    """What a script prints last, as JSON, on each rank.

    It is given its rank, a file to meet, the number of ranks, and names.
    """
    given = [str(folder / "store"), str(count), *names]
    with ExitStack() as stack:  # at its end one may wait for another that is no more
        ranks = [stack.enter_context(Fresh(script, str(rank), *given)) for rank in range(count)]
        ended = [rank.done(300) for rank in ranks]
    assert not any(each.returncode for each in ended), [each.stderr for each in ended]
    return [json.loads(each.stdout.splitlines()[-1]) for each in ended]
