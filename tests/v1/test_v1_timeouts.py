"""Every number of seconds: one that is too large is waited for as long as Python can."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from thalweg import v1
from thalweg.v1 import train

HUGE = [math.inf, 1e300, 10**400, float(threading.TIMEOUT_MAX)]


def stopped() -> Any:
    coord = train.Coordinator()
    threading.Timer(0.02, coord.request_stop).start()
    return coord


def looped(seconds: Any) -> Any:
    coord = stopped()
    calls: list[int] = []
    looper = train.LooperThread.loop(coord, seconds, calls.append, [1])
    looper.join()
    coord.join()
    return len(calls)


def joined(seconds: Any) -> Any:
    coord = stopped()
    thread = threading.Thread(target=coord.wait_for_stop)
    thread.start()
    coord.join([thread], stop_grace_period_secs=seconds)
    return coord.joined


def session_closed(seconds: Any) -> Any:
    with v1.Graph().as_default():
        train.MonitoredSession(stop_grace_period_secs=seconds).close()
    return True


def triggered(seconds: Any) -> Any:
    timer = train.SecondOrStepTimer(every_secs=seconds)
    timer.update_last_triggered_step(1)
    return not timer.should_trigger_for_step(2)


def recovered(seconds: Any, folder: Path) -> Any:
    with v1.Graph().as_default():
        manager = train.SessionManager(recovery_wait_secs=seconds)
        saver = train.Saver([v1.Variable(1.0, name="w")])
        return manager.recover_session("", saver, str(folder))[1] is False


def written(seconds: Any, folder: Path) -> Any:
    writer = v1.summary.FileWriter(str(folder), flush_secs=seconds)
    writer.add_summary(b"", 1)
    writer.close()
    return len(list(folder.iterdir())) == 1


WAITS: dict[str, Callable[[Any, Path], Any]] = {
    "timeout": lambda seconds, _: stopped().wait_for_stop(seconds),
    "timer_interval_secs": lambda seconds, _: looped(seconds) == 1,
    "stop_grace_period_secs": lambda seconds, _: joined(seconds),
    "stop_grace_period_secs of": lambda seconds, _: session_closed(seconds),
    "every_secs": lambda seconds, _: triggered(seconds),
    "recovery_wait_secs": recovered,
    "flush_secs": written,
}


@pytest.mark.one_in(3)
@pytest.mark.timeout(30)
@pytest.mark.parametrize("seconds", HUGE)
@pytest.mark.parametrize("name", WAITS)
def test_oversized_timeout_is_accepted(name: str, seconds: Any, tmp_path: Path) -> None:
    assert WAITS[name](seconds, tmp_path)


@pytest.mark.parametrize(
    ("seconds", "kind"), [(math.nan, ValueError), ("3", TypeError), (True, TypeError)]
)
@pytest.mark.parametrize("name", WAITS)
def test_invalid_timeout_raises_with_its_name(
    name: str, seconds: Any, kind: Any, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=f"{name.split()[0]} must be"):
        WAITS[name](seconds, tmp_path)
    assert not list(tmp_path.iterdir())


def test_negative_wait_times_raise_or_do_not_wait() -> None:
    assert not train.Coordinator().wait_for_stop(-math.inf)
    with pytest.raises(ValueError, match="recovery_wait_secs must be 0 or more, not -1"):
        train.SessionManager(recovery_wait_secs=-1)
