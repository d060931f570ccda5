"""A race as TensorBoard events: a folder for each race, and one run in it per contestant."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from thalweg._cli.race.outcome import RaceOutcome
from thalweg._cli.race.run import Lane


@contextmanager
def folder(logdir: Path, problem: str) -> Iterator[Path]:
    """Make a new folder for one race: `logdir/<problem>`, or `<problem>-2`, `-3` ... after others.

    It is made before the race, so that a folder that cannot be made is found out then, and no other
    race takes it. A race that fails leaves none.

    Raises:
        OSError: It cannot be made.
    """
    logdir.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        made = logdir / (problem if number == 1 else f"{problem}-{number}")
        try:
            made.mkdir()
            break
        except FileExistsError:
            continue
    try:
        yield made
    finally:
        with contextlib.suppress(OSError):  # not empty: all went well
            made.rmdir()


def save(outcome: RaceOutcome, folder: Path) -> None:
    """Write the run `folder/<optimizer>` for every contestant, of several seeds one for each."""
    from torch.utils.tensorboard.writer import SummaryWriter

    for race in outcome.races:
        seed = f"/seed-{race.seed}" if len(outcome.races) > 1 else ""
        for lane in race.lanes:
            run = lane.name.replace("/", "_").replace(":", "_")
            with SummaryWriter(str(folder / f"{run}{seed}")) as writer:
                _write_lane(lane, writer)


def _write_lane(lane: Lane, writer: Any) -> None:
    for step, loss in enumerate(lane.losses, 1):
        writer.add_scalar("loss/batch", loss, step)
    for step, scores in lane.evaluations:
        for tag, value in zip(("loss/train", "loss/test", "accuracy/test"), scores, strict=True):
            if math.isfinite(value):
                writer.add_scalar(tag, value, step)
