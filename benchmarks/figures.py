"""Measure every figure the project promises and compare it with its target.

    python benchmarks/figures.py [--only GROUP ...] [--repeat N] [--json | --markdown]

Each group runs in a process of its own, so that none inherits another's memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import dense
import graph
import host
import loop
import sparse
import startup
import sweeps
import tensorflow1
from figure import Figure, markdown, middle, table
from rich.console import Console

GROUPS: dict[str, Callable[[], list[Figure]]] = {
    "adam": dense.adam,
    "rules": dense.rules,
    "v1-rules": tensorflow1.rules,
    "clipping": dense.clipping,
    "swept-adamw": sweeps.adamw,
    "swept-larc": sweeps.larc,
    "swept-masters": sweeps.masters,
    "swept-room": sweeps.room,
    "training": loop.training,
    "dead": loop.dead_units,
    "sessions": graph.sessions,
    "gating": tensorflow1.gating,
    "sparse-rows": sparse.rows,
    "sparse-torch": sparse.against_torch,
    "host": host.cost,
    "allocation": host.allocation,
    "recompiling": host.recompiling,
    "import": startup.importing,
    "first-step": startup.first_steps,
}


def _apart(group: str) -> list[Figure] | None:
    """The figures of a group, measured in another process; None if it failed."""
    command = [sys.executable, __file__, "--here", "--json", "--only", group]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return None
    found: list[dict[str, Any]] = json.loads(done.stdout)["figures"]
    return [Figure(**{key: each[key] for key in each if key != "met"}) for each in found]


def main() -> int:
    """Returns 0 if every figure meets its target, 1 if not, 2 if one could not be measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    parser.add_argument("--repeat", type=int, default=1, help="processes; the median counts")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.add_argument("--here", action="store_true", help="measure in this process")
    options = parser.parse_args()
    log = Console(stderr=True)
    figures: list[Figure] = []
    failed: list[str] = []
    for group in options.only:
        if options.here:
            figures += GROUPS[group]()
            continue
        log.print(f"measuring {group} ...", style="dim")
        runs = [_apart(group) for _ in range(options.repeat)]
        complete = [run for run in runs if run is not None]
        if len(complete) < len(runs):
            failed.append(group)
        figures += middle(complete)
    met = sum(figure.met is True for figure in figures)
    unknown = sum(figure.met is None for figure in figures)
    if options.json:
        made = {"met": met, "failed": failed, "figures": [each.as_json() for each in figures]}
        print(json.dumps(made, indent=2))
    elif options.markdown:
        print(markdown(figures))
    else:
        console = Console()
        console.print(table(figures))
        console.print(f"{met} of {len(figures)} figures meet their target.")
        if unknown:
            console.print(f"{unknown} are not to be trusted: other processes were running.")
    if failed:
        log.print(f"Could not be measured: {', '.join(failed)}.", style="red")
        return 2
    return 0 if options.here or met == len(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
