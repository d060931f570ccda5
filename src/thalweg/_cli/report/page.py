"""HTML page of trainings: loss curves, strips of layers by steps, and warnings."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from string import Template
from typing import Any, NamedTuple

from thalweg._cli.report.bins import Bins, encode, keep_largest, make_bins
from thalweg._cli.report.history import History
from thalweg._cli.report.json_values import json_number, plain_number
from thalweg.diagnostics.spikes import Warned
from thalweg.version import __version__

# The number of warnings listed per training.
MAX_WARNINGS = 200
# Parts of the page's script, in order of dependency.
SCRIPTS = ("numbers", "colors", "elements", "curve", "training", "pointing", "page")


class TrainingReport(NamedTuple):
    """Training to show on a page.

    Attributes:
        history: The records of the steps.
        name: The name, if the page has several trainings.
        summary: Facts beyond those in the history.
        note: The reason why there are no strips, or "".
    """

    history: History
    name: str = ""
    summary: str = ""
    note: str = ""


class Drawn(NamedTuple):
    """Plotted column with its titles."""

    key: str
    title: str
    short: str
    unit: str


COLUMNS = (
    Drawn("ratio", "Update beside weight", "update / weight",
          "norm of the update / norm of the weights, each step; logarithmic"),
    Drawn("gradient_norm", "Gradient norm", "gradient norm",
          "L2 norm of the gradient, each step; logarithmic"),
)  # fmt: skip


def draw(trainings: Sequence[TrainingReport], title: str, facts: str = "") -> str:
    """Return a self-contained HTML page.

    Args:
        trainings: The trainings, shown over a common axis of steps.
        facts: A text about all trainings.
    """
    files = resources.files("thalweg._cli.report")
    html_text, style = ((files / f"page.{kind}").read_text("utf-8") for kind in ("html", "css"))
    scripts = [
        (files / "scripts" / f"{script_name}.js").read_text("utf-8") for script_name in SCRIPTS
    ]
    return Template(html_text).substitute(
        title=html.escape(title),
        style=style,
        script="".join(scripts),
        data=_as_text(describe(trainings, title, facts)),
    )


def _as_text(value: object) -> str:
    """Return JSON with HTML's special characters escaped."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def describe(trainings: Sequence[TrainingReport], title: str, facts: str = "") -> dict[str, Any]:
    """Return the data for the page's script as JSON values."""
    steps = [step for training in trainings for step in _span(training.history)]
    initial, final = min(steps, default=0), max(steps, default=0)
    # Losses of steps without a table have a column of their own.
    intervals = [history.interval if 1 < len(history.rows) >= len(history.losses) else 1
                 for history, *_ in trainings]  # fmt: skip
    bins = make_bins(initial, final, min(intervals))
    bins_text = f"{bins.width:,} steps, and shows the largest number of them"
    return {
        "title": title,
        "facts": facts,
        "foot": f"A column is {'a step' if bins.width == 1 else bins_text}. thalweg {__version__}.",
        "bins": {**bins._asdict(), "last": final},
        "trainings": [_describe_training(training, bins) for training in trainings],
    }


def _span(history: History) -> list[int]:
    """Return the first and the last step; empty without steps."""
    steps = history.losses.keys() | history.rows.keys()
    return [min(steps), max(steps)] if steps else []


def _describe_training(training: TrainingReport, bins: Bins) -> dict[str, Any]:
    history = training.history
    index_by_name = {name: index for index, name in enumerate(history.names)}
    warnings = sorted(history.warnings, key=lambda warning: warning.step)
    return {
        "name": training.name,
        "summary": training.summary,
        "facts": ". ".join(_tell_facts(history)) + ".",
        "note": training.note,
        "names": history.names,
        "loss": _bin_losses(history, bins),
        "columns": [
            {**column._asdict(), "codes": encode(keep_largest(bins, *column_data).T.copy())}
            for column in COLUMNS
            if len((column_data := history.column(column.key))[0])
        ],
        "warned": [_list_warned(warning, index_by_name) for warning in warnings[:MAX_WARNINGS]],
        "more": max(0, len(warnings) - MAX_WARNINGS),
        "resumed": history.resumed,
    }


def _tell_facts(history: History) -> Iterable[str]:
    initial, final = _span(history) or (0, 0)
    interval = "each step" if history.interval == 1 else f"every {history.interval} steps"
    layers = f", {len(history.names):,} layers, measured {interval}" if history.names else ""
    yield f"Steps {initial:,} to {final:,}{layers}"
    finite = [loss for loss in history.losses.values() if math.isfinite(loss)]
    if finite:
        latest = next(reversed(history.losses.values()))
        yield f"Loss from {finite[0]:.4g} to {latest:.4g}"
    if history.resumed:
        yield f"Resumed at step {', '.join(f'{step:,}' for step in history.resumed[:10])}"
    if history.damaged:
        yield tell_damaged(history.damaged).removesuffix(".")


def tell_damaged(count: int) -> str:
    """Return a sentence with the number of skipped lines."""
    return f"{count:,} damaged {'line was' if count == 1 else 'lines were'} skipped."


def _bin_losses(history: History, bins: Bins) -> dict[str, list[float | str | None]]:
    summaries: dict[str, list[float | str | None]] = {}
    values: list[list[float]] = [[] for _ in range(bins.count)]
    for step, loss in history.losses.items():
        values[(step - bins.first) // bins.width].append(loss)
    reductions: dict[str, Callable[[list[float]], float]] = {
        "low": min, "high": max, "mean": lambda losses: sum(losses) / len(losses),
    }  # fmt: skip
    for key, reduce in reductions.items():
        summaries[key] = [
            json_number(_worst(bin_losses) or reduce(bin_losses)) if bin_losses else None
            for bin_losses in values
        ]
    return summaries


def _worst(values: list[float]) -> float | None:
    """Return the first value that is not finite, or None; a bin must show such a value."""
    return next((value for value in values if not math.isfinite(value)), None)


def _list_warned(warning: Warned, indices: dict[str, int]) -> list[Any]:
    """Return a warning as a list for the page's script, with indices in place of layer names."""
    values = plain_number(warning.number), plain_number(warning.usual)
    # Layers without a plotted column have no index.
    layers = [indices[name] for name in warning.layers if name in indices]
    return [
        indices.get(warning.name, -1),
        warning.step,
        warning.what,
        *values,
        warning.kind,
        layers,
    ]
