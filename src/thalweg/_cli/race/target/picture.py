"""Plot of a race to a target: performance profiles by steps and by time."""

# matplotlib does not annotate all of its methods.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from thalweg._cli.race import report
from thalweg._cli.race.plot import format_percent, style_of
from thalweg._cli.race.standings import format_ranks
from thalweg._cli.race.target.profile import LONGEST, RankedRun, curve_of, ratios_of
from thalweg._cli.race.target.results import Results, StudyPlan
from thalweg._cli.race.target.summary import Summary

BY_TIME = ("by time of the processor", "by time")
# Vertical distance between curves that would coincide.
CURVE_DISTANCE = 0.008


def save(results: Results, summary: Summary, path: Path) -> None:
    """Plot the results to an SVG file, deterministically."""
    import matplotlib

    chart = figure(results.plan, summary)
    options: Any = {"svg.hashsalt": "thalweg", "svg.fonttype": "none"}
    with matplotlib.rc_context(options), report.whole(path) as file:
        chart.savefig(file, format="svg", metadata={"Date": None})


def figure(plan: StudyPlan, summary: Summary) -> Any:
    """Return a matplotlib figure of the profiles by steps and by time."""
    from matplotlib.figure import Figure

    chart = Figure(figsize=(11, 4.6), dpi=150, layout="constrained")
    styles = {name: style_of(index) for index, name in enumerate(plan.spaces)}
    for axes, title, ranking in zip(
        chart.subplots(1, 2, sharey=True), ("by steps", BY_TIME[summary.by_clock]),
        (summary.steps, summary.seconds), strict=True,
    ):  # fmt: skip
        _draw_profiles(axes, ranking, styles)
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xlabel("tau: times the steps of the best" if title == "by steps"
                        else "tau: times the seconds of the best")  # fmt: skip
    chart.axes[0].set_ylabel("problems within tau of the best")
    chart.suptitle(
        f"To the target on {', '.join(plan.problems)}: the fastest of {plan.trials} trials, median"
        f" of {plan.studies} {'study' if plan.studies == 1 else 'studies'}",
        fontsize=11,
    )
    return chart


def _draw_profiles(
    axes: Any, ranking: Sequence[RankedRun], styles: Mapping[str, dict[str, Any]]
) -> None:
    problems = list(ranking[0].costs)
    costs = {name: {run.name: run.costs[name] for run in ranking} for name in problems}
    ratios = ratios_of(costs)
    middle = (len(ranking) - 1) / 2
    for index, run in enumerate(ranking):
        taus, fractions = curve_of(ratios[run.name])
        ranks = format_ranks(run.first, run.last)
        axes.plot(
            taus, [fraction + CURVE_DISTANCE * (middle - index) for fraction in fractions],
            drawstyle="steps-post", linewidth=1.8, **styles[run.name],
            label=f"{run.name.removeprefix('optim:')} {run.score:.2f} (rank {ranks})",
        )  # fmt: skip
    axes.set_xlim(1, LONGEST)
    axes.set_ylim(-0.04, 1.04)
    axes.set_yticks([index / len(problems) for index in range(len(problems) + 1)])
    axes.yaxis.set_major_formatter(format_percent)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2,
        title="score", alignment="left",
    )  # fmt: skip
