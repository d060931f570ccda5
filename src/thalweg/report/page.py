"""One page that shows a training: strips of layers by steps, the loss above, what went first."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable
from importlib import resources
from string import Template
from typing import Any, NamedTuple

from thalweg.diagnostics.spikes import Warned
from thalweg.report.bins import Bins, encode, keep_largest, make_bins
from thalweg.report.history import History
from thalweg.report.plain import json_number, plain_number
from thalweg.version import __version__

LISTED = 200  # warnings


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


def draw(history: History, title: str) -> str:
    """The page as HTML, which needs nothing beside it."""
    files = resources.files("thalweg.report")
    parts = {kind: (files / f"page.{kind}").read_text("utf-8") for kind in ("html", "css", "js")}
    return Template(parts["html"]).substitute(
        title=html.escape(title),
        style=parts["css"],
        script=parts["js"],
        data=_as_text(describe(history, title)),
    )


def _as_text(value: object) -> str:
    """JSON that ends no element of HTML, whatever names hold."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def describe(history: History, title: str) -> dict[str, Any]:
    """What the page draws, as its script reads it."""
    steps = sorted(history.losses.keys() | history.rows.keys())
    first, last = (steps[0], steps[-1]) if steps else (0, 0)
    spacing = 1 if len(history.losses) > len(history.rows) else history.every
    bins = make_bins(first, last, spacing if len(history.rows) > 1 else 1)
    places = {name: place for place, name in enumerate(history.names)}
    warned = sorted(history.warned, key=lambda each: each.step)
    return {
        "title": title,
        "facts": ". ".join(_tell_facts(history, first, last)) + ".",
        "foot": f"{_tell_bins(bins)} thalweg {__version__}.",
        "bins": {**bins._asdict(), "last": last},
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


def _tell_facts(history: History, first: int, last: int) -> Iterable[str]:
    every = "each step" if history.every == 1 else f"every {history.every} steps"
    yield f"Steps {first:,} to {last:,}, {len(history.names):,} layers, measured {every}"
    finite = [each for each in history.losses.values() if math.isfinite(each)]
    if finite:
        latest = next(reversed(history.losses.values()))
        yield f"Loss from {finite[0]:.4g} to {latest:.4g}"
    if history.resumed:
        yield f"Resumed at step {', '.join(f'{each:,}' for each in history.resumed[:10])}"
    if history.damaged:
        yield tell_damaged(history.damaged).removesuffix(".")


def tell_damaged(count: int) -> str:
    """How many lines were skipped, in words."""
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


def _list_warned(each: Warned, places: dict[str, int]) -> list[Any]:
    numbers = plain_number(each.number), plain_number(each.usual)
    return [places.get(each.name, -1), each.step, each.what, *numbers, each.kind]
