"""Plot of a race: training loss and accuracy on the test examples."""

# matplotlib does not annotate all of its methods.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from thalweg._cli.race import report
from thalweg._cli.race.outcome import RaceOutcome
from thalweg._cli.race.run import Race
from thalweg._cli.race.standings import Standing, rank_contestants

# Distinct for colour-blind readers: the palette of Okabe and Ito, then dashes.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
SMOOTHING = 25
# Maximum characters of a line of the title.
TITLE = 110
# Maximum characters of a name in the legend, to leave space for the curves.
NAME = 30


def save(outcome: RaceOutcome, path: Path) -> None:
    """Plot the races to a PNG file."""
    chart = figure(outcome.races)
    with report.whole(path) as file:
        chart.savefig(file, format="png")


def figure(races: Sequence[Race]) -> Any:
    """Return a matplotlib figure of the races; several seeds are drawn as means with ranges."""
    # `Figure` instead of pyplot avoids global state, backends and windows.
    from matplotlib.figure import Figure

    chart = Figure(figsize=(11, 4.8), dpi=150, layout="constrained")
    loss_axes, accuracy_axes = chart.subplots(1, 2, width_ratios=(3, 2))
    for number, ranked in enumerate(rank_contestants(races)):
        _draw_lane(loss_axes, accuracy_axes, ranked, {**style_of(number), "linewidth": 1.6})
    loss_axes.set_title("loss on the training batches, smoothed", loc="left", fontsize=10)
    loss_axes.set_ylabel("cross-entropy (nats)")
    _scale_axes(loss_axes, races)
    accuracy_axes.set_title("accuracy on the test examples", loc="left", fontsize=10)
    lanes = [lane for race in races for lane in race.lanes]
    accuracies = [point.scores.test_accuracy for lane in lanes for point in lane.evaluations]
    if accuracies:
        # A quantile, because the slowest start would compress all later accuracies.
        low, high = np.nanquantile(accuracies, 0.05), np.nanmax(accuracies)
        margin = max(high - low, 0.01) * 0.08
        accuracy_axes.set_ylim(float(low - margin), float(high + margin))
    accuracy_axes.yaxis.set_major_formatter(format_percent)
    for axes in (loss_axes, accuracy_axes):
        axes.set_xlabel("step")
        axes.set_xlim(0, races[0].steps * 1.01)
        axes.grid(alpha=0.25, which="both", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    accuracy_axes.legend(
        frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5), title="best first",
        alignment="left",
    )  # fmt: skip
    facts = report.format_epochs(races[0]), report.format_seeds(races)
    title = ", ".join((races[0].problem.description, *facts))
    chart.suptitle(textwrap.fill(title, TITLE), fontsize=11)
    return chart


def style_of(number: int) -> dict[str, Any]:
    """Return color and line style of the curve with a number: all colors in turn, then dashed."""
    line_style = ("-", "--", ":")[number // len(COLORS) % 3]
    return {"color": COLORS[number % len(COLORS)], "linestyle": line_style}


def format_percent(share: float, _position: object = None) -> str:
    """Return a share as a percentage, for the ticks of an axis."""
    return f"{100 * share:.3g} %"


def _draw_lane(
    loss_axes: Any, accuracy_axes: object, ranked: Standing, style: dict[str, Any]
) -> None:
    lanes, lane = ranked.lanes, ranked.lanes[0]
    curves = [smooth_losses(losses[np.isfinite(losses)], SMOOTHING)
              for losses in (np.asarray(seed_lane.losses) for seed_lane in lanes)]  # fmt: skip
    length = min(map(len, curves))
    steps = np.arange(1, length + 1)
    smooth = _draw_curves(loss_axes, steps, [curve[:length] for curve in curves], style)
    if ranked.diverged and length:
        loss_axes.plot(length, smooth[-1], "x", color=style["color"], markersize=8)
    rate = "" if lane.learning_rate is None else f" (lr {lane.learning_rate:g})"
    count = min(len(seed_lane.evaluations) for seed_lane in lanes)
    accuracies = [[point.scores.test_accuracy for point in seed_lane.evaluations[:count]]
                  for seed_lane in lanes]  # fmt: skip
    end = "NaN" if ranked.diverged else f"{ranked.accuracy:.1%}" if count else ""
    name = lane.name if len(lane.name) <= NAME else f"...{lane.name[3 - NAME :]}"
    style = {**style, "marker": "o", "markersize": 3, "label": f"{name}{rate} {end}"}
    _draw_curves(
        accuracy_axes, [point.step for point in lane.evaluations[:count]], accuracies, style
    )


def _draw_curves(axes: Any, steps: Any, curves: Sequence[Any], style: dict[str, Any]) -> np.ndarray:
    """Plot the mean of `curves` and shade the range of `curves`; return the mean."""
    values = np.asarray(curves)
    mean = values.mean(0)
    axes.plot(steps, mean, **style)
    if len(curves) > 1:
        axes.fill_between(
            steps, values.min(0), values.max(0), color=style["color"], alpha=0.12, linewidth=0
        )
    return mean


def smooth_losses(losses: np.ndarray, window: int) -> np.ndarray:
    """Return the mean of the last `window` losses, fewer at the beginning."""
    total = np.concatenate([[0.0], np.cumsum(losses)])
    ends = np.arange(1, len(losses) + 1)
    starts = np.maximum(ends - window, 0)
    return (total[ends] - total[starts]) / (ends - starts)


def _scale_axes(axes: Any, races: Sequence[Race]) -> None:
    lanes = [lane for race in races for lane in race.lanes]
    finals = [lane.scores.train_loss for lane in lanes if lane.diverged_at is None]
    start = max((lane.losses[0] for lane in lanes if lane.losses), default=1.0)
    # Logarithmic if the losses span over a decade; limited, so that divergence does not dominate.
    if finals and 0 < min(finals) < start / 10:
        axes.set_yscale("log")
    axes.set_ylim(top=start * 1.1)
