"""The two passes: all trials, several at a time; then the fastest ones again, one at a time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from pathlib import Path

from thalweg._cli.race.errors import EntryError
from thalweg._cli.race.target.results import Key, Results
from thalweg._cli.race.target.search_spaces import Point, Space
from thalweg._cli.race.target.trial import Ran, run_trial, time_trial

Progress = Callable[[float, str], None]
RUNNING = 0.75  # of all that is to be done, where nothing tells


def run_all(results: Results, path: Path, jobs: int, progress: Progress) -> None:
    """Run what is still to be run, and keep each result in the file as it comes.

    Args:
        results: To be completed; what it has is not run again.
        path: Of the file.
        jobs: How many trials run at once. Steps do not depend on it; times are of runs alone.
        progress: Called with the share that is done, and what was done last.

    Raises:
        EntryError: A trial fails, or a process is killed.
        KeyboardInterrupt: Ctrl-C; the file has all trials that were over.
    """
    with closing(_run_trials(results, jobs)) as found:  # Ctrl-C ends the processes at once
        for key, ran in found:
            results.ran[key] = ran
            results.save(path)
            done = len(results.ran) / len(results.plan.trial_keys())
            progress(RUNNING * done, f"{key.contestant} on {key.problem}, study {key.study + 1}")
    left = results.to_time()
    for number, key in enumerate(left, start=1):
        steps = results.ran[key].steps or 0
        results.timed[key] = time_trial(*_arguments_of(results, key), steps)
        results.save(path)
        done = RUNNING + (1 - RUNNING) * number / len(left)
        progress(done, f"times of {key.contestant} on {key.problem}")


def _arguments_of(results: Results, key: Key) -> tuple[str, Space, Point, int, int]:
    plan = results.plan
    space = plan.spaces[key.contestant]
    return key.problem, space, plan.point(key), plan.seed_of(key), plan.threads


def _run_trials(results: Results, jobs: int) -> Generator[tuple[Key, Ran], None, None]:
    """The results of trials as they come; who takes one keeps it before the next is asked for."""
    if jobs == 1:
        for study in results.to_run():
            for key in study:
                yield key, run_trial(*_arguments_of(results, key), _steps_to_beat(results, key))
        return
    with _open_pool(jobs) as pool:

        def begin(study: list[Key]) -> None:
            key, *left = study
            arguments = *_arguments_of(results, key), _steps_to_beat(results, key)
            running[pool.submit(run_trial, *arguments)] = key, left

        waiting, running = results.to_run(), dict[Future[Ran], tuple[Key, list[Key]]]()
        while waiting or running:
            while waiting and len(running) < jobs:
                begin(waiting.pop(0))
            for each in wait(running, return_when=FIRST_COMPLETED)[0]:
                key, left = running.pop(each)
                try:
                    yield key, each.result()
                except BrokenProcessPool as error:
                    raise EntryError(
                        f"a process that ran trials was killed, perhaps for its memory: --jobs"
                        f" {jobs} may be too many. --resume goes on from what is kept."
                    ) from error
                if left:
                    begin(left)


def _steps_to_beat(results: Results, key: Key) -> int | None:
    """Those of the fastest trial of the study before this one."""
    fastest = results.fastest(*key[:3])
    return None if fastest is None else results.ran[fastest].steps


@contextmanager
def _open_pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that know nothing of Ctrl-C, and end with the block, whatever they do."""
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _begin_process)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for each in set(multiprocessing.active_children()) - before:
            each.terminate()
        raise
    pool.shutdown()


def _begin_process() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Else it would wait for work forever where the process that gives it was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
