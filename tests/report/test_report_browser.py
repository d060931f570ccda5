"""The page in a browser: no errors, nothing wider than the window, tooltips with values."""

from __future__ import annotations

import html
import json
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from thalweg._cli.report.history import History
from thalweg._cli.report.page import TrainingReport, draw
from thalweg.diagnostics.spikes import Warned

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--enable-logging=stderr", "--hide-scrollbars", "--dump-dom",
)  # fmt: skip
HOSTILE = "</script><img src=x onerror=fail()>"
# Points at the middle of the second row of a strip, opens all, and leaves what it saw in the page.
LOOK = """<script>
addEventListener("load", () => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const strip = document.querySelectorAll(".strip[tabindex]")[0];
  const box = strip.getBoundingClientRect();
  const send = (type, target, x, y) => target.dispatchEvent(
    new PointerEvent(type, {clientX: x, clientY: y, pointerType: "mouse"}));
  const tip = document.getElementById("tip");
  send("pointermove", strip, box.left + box.width * 0.5045, box.top + box.height * 0.75);
  const told = tip.textContent, shown = !tip.hidden;
  send("pointerleave", strip, 0, 0);
  const hidden = tip.hidden;
  strip.focus();
  strip.dispatchEvent(new KeyboardEvent("keydown", {key: "Home"}));
  document.querySelectorAll("details").forEach((each) => { each.open = true; });
  document.querySelectorAll(".switch input")[1].click();
  const canvas = document.querySelector(".strip canvas");
  const pixel = canvas.getContext("2d").getImageData(1, 0, 1, 1).data;
  const result = document.createElement("output");
  result.id = "result";
  result.textContent = JSON.stringify({
    drawn: document.documentElement.dataset.drawn, told, shown, hidden, inner: innerWidth,
    wide: document.documentElement.scrollWidth, images: document.images.length,
    cut: all(".name").filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.textContent),
    pixel: [...pixel], headings: all("h1, h2.title, #contents a").map((e) => e.textContent),
    lead: all(".lead")[0].textContent, marks: all(".strip[tabindex] .mark").length,
    relative: all(".switch input:checked").map((e) => e.value),
    navigation: performance.now(),
  });
  parent.document.body.append(result);
});
</script>"""


def history() -> History:
    """Return a history of 1,000 steps of 300 layers."""
    log, rng = History(), np.random.default_rng(0)
    parts = (
        "attention.queries.weight",
        "a.very.long.name.of.a.projection.of.something.weight",
        "bias",
    )
    log.names = ["embedding.weight", HOSTILE]
    log.names += [f"transformer.layers.{place // 3}.{parts[place % 3]}" for place in range(298)]
    for step in range(1, 1001):
        log.losses[step] = 3 + 1 / step
        log.rows[step] = {"ratio": rng.lognormal(-7, 1, 300), "gradient_norm": np.ones(300)}
    log.rows[505]["ratio"][1] = 0.1234
    words = f"2 layers left their band, farthest {HOSTILE}: update beside weight"
    crowd = ("embedding.weight", HOSTILE)
    log.warnings = [Warned("", 505, words, 0.1234, 0.001, "batch", crowd)]
    return log


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("is_multiple", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_report_page_renders_in_a_browser(width: int, is_multiple: bool, tmp_path: Path) -> None:
    trainings = [TrainingReport(history())]
    if is_multiple:
        unmeasured, diverged = History(), history()
        unmeasured.losses = {step: 4.0 + step for step in range(1, 401)}
        diverged.losses |= {600: math.nan, 601: 1e300}
        trainings = [TrainingReport(history(), HOSTILE, HOSTILE), TrainingReport(diverged, "b"),
                     TrainingReport(unmeasured, "c" * 99, note=HOSTILE)]  # fmt: skip
    page = draw(trainings, HOSTILE, HOSTILE).replace("</body>", f"{LOOK}</body>")
    frame = tmp_path / "frame.html"  # no window is as narrow as a telephone, but a frame in it
    look = f'<iframe width="{width}" height="900" style="border:0" srcdoc="{html.escape(page)}">'
    frame.write_text(f'<meta charset="utf-8"><body>{look}', "utf-8")
    command = (
        str(CHROMIUM),
        *FLAGS,
        f"--user-data-dir={tmp_path / 'data'}",
        "--window-size=1400,950",
    )
    process = subprocess.run([*command, frame.as_uri()], capture_output=True, text=True, timeout=60)
    assert "CONSOLE" not in process.stderr, process.stderr
    (text,) = re.findall(r'<output id="result">(.*?)</output>', process.stdout)
    state: dict[str, Any] = json.loads(html.unescape(text))
    assert state["drawn"] == "yes"
    assert state["told"].startswith(HOSTILE)
    assert "update / weight 0.1234" in state["told"]
    assert "step 505, loss 3.002" in state["told"]
    assert (state["shown"], state["hidden"]) == (True, True)
    assert state["inner"] == width
    assert state["wide"] <= width
    assert state["images"] == 0
    names = [HOSTILE, "b", "c" * 99] if is_multiple else []
    numbered = [f"{number}. {name}" for number, name in enumerate(names, 1)]
    assert state["headings"] == [HOSTILE, *names, *numbered]
    assert state["relative"] == ["usual"] * (2 if is_multiple else 1)
    assert not state["cut"]
    assert state["lead"].startswith(
        f"batch at step 505: 2 layers left their band, farthest {HOSTILE}"
    )
    # A ring per layer and column, in each training with layers.
    assert state["marks"] == (8 if is_multiple else 4)
    assert state["pixel"][3] == 255
    assert state["navigation"] < 10_000  # generous: other processes may have the cores
