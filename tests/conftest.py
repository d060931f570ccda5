"""Settings of the whole test session, and the fixtures of several files."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import settings

import kernel_cache
from busy import scale_to_load
from captured_log import Logged

if (keras := find_spec("keras")) and not keras.origin:  # it is not installed: a folder is found
    sys.modules["keras"] = None

kernel_cache.use_test_folder()
os.environ.setdefault("KERAS_BACKEND", "torch")
# Threads that wait leave the processors to the other workers of the tests.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


settings.register_profile("thalweg", derandomize=True, deadline=None)
settings.load_profile("thalweg")


def pytest_configure(config: pytest.Config) -> None:
    """Set a longer limit for each test on a busy machine; workers take that of their session."""
    if config.option.timeout is None:
        config.option.timeout = scale_to_load(float(config.getini("timeout")))


def pytest_xdist_auto_num_workers() -> int:
    """Return the number of workers: one more than processors, as tests wait for other processes."""
    return (os.cpu_count() or 1) + 1


# The cases collected so far of each test with the marker `one_in`.
_case_counts: Counter[str] = Counter()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the cases of a test with the marker `one_in(n)` slow, except one of each n in a row.

    The choice depends on the order of the cases, so each worker and each call makes the same. It is
    the first of the first n, the second of the next n: each n-th case could be of one parameter.
    """
    if mark := item.get_closest_marker("one_in"):
        function, count = item.nodeid.split("[")[0], mark.args[0]
        row, column = divmod(_case_counts[function], count)
        _case_counts[function] += 1
        if column != row % count:
            item.add_marker(pytest.mark.slow)


def pytest_report_teststatus(
    report: pytest.CollectReport | pytest.TestReport, config: pytest.Config
) -> tuple[str, str, str] | None:
    """Count skipped tests without a letter for each; their reasons follow in the summary."""
    if report.skipped and not hasattr(report, "wasxfail") and config.get_verbosity() <= 0:
        return "skipped", "", ""
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print each reason of skipped tests once, with their number."""
    skipped = terminalreporter.stats.get("skipped", [])
    places = [report.longrepr for report in skipped if isinstance(report.longrepr, tuple)]
    reasons = Counter(reason.removeprefix("Skipped: ") for _, _, reason in places)
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"{count} skipped: {reason}")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Freeze collected items for the garbage collector: they stay to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order tests that may take longer first: one of minutes at the end would run alone.

    pytest-xdist keeps the order, but begins with large parts, of which one worker would get all of
    these: `--maxschedchunk=1` is for where they are chosen.
    """
    default = float(config.getini("timeout"))

    def longer(item: pytest.Item) -> float:
        mark = item.get_closest_marker("timeout")
        return max(default, mark.args[0]) if mark else default

    items.sort(key=longer, reverse=True)
    items.sort(key=_followers_of_ranks(items).__contains__)


def _followers_of_ranks(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the tests that read reports of ranks after an earlier test.

    They come last: next to the first of them, they would wait for its ranks on another worker.
    """
    leaders: set[tuple[Any, str]] = set()
    followers: set[pytest.Item] = set()
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if "reports" in params:
            module = getattr(item, "module", None)
            home = item.path if hasattr(module, "reports") else item.path.parent
            key = (home, str(params["reports"]))
            if key in leaders:
                followers.add(item)
            leaders.add(key)
    return followers


@pytest.fixture(scope="session", autouse=True)
def looks() -> None:
    """Check steps in one call in full, too, where an environment variable requests that."""
    if os.environ.get("THALWEG_CHECK_LOOK") == "1":
        from replay_cross_check import check_steps  # after the environment is set

        check_steps()


@pytest.fixture(scope="session", autouse=True)
def eager_mode() -> None:
    """Run each test in eager mode, whatever earlier tests called."""
    from thalweg._graph import enable_eager_execution  # after the environment is set

    enable_eager_execution()


@pytest.fixture
def large_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run kernels of all replays without Python's lock, as those of large steps."""
    from thalweg._core import replay  # after the environment is set

    monkeypatch.setattr(replay, "_LARGE", 0)
    monkeypatch.setattr(replay, "_LARGE_PER_VARIABLE", 0)


@pytest.fixture(scope="module")
def without_collector() -> Iterator[None]:
    """Run the tests of a module without the garbage collector, which visits each syntax tree."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module")
def with_keras() -> None:
    """Import Keras 3 before the tests of a module, so that collecting need not wait for it."""
    pytest.importorskip("keras", reason="Keras 3 is not installed")


@pytest.fixture
def graph() -> Iterator[Any]:
    """Yield a new graph, in which the test builds."""
    from thalweg._graph import Graph  # after the environment is set

    with Graph().as_default() as new_graph:
        yield new_graph


@pytest.fixture
def logged() -> Iterator[Logged]:
    """Yield the messages that are logged in the test."""
    handler, root = Logged(), logging.getLogger()
    root.addHandler(handler)
    yield handler
    root.removeHandler(handler)


@pytest.fixture
def threads_change_often() -> Iterator[None]:
    """Switch between Python's threads after every few bytecodes."""
    initial = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(initial)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Return a function that sets the threads of torch kernels, also for small tensors."""
    import torch

    from thalweg._engines.cpu import launch
    from thalweg._engines.cpu.tuning import Tuning

    monkeypatch.setattr(launch, "tuning", lambda: Tuning(serial=0))
    initial = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(initial)
