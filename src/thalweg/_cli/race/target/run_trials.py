"""Execution of trials: all trials in parallel, then the fastest trials again, one at a time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from pathlib import Path

from thalweg._cli.race.errors import EntryError
from thalweg._cli.race.target.results import Key, Results
from thalweg._cli.race.target.search_spaces import Point, Space
from thalweg._cli.race.target.trial import Ran, run_trial, time_trial

Progress = Callable[[float, str], None]
# Share of the first pass in the displayed progress, an estimate.
RUNNING = 0.75


def run_all(results: Results, path: Path, jobs: int, progress: Progress) -> None:
    """Run the remaining trials, time the fastest, and save the file after each trial.

    Args:
        results: The results to complete; finished trials are not repeated.
        path: The path of the file.
        jobs: The number of parallel trials; timed trials run one at a time.
        progress: `progress(fraction, text)` is called after each trial; `text` describes the trial.

    Raises:
        EntryError: A trial fails, or a process is killed.
        KeyboardInterrupt: Ctrl-C; the file has all finished trials.
    """
    with closing(_run_trials(results, jobs)) as trials:  # Ctrl-C ends the processes at once
        for key, outcome in trials:
            results.outcomes[key] = outcome
            results.save(path)
            fraction = len(results.outcomes) / len(results.plan.trial_keys())
            progress(
                RUNNING * fraction, f"{key.contestant} on {key.problem}, study {key.study + 1}"
            )
    untimed = results.to_time()
    for count, key in enumerate(untimed, start=1):
        steps = results.outcomes[key].steps or 0
        results.timings[key] = time_trial(*_arguments_of(results, key), steps)
        results.save(path)
        fraction = RUNNING + (1 - RUNNING) * count / len(untimed)
        progress(fraction, f"times of {key.contestant} on {key.problem}")


def _arguments_of(results: Results, key: Key) -> tuple[str, Space, Point, int, int]:
    plan = results.plan
    space = plan.spaces[key.contestant]
    return key.problem, space, plan.point(key), plan.seed_of(key), plan.threads


def _run_trials(results: Results, jobs: int) -> Generator[tuple[Key, Ran], None, None]:
    """Yield (key, result) of each finished trial. The caller must add the result to `results`."""
    if jobs == 1:
        for study in results.to_run():
            for key in study:
                yield key, run_trial(*_arguments_of(results, key), _steps_to_beat(results, key))
        return
    with _open_pool(jobs) as pool:

        def begin(study: list[Key]) -> None:
            key, *following = study
            arguments = *_arguments_of(results, key), _steps_to_beat(results, key)
            running[pool.submit(run_trial, *arguments)] = key, following

        waiting, running = results.to_run(), dict[Future[Ran], tuple[Key, list[Key]]]()
        while waiting or running:
            while waiting and len(running) < jobs:
                begin(waiting.pop(0))
            for future in wait(running, return_when=FIRST_COMPLETED)[0]:
                key, following = running.pop(future)
                try:
                    yield key, future.result()
                except BrokenProcessPool as error:
                    raise EntryError(
                        f"a process that ran trials was killed, perhaps for its memory: --jobs"
                        f" {jobs} may be too many. --resume goes on from what is kept."
                    ) from error
                # The caller has added the result, so the next trial of the study can stop early.
                if following:
                    begin(following)


def _steps_to_beat(results: Results, key: Key) -> int | None:
    """Return the steps of the study's fastest trial so far, or None."""
    fastest = results.fastest(*key[:3])
    return None if fastest is None else results.outcomes[fastest].steps


@contextmanager
def _open_pool(jobs: int) -> Generator[ProcessPoolExecutor]:
    """Yield a pool of processes that ignore Ctrl-C; an error in the `with` block kills them."""
    # The pool has no public list of its processes.
    earlier_children = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _begin_process)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - earlier_children:
            child.terminate()
        raise
    pool.shutdown()


def _begin_process() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Exit with the parent process, which may be killed while this process waits for work."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
