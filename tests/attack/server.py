"""A warmed process that forks a child for each batch of cases: a crash kills the child only.

A module of cases has `warm()`, and `attempt`, which takes the parts of a case and returns what
became of it in a word or a line. A child that takes more than `PATIENCE` seconds has hung.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attack import clock
from attack.figures import Figures
from attack.planted import DEFECTS
from fresh_process import context

PATIENCE = 240


class Server:
    """The process, as its client sees it; use it in a `with` block.

    Args:
        module: The module whose cases it runs.

    Attributes:
        used: Seconds of processors that those had which have been closed, with their children.
    """

    used = 0.0

    def __init__(self, module: str) -> None:
        self._pipe, child_pipe = context.Pipe()
        args = module, [*sys.path], dict(os.environ), child_pipe
        self._process = context.Process(target=serve, args=args, daemon=True)
        self._process.start()
        child_pipe.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, batch: Sequence[Any], planted: str) -> list[str] | str:
        try:
            self._pipe.send((planted, batch))
            return self._pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            status = self._process.exitcode
            raise RuntimeError(f"The server has ended with status {status}.") from None

    def run(self, batch: Sequence[Any], planted: str = "") -> list[str]:
        """Return the outcome of each case; after a crash, run the batch one by one.

        Args:
            batch: Cases.
            planted: A defect of `attack.planted` that the library is to have in them.
        """
        outcomes = self._ask(batch, planted)
        if isinstance(outcomes, list):
            return outcomes
        singly = [self._ask([case], planted) for case in batch]
        return [answer[0] if isinstance(answer, list) else answer for answer in singly]

    def close(self) -> None:
        with contextlib.suppress(EOFError, ConnectionError):
            self._pipe.send(None)
            Server.used += self._pipe.recv()
        self._pipe.close()
        self._process.join()


_open: dict[str, Server] = {}


@contextlib.contextmanager
def serving(module: str) -> Iterator[Server]:
    """Yield the server of a module's cases; a block within such a block has the same server.

    It is warm after seconds, and each of its children is given a defect of its own.
    """
    if module in _open:
        yield _open[module]
        return
    with Server(module) as server:
        _open[module] = server
        try:
            yield server
        finally:
            del _open[module]


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
    with serving(module) as server:
        for first in range(0, count, batch):
            if clock.is_over():
                break
            cases = [(seed, number) for number in range(first, first + batch)]
            titles = [f"{name}, seed {seed}, case {number}" for _, number in cases]
            figures.judge(titles, server.run(cases), good)
    return figures


def serve(module: str, path: list[str], environment: Mapping[str, str], pipe: Any) -> None:
    sys.path[:] = path
    os.environ.clear()
    os.environ.update(environment)
    cases = importlib.import_module(module)
    cases.warm()
    with contextlib.suppress(EOFError):
        while request := pipe.recv():
            answer = in_child(partial(_answered, cases, *request))
            pipe.send(answer if answer.startswith("exit ") else json.loads(answer))
        pipe.send(sum(os.times()[:4]))


def in_child(work: Callable[[], str]) -> str:
    """Return the result of work in a forked child, or "exit" and its status."""
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
    return json.dumps([_attempted(cases, case) for case in batch])


def _attempted(cases: Any, case: Sequence[Any]) -> str:
    try:
        return cases.attempt(*case)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
