"""Measure every figure the project promises and compare it with its target.

    python benchmarks/figures.py [--only GROUP ...] [--repeat N] [--write | --json]

Each group runs in a process of its own, so that none inherits another's memory. `--write` puts the
figures in `benchmarks/figures.json`, and from there in the tables of README.md and
benchmarks/README.md; `picture.py` draws them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable

import changing
import dense
import drop_ins
import eight_bits
import graph
import host
import loop
import matrices
import modern
import ranks
import record
import rounding
import saving
import sparse
import startup
import steady
import steady_options
import sweeps
import tables
import tensorflow1
import trainings
from figure import Figure, middle, table
from record import Record
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
    "steady": steady.figures,
    "steady-options": steady_options.figures,
    "changing": changing.figures,
    "host": host.host,
    "allocation": host.allocation,
    "recompiling": host.recompiling,
    "saving": saving.files,
    "optim": drop_ins.all_of_them,
    "optim-masters": drop_ins.masters,
    "optim-compiled": drop_ins.compiled,
    "modern": modern.modern,
    "rows": modern.rows,
    "eight-bits": eight_bits.eight_bits,
    "rounding": rounding.rounding,
    "split-weights": eight_bits.split_weights,
    "matrices": matrices.matrices,
    "ranks": ranks.ranks,
    "trainings": trainings.trainings,
    "import": startup.importing,
    "first-step": startup.first_steps,
}


def _apart(group: str) -> list[Figure] | None:
    """The figures of a group, measured in another process; None if it failed."""
    command = [sys.executable, __file__, "--here", "--only", group]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return None
    return record.of_json(json.loads(done.stdout)).groups[group]


def _measured(groups: list[str], repeat: int, log: Console) -> tuple[Record, list[str]]:
    """The figures, and the groups of which a process failed."""
    made, failed = Record(record.machine(), {}), []
    for group in groups:
        log.print(f"measuring {group} ...", style="dim")
        runs = [_apart(group) for _ in range(repeat)]
        complete = [run for run in runs if run is not None]
        if len(complete) < len(runs):
            failed.append(group)
        made.groups[group] = middle(complete)
    return made, failed


def _print(made: Record) -> None:
    console, figures = Console(), list(made.figures.values())
    console.print(table(figures))
    console.print(f"{made.place}.")
    judged = [figure for figure in figures if figure.met]
    met = sum(figure.met == "yes" for figure in judged)
    console.print(f"{met} of {len(judged)} figures meet their target.")
    if unknown := sum(figure.met == "?" for figure in judged):
        console.print(f"{unknown} are not to be trusted: other processes were running.")


def main() -> int:
    """Returns 0 if every figure meets its target, 1 if not, 2 if one could not be measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    parser.add_argument("--repeat", type=int, default=1, help="processes; the median counts")
    parser.add_argument("--write", action="store_true", help="write figures.json and both tables")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.add_argument("--here", action="store_true", help="measure in this process, print JSON")
    options = parser.parse_args()
    if options.here:
        found = {group: GROUPS[group]() for group in options.only}
        print(json.dumps(Record(record.machine(), found).as_json()))
        return 0
    log = Console(stderr=True)
    made, failed = _measured(options.only, options.repeat, log)
    figures = list(made.figures.values())
    if options.json:
        print(json.dumps({**made.as_json(), "failed": failed}, indent=2))
    else:
        _print(made)
    if options.write:
        whole = record.combine(record.load(), made, GROUPS, is_complete=not failed)
        whole.save()
        tables.write(whole)
    if failed:
        log.print(f"Could not be measured: {', '.join(failed)}.", style="red")
        return 2
    return 0 if all(figure.met in ("yes", "") for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
