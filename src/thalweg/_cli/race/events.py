"""TensorBoard events of a race: a folder per race with a run per contestant."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from thalweg._cli.race.outcome import RaceOutcome


@contextmanager
def make_directory(logdir: Path, problem: str) -> Iterator[Path]:
    """Create and yield a new folder for a race: `logdir/<problem>`, or `<problem>-2`, `-3` ...

    The context manager removes the folder at the end if it is empty.

    Raises:
        OSError: The folder cannot be created.
    """
    logdir.mkdir(parents=True, exist_ok=True)
    for suffix in count(1):
        path = logdir / (problem if suffix == 1 else f"{problem}-{suffix}")
        try:
            path.mkdir()
            break
        except FileExistsError:
            continue
    try:
        yield path
    finally:
        # A folder with events is not empty, so it stays.
        with contextlib.suppress(OSError):
            path.rmdir()


def save(outcome: RaceOutcome, directory: Path) -> None:
    """Write a TensorBoard run `directory/<optimizer>` for each contestant and seed."""
    from torch.utils.tensorboard.writer import SummaryWriter

    for race in outcome.races:
        seed = f"/seed-{race.seed}" if len(outcome.races) > 1 else ""
        for lane in race.lanes:
            run = lane.name.replace("/", "_").replace(":", "_")
            with SummaryWriter(str(directory / f"{run}{seed}")) as writer:
                scalars = [("loss/batch", loss, step) for step, loss in enumerate(lane.losses, 1)]
                for step, scores in lane.evaluations:
                    pairs = zip(("loss/train", "loss/test", "accuracy/test"), scores, strict=True)
                    scalars += [(tag, x, step) for tag, x in pairs if math.isfinite(x)]
                for scalar in scalars:
                    writer.add_scalar(*scalar)
