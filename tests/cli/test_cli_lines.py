"""Progress in plain lines, for logs: neither too many nor too few."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from thalweg._cli import log_progress, race_progress
from thalweg._cli.commands import files
from thalweg._cli.log_progress import ProgressLines
from thalweg._cli.race.contestants import line_up
from thalweg._cli.race.outcome import race_seeds
from thalweg._cli.race.problems import PROBLEMS


@pytest.mark.parametrize(
    ("duration", "count"),
    [(10, 0), (60, 3), (600, 10), (3600, 10), (100_000, 167)],
)
def test_progress_lines_appear_at_intervals(duration: int, count: int, capfd: Any) -> None:
    clock = [0.0]
    progress = ProgressLines(lambda: clock[0])
    for step in range(1000):
        clock[0] = duration * step / 1000
        progress.show(step / 1000, lambda: "so far")
    captured = capfd.readouterr()
    lines = captured.err.splitlines()
    assert abs(len(lines) - count) <= (count > 0)
    assert not captured.out
    assert all(re.fullmatch(r"so far, \d+%, (\d+:)?\d+:\d\d", line) for line in lines)


def test_progress_line_shows_the_time(capfd: Any) -> None:
    clock = [0.0]
    progress = ProgressLines(lambda: clock[0])
    for second in (62.4, 3723):
        clock[0] = second
        progress.show(second / 4000, lambda: "x")
    assert capfd.readouterr().err == "x, 2%, 1:02\nx, 93%, 1:02:03\n"


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_progress, "SOONEST", 0.0)


@pytest.mark.usefixtures("often")
def test_race_without_terminal_prints_progress_lines(capfd: Any) -> None:
    with race_progress.watch_race(Console(file=io.StringIO()), "digits") as progress:
        race_seeds(PROBLEMS["digits"], line_up(["SGD"], {}, "digits"), seeds=[0], epochs=1,
            progress=progress)  # fmt: skip
    lines = capfd.readouterr().err.splitlines()
    assert 8 <= len(lines) <= 10
    assert re.fullmatch(r"step \d+ of 44, ahead: SGD with [\d.]+%, \d+%, \d+:\d\d", lines[-1])


@pytest.mark.usefixtures("often")
def test_large_file_without_terminal_prints_progress_lines(
    monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setattr(files, "_bytes_of", lambda path: files.LARGE)
    with files._watch_progress("run/model\x1b.ckpt") as progress:
        assert progress is not None
        for size in range(0, 2001, 500):
            progress(size, 2000)
    lines = capfd.readouterr().err.splitlines()
    assert lines[1] == "model\\x1b.ckpt: 500 B of 2 kB, 25%, 0:00"
    assert len(lines) == 5
