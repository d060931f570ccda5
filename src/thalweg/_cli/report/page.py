"""Page that shows trainings: strips of layers by steps, the loss above, and the first unusual
layers.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Sequence
from importlib import resources
from string import Template
from typing import Any, NamedTuple

from thalweg._cli.report.bins import Bins, encode, keep_largest, make_bins
from thalweg._cli.report.history import History
from thalweg._cli.report.json_values import json_number, plain_number
from thalweg.diagnostics.spikes import Warned
from thalweg.version import __version__

LISTED = 200  # warnings
# What the page's script is made of, each using those before it.
SCRIPTS = ("numbers", "colors", "elements", "curve", "training", "pointing", "page")


class TrainingReport(NamedTuple):
    """A training, as a page shows it.

    Attributes:
        history: What is known of its steps.
        name: Beside others.
        summary: What there is to say of it, besides what its history does.
        note: Why it has no strips, if that is so.
    """

    history: History
    name: str = ""
    summary: str = ""
    note: str = ""


class Drawn(NamedTuple):
    """A column that is drawn, and its words."""

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
    """Return the page as HTML, which needs nothing beside it.

    Args:
        trainings: One or several, over the same axis of steps.
        title: Of the page.
        facts: What there is to say of all.
    """
    files = resources.files("thalweg._cli.report")
    html_text, style = ((files / f"page.{kind}").read_text("utf-8") for kind in ("html", "css"))
    scripts = [(files / "scripts" / f"{each}.js").read_text("utf-8") for each in SCRIPTS]
    return Template(html_text).substitute(
        title=html.escape(title),
        style=style,
        script="".join(scripts),
        data=_as_text(describe(trainings, title, facts)),
    )


def _as_text(value: object) -> str:
    """JSON that ends no element of HTML, whatever names hold."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def describe(trainings: Sequence[TrainingReport], title: str, facts: str = "") -> dict[str, Any]:
    """Return the data of the page, as its script reads them."""
    steps = [step for each in trainings for step in _span(each.history)]
    first, last = min(steps, default=0), max(steps, default=0)
    bins = make_bins(first, last, min(_find_spacing(each.history) for each in trainings))
    return {
        "title": title,
        "facts": facts,
        "foot": f"{_tell_bins(bins)} thalweg {__version__}.",
        "bins": {**bins._asdict(), "last": last},
        "trainings": [_describe_training(each, bins) for each in trainings],
    }


def _span(history: History) -> list[int]:
    """The first and the last step; empty without any."""
    steps = history.losses.keys() | history.rows.keys()
    return [min(steps), max(steps)] if steps else []


def _find_spacing(history: History) -> int:
    if len(history.losses) > len(history.rows) or len(history.rows) <= 1:
        return 1
    return history.every


def _describe_training(training: TrainingReport, bins: Bins) -> dict[str, Any]:
    history = training.history
    places = {name: place for place, name in enumerate(history.names)}
    warned = sorted(history.warned, key=lambda each: each.step)
    return {
        "name": training.name,
        "summary": training.summary,
        "facts": ". ".join(_tell_facts(history)) + ".",
        "note": training.note,
        "names": history.names,
        "loss": _bin_losses(history, bins),
        "columns": [
            {**each._asdict(), "codes": encode(keep_largest(bins, *found).T.copy())}
            for each in COLUMNS
            if len((found := history.column(each.key))[0])
        ],
        "warned": [_list_warned(each, places) for each in warned[:LISTED]],
        "more": max(0, len(warned) - LISTED),
        "resumed": history.resumed,
    }


def _tell_facts(history: History) -> Iterable[str]:
    first, last = _span(history) or (0, 0)
    every = "each step" if history.every == 1 else f"every {history.every} steps"
    layers = f", {len(history.names):,} layers, measured {every}" if history.names else ""
    yield f"Steps {first:,} to {last:,}{layers}"
    finite = [each for each in history.losses.values() if math.isfinite(each)]
    if finite:
        latest = next(reversed(history.losses.values()))
        yield f"Loss from {finite[0]:.4g} to {latest:.4g}"
    if history.resumed:
        yield f"Resumed at step {', '.join(f'{each:,}' for each in history.resumed[:10])}"
    if history.damaged:
        yield tell_damaged(history.damaged).removesuffix(".")


def tell_damaged(count: int) -> str:
    """Return a sentence with the number of lines that were skipped."""
    return f"{count:,} damaged {'line was' if count == 1 else 'lines were'} skipped."


def _tell_bins(bins: Bins) -> str:
    if bins.width == 1:
        return "A column is a step."
    return f"A column is {bins.width:,} steps, and shows the largest number of them."


def _bin_losses(history: History, bins: Bins) -> dict[str, list[float | str | None]]:
    found: dict[str, list[float | str | None]] = {}
    values: list[list[float]] = [[] for _ in range(bins.count)]
    for step, loss in history.losses.items():
        values[(step - bins.first) // bins.width].append(loss)
    for key, take in (("low", min), ("high", max), ("mean", lambda of: sum(of) / len(of))):
        found[key] = [json_number(_worst(each) or take(each)) if each else None for each in values]
    return found


def _worst(values: list[float]) -> float | None:
    """One that is not finite, if there is one: it must not be lost in a mean."""
    return next((each for each in values if not math.isfinite(each)), None)


def _list_warned(warned: Warned, places: dict[str, int]) -> list[Any]:
    """Return a warning as the script reads it, with indices of layers in place of names."""
    numbers = plain_number(warned.number), plain_number(warned.usual)
    # Layers without a drawn column have no place.
    layers = [places[name] for name in warned.layers if name in places]
    return [places.get(warned.name, -1), warned.step, warned.what, *numbers, warned.kind, layers]
