"""A race as TensorBoard events: one run per contestant."""

from __future__ import annotations

import math
from pathlib import Path

from thalweg.race.run import Race


def save(race: Race, logdir: Path) -> None:
    """Write `logdir/<problem>/<optimizer>` for every contestant."""
    from torch.utils.tensorboard.writer import SummaryWriter

    for lane in race.lanes:
        folder = lane.name.replace("/", "_").replace(":", "_")
        with SummaryWriter(str(logdir / race.problem.name / folder)) as writer:
            for step, loss in enumerate(lane.losses, 1):
                writer.add_scalar("loss/batch", loss, step)
            for step, scores in lane.evaluations:
                for tag, value in zip(
                    ("loss/train", "loss/test", "accuracy/test"), scores, strict=True
                ):
                    if math.isfinite(value):
                        writer.add_scalar(tag, value, step)
