"""A warmed process that forks a child for each batch of cases: a crash kills the child only.

Run as `python -m attack.server MODULE` it is that process. The module has `warm()`, and `attempt`,
which takes the parts of a case and returns what became of it in a word or a line. A child that
takes more than `PATIENCE` seconds has hung.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attack import clock
from attack.figures import Figures
from attack.planted import DEFECTS

PATIENCE = 240


class Server:
    """The process, as its client sees it; use it in a `with` block.

    Args:
        module: The module whose cases it runs.
    """

    def __init__(self, module: str) -> None:
        folders = [str(Path(__file__).parents[1]), *sys.path]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "attack.server", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        )

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, batch: Sequence[Any], planted: str) -> list[str] | str:
        pipes = self._process
        assert pipes.stdin is not None
        assert pipes.stdout is not None
        line = ""
        with contextlib.suppress(BrokenPipeError):
            pipes.stdin.write(json.dumps([planted, batch]) + "\n")
            pipes.stdin.flush()
            line = pipes.stdout.readline()
        if not line:
            raise RuntimeError(f"The server has ended with status {pipes.wait()}.")
        return json.loads(line)

    def run(self, batch: Sequence[Any], planted: str = "") -> list[str]:
        """What became of each case; a crash is found by running the batch one by one.

        Args:
            batch: Cases.
            planted: A defect of `attack.planted` that the library is to have in them.
        """
        outcomes = self._ask(batch, planted)
        if isinstance(outcomes, list):
            return outcomes
        singly = [self._ask([each], planted) for each in batch]
        return [each[0] if isinstance(each, list) else each for each in singly]

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self._process.wait()


def figures_of(module: str, seed: int, count: int, batch: int, good: Sequence[str]) -> Figures:
    """Try the cases of a module, numbered from 0, in children of its server.

    Args:
        module: The module whose cases they are.
        seed: Chooses the cases.
        count: How many there are.
        batch: How many a child tries.
        good: The outcomes that are no failures.
    """
    figures, name = Figures(), module.rpartition(".")[2]
    with Server(module) as server:
        for first in range(0, count, batch):
            if clock.is_over():
                break
            cases = [(seed, number) for number in range(first, first + batch)]
            titles = [f"{name}, seed {seed}, case {number}" for _, number in cases]
            figures.judge(titles, server.run(cases), good)
    return figures


def serve(module: str) -> None:
    """Answer batches until there are no more."""
    cases = importlib.import_module(module)
    cases.warm()
    for line in sys.stdin:
        answer = in_child(partial(_answered, cases, *json.loads(line)))
        sys.stdout.write((json.dumps(answer) if answer.startswith("exit ") else answer) + "\n")
        sys.stdout.flush()


def in_child(work: Callable[[], str]) -> str:
    """What some work in a forked child returns, or its "exit" status, negative for a signal."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(reading)
            signal.alarm(PATIENCE)
            with os.fdopen(writing, "w") as pipe:
                pipe.write(work())
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return f"exit {status}" if status else answer


def _answered(cases: Any, planted: str, batch: Sequence[Any]) -> str:
    if planted:
        DEFECTS[planted]()
    return json.dumps([_attempted(cases, each) for each in batch])


def _attempted(cases: Any, case: Sequence[Any]) -> str:
    try:
        return cases.attempt(*case)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"


if __name__ == "__main__":
    serve(sys.argv[1])
