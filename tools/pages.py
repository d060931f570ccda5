"""Look at every page of the built documentation in a browser: `python tools/pages.py`.

    sphinx-build docs docs/_build && python tools/pages.py --out /tmp/pages [--only index,torch]

takes a picture of each page at the widths of a telephone and of a desktop, and of some in dark mode
too. It fails if a page or a part of one is wider than its window, a picture is missing, the console
has an error, or the search does not find a class. It needs Chromium and its driver, which are the
packages `chromium` and `chromium-driver` of Debian, and no network. Links are for `tools/links.py`.
"""

from __future__ import annotations

import argparse
import base64
import functools
import http.server
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
WIDTHS = (390, 1280)
DARK = ("index", "tutorials/torch", "classes/optim/Adam", "gallery")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--force-device-scale-factor=1",
)  # fmt: skip
# What is wider than its window and does not scroll by itself.
LOOK = """
const root = document.documentElement, edge = root.clientWidth + 1, wide = [];
const scrolls = element => {
  for (let each = element; each && each !== document.body; each = each.parentElement)
    if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(each).overflowX)) return true;
  return false;
};
for (const each of document.querySelectorAll('article *')) {
  const box = each.getBoundingClientRect();
  if (box.width && box.right > edge && !scrolls(each))
    wide.push(each.tagName + ' ' + each.textContent.trim().slice(0, 60));
}
const missing = [...document.images].filter(each => each.complete && !each.naturalWidth);
return {width: root.scrollWidth, height: root.scrollHeight, wide: wide.slice(0, 3),
        missing: missing.map(each => each.src)};
"""


class Browser:
    """A page of Chromium, driven by the protocol of WebDriver."""

    def __init__(self, address: str) -> None:
        self._address = address

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Send a request to the driver."""
        request = urllib.request.Request(
            self._address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def run(self, script: str) -> Any:
        """Run a JavaScript function body in the page; return its result."""
        return self.post("/execute/sync", {"script": script, "args": []})

    def devtools(self, command: str, **params: Any) -> Any:
        """Send a command of Chromium's own."""
        return self.post("/goog/cdp/execute", {"cmd": command, "params": params})

    def show(self, address: str, width: int, dark: bool) -> None:
        """Load a page in a window of that width."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[scheme])
        self.post("/url", {"url": address})

    def errors(self) -> list[str]:
        """Return severe console messages since the last call."""
        entries = self.post("/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]

    def picture(self, height: int) -> bytes:
        """Return the page as a PNG, from its top down to that height."""
        clip = {
            "x": 0,
            "y": 0,
            "width": self.run("return innerWidth"),
            "height": height,
            "scale": 1,
        }
        screenshot = self.devtools("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(screenshot["data"])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Return the address at which a folder is read."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            """Write nothing."""

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@contextmanager
def opened() -> Iterator[Browser]:
    """Return a browser without a past."""
    port = _free_port()
    with tempfile.TemporaryDirectory() as profile:
        driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL)
        session = f"http://127.0.0.1:{port}/session"
        capabilities = {
            "goog:chromeOptions": {"args": [*FLAGS, f"--user-data-dir={profile}"]},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        try:
            for _ in range(100):
                try:
                    session_info = Browser(session).post(
                        "", {"capabilities": {"alwaysMatch": capabilities}}
                    )
                    break
                except OSError:
                    time.sleep(0.1)
            else:
                raise SystemExit("chromedriver does not answer.")
            browser = Browser(f"{session}/{session_info['sessionId']}")
            yield browser
            urllib.request.urlopen(
                urllib.request.Request(f"{session}/{session_info['sessionId']}", method="DELETE")
            )
        finally:
            driver.terminate()
            driver.wait()


def look_at(browser: Browser, address: str, page: str, folder: Path | None) -> Iterator[str]:
    """Take the pictures of a page; yield messages about its defects."""
    looks = [(width, False) for width in WIDTHS] + [
        (width, True) for width in WIDTHS if page in DARK
    ]
    for width, dark in looks:
        browser.show(f"{address}{page}.html", width, dark)
        measurements, place = (
            browser.run(LOOK),
            f"{page} at {width}{' in the dark' if dark else ''}",
        )
        if measurements["width"] > width or measurements["wide"]:
            yield f"{place}: {measurements['width']} px wide; {measurements['wide']}"
        yield from (f"{place}: no picture {source}" for source in measurements["missing"])
        yield from (f"{place}: {message}" for message in browser.errors())
        if folder is not None:
            name = f"{page.replace('/', '.')}.{width}{'.dark' if dark else ''}.png"
            (folder / name).write_bytes(browser.picture(min(measurements["height"], 4000)))


def search(browser: Browser, address: str) -> Iterator[str]:
    """Yield a message if the search does not find a class by its name."""
    browser.show(f"{address}search.html?q=AdEMAMix", WIDTHS[1], dark=False)
    for _ in range(100):
        addresses = browser.run(
            "return [...document.querySelectorAll('ul.search li a')].map(a => a.href)"
        )
        if any("AdEMAMix" in found_address for found_address in addresses):
            return
        time.sleep(0.1)
    yield f"the search for AdEMAMix finds {addresses}"


def main() -> int:
    """Check all pages."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--built", type=Path, default=ROOT / "docs" / "_build")
    parser.add_argument("--out", type=Path, help="where pictures go; without it none are taken")
    parser.add_argument("--only", default="", help="pages, with commas between")
    arguments_ = parser.parse_args()
    pages = [
        str(path.relative_to(arguments_.built).with_suffix(""))
        for path in arguments_.built.rglob("*.html")
    ]
    pages = sorted(arguments_.only.split(",") if arguments_.only else set(pages) - {"search"})
    if arguments_.out is not None:
        arguments_.out.mkdir(parents=True, exist_ok=True)
    troubles = []
    with ExitStack() as stack:
        address = stack.enter_context(served(arguments_.built))
        browser = stack.enter_context(opened())
        for page in pages:
            troubles += look_at(browser, address, page, arguments_.out)
        troubles += search(browser, address)
    sys.stdout.write(
        "".join(
            f"{message}\n"
            for message in [*troubles, f"{len(pages)} pages, {len(troubles)} troubles"]
        )
    )
    return 1 if troubles else 0


if __name__ == "__main__":
    sys.exit(main())
