"""Measure all figures of the project and compare them with their targets.

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
    """Measure a group in another process; return its figures, or None if it failed."""
    command = [sys.executable, __file__, "--here", "--only", group]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if process.returncode:
        return None
    return record.of_json(json.loads(process.stdout)).groups[group]


def _measured(groups: list[str], repeat: int, log: Console) -> tuple[Record, list[str]]:
    """Measure groups; return the figures, and the groups of which a process failed."""
    measurements, failed = Record(record.machine(), {}), []
    for group in groups:
        log.print(f"measuring {group} ...", style="dim")
        runs = [_apart(group) for _ in range(repeat)]
        complete = [run for run in runs if run is not None]
        if len(complete) < len(runs):
            failed.append(group)
        measurements.groups[group] = middle(complete)
    return measurements, failed


def _print(measurements: Record) -> None:
    console, figures = Console(), list(measurements.figures.values())
    console.print(table(figures))
    console.print(f"{measurements.place}.")
    with_target = [figure for figure in figures if figure.met]
    met_count = sum(figure.met == "yes" for figure in with_target)
    console.print(f"{met_count} of {len(with_target)} figures meet their target.")
    if unknown := sum(figure.met == "?" for figure in with_target):
        console.print(f"{unknown} are not to be trusted: other processes were running.")


def main() -> int:
    """Return 0 if all figures meet their targets, 1 if not, 2 if one could not be measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    parser.add_argument("--repeat", type=int, default=1, help="processes; the median counts")
    parser.add_argument("--write", action="store_true", help="write figures.json and both tables")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.add_argument("--here", action="store_true", help="measure in this process, print JSON")
    options = parser.parse_args()
    if options.here:
        groups = {group: GROUPS[group]() for group in options.only}
        print(json.dumps(Record(record.machine(), groups).as_json()))
        return 0
    log = Console(stderr=True)
    measurements, failed = _measured(options.only, options.repeat, log)
    figures = list(measurements.figures.values())
    if options.json:
        print(json.dumps({**measurements.as_json(), "failed": failed}, indent=2))
    else:
        _print(measurements)
    if options.write:
        combined_record = record.combine(
            record.load(), measurements, GROUPS, is_complete=not failed
        )
        combined_record.save()
        tables.write(combined_record)
    if failed:
        log.print(f"Could not be measured: {', '.join(failed)}.", style="red")
        return 2
    return 0 if all(figure.met in ("yes", "") for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
