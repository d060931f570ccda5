"""The picture of a race: loss while training, and accuracy on the test examples."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.race import report
from thalweg.race.run import Lane, Race

# Distinct for colour-blind readers: the palette of Okabe and Ito, then dashes.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
SMOOTHING = 25
TITLE = 110  # characters of a line of the title
NAME = 30  # and of a name in the legend, which would leave the curves no room


def save(race: Race, path: Path) -> None:
    """Draw the race to a PNG file."""
    made = figure(race)
    with report.whole(path) as file:
        made.savefig(file, format="png")


def figure(race: Race) -> Any:
    """The picture, as matplotlib's `Figure`."""
    # Figure instead of pyplot: no global state, no backend, no window.
    from matplotlib.figure import Figure

    made = Figure(figsize=(11, 4.8), dpi=150, layout="constrained")
    left, right = made.subplots(1, 2, width_ratios=(3, 2))
    for number, lane in enumerate(race.ranked()):
        style = {
            "color": COLORS[number % len(COLORS)],
            "linestyle": ("-", "--", ":")[number // len(COLORS) % 3],
            "linewidth": 1.6,
        }
        _lane(left, right, lane, style)
    left.set_title("loss on the training batches, smoothed", loc="left", fontsize=10)
    left.set_ylabel("cross-entropy (nats)")
    _scale(left, race)
    right.set_title("accuracy on the test examples", loc="left", fontsize=10)
    accuracies = [point.scores.test_accuracy for lane in race.lanes for point in lane.evaluations]
    if accuracies:
        # The slowest start would otherwise press all that follows against the top.
        low, high = np.nanquantile(accuracies, 0.05), np.nanmax(accuracies)
        margin = max(high - low, 0.01) * 0.08
        right.set_ylim(float(low - margin), float(high + margin))
    right.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
    for axes in (left, right):
        axes.set_xlabel("step")
        axes.set_xlim(0, race.steps * 1.01)
        axes.grid(alpha=0.25, which="both", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    right.legend(
        frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5), title="best first",
        alignment="left",
    )  # fmt: skip
    title = f"{race.problem.description}, {report.epochs(race)}, seed {race.seed}"
    made.suptitle(textwrap.fill(title, TITLE), fontsize=11)
    return made


def _lane(left: Any, right: Any, lane: Lane, style: dict[str, Any]) -> None:
    finite = np.isfinite(lane.losses)
    losses = np.asarray(lane.losses)[finite]
    smooth = smoothed(losses, SMOOTHING)
    left.plot(np.arange(1, len(smooth) + 1), smooth, **style)
    if lane.diverged_at is not None and len(smooth):
        left.plot(len(smooth), smooth[-1], "x", color=style["color"], markersize=8)
    rate = "" if lane.learning_rate is None else f" (lr {lane.learning_rate:g})"
    steps = [evaluation.step for evaluation in lane.evaluations]
    accuracy = [evaluation.scores.test_accuracy for evaluation in lane.evaluations]
    end = "NaN" if lane.diverged_at is not None else f"{accuracy[-1]:.1%}" if accuracy else ""
    name = lane.name if len(lane.name) <= NAME else f"...{lane.name[3 - NAME :]}"
    right.plot(steps, accuracy, marker="o", markersize=3, label=f"{name}{rate} {end}", **style)


def smoothed(losses: np.ndarray, window: int) -> np.ndarray:
    """The mean of the last `window` losses, fewer at the beginning."""
    total = np.concatenate([[0.0], np.cumsum(losses)])
    last = np.arange(1, len(losses) + 1)
    first = np.maximum(last - window, 0)
    return (total[last] - total[first]) / (last - first)


def _scale(axes: Any, race: Race) -> None:
    finals = [lane.scores.train_loss for lane in race.lanes if lane.diverged_at is None]
    start = max((lane.losses[0] for lane in race.lanes), default=1.0)
    # A logarithmic scale where the losses span more than a decade; never one ruled by a blow-up.
    if finals and 0 < min(finals) < start / 10:
        axes.set_yscale("log")
    axes.set_ylim(top=start * 1.1)
