"""Record of the latest figures, in `figures.json`."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from figure import Figure

from thalweg._cli.bench.table import processor_name
from thalweg._engines.cpu import machine_code

FILE = Path(__file__).with_name("figures.json")


@dataclass
class Record:
    """Figures by group, with the machines that measured them.

    Attributes:
        machine: The processor, its cores, and torch's version.
        groups: The figures of each group.
        is_one_run: Whether all are of one run.
        elsewhere: The machines of the groups that were measured on another one.
    """

    machine: dict[str, Any]
    groups: dict[str, list[Figure]]
    is_one_run: bool = False
    elsewhere: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    @property
    def figures(self) -> dict[str, Figure]:
        """Return all figures by name."""
        return {figure.name: figure for group in self.groups.values() for figure in group}

    @property
    def place(self) -> str:
        """Return sentences that name the machines, with the groups of all but the first."""
        by_place: dict[str, list[str]] = {}
        for group, machine in self.elsewhere.items():
            by_place.setdefault(describe(machine), []).append(f"`{group}`")
        sentences = [
            f" Rows marked {', '.join(groups)}: {place}." for place, groups in by_place.items()
        ]
        return f"Measured on {describe(self.machine)}.{''.join(sentences)}"

    def machine_of(self, group: str) -> dict[str, Any]:
        """Return the machine on which a group was measured."""
        return self.elsewhere.get(group, self.machine)

    def as_json(self) -> dict[str, Any]:
        """Return a dictionary of plain values."""
        return asdict(self)

    def save(self, path: Path = FILE) -> None:
        """Write the file."""
        path.write_text(json.dumps(self.as_json(), indent=1) + "\n")


def describe(machine: dict[str, Any]) -> str:
    """Return a machine in words."""
    return "{processor}, {cores} cores, torch {torch}".format_map(machine)


def combine(saved_record: Record, run: Record, order: Iterable[str], is_complete: bool) -> Record:
    """Return a record with the groups of `run`, and those of `saved_record` that it lacks.

    Args:
        saved_record: The figures until now.
        run: The figures of one run on one machine.
        order: The names of all groups.
        is_complete: Whether each group of that run was measured.
    """
    groups = {**saved_record.groups, **run.groups}
    machines = {name: saved_record.machine_of(name) for name in saved_record.groups}
    machines |= dict.fromkeys(run.groups, run.machine)
    counts = Counter(describe(machines[name]) for name in groups)
    (most_common, _), *_ = counts.most_common(1)
    main = next(machine_ for machine_ in machines.values() if describe(machine_) == most_common)
    names = [name for name in order if groups.get(name)]
    return Record(
        main,
        {name: groups[name] for name in names},
        is_one_run=is_complete and run.groups.keys() >= {*names},
        elsewhere={name: machines[name] for name in names if machines[name] != main},
    )


def machine() -> dict[str, Any]:
    """Return the processor, cores and torch version of this machine."""
    name = (
        f"{processor_name()} ({machine_code.processor()})"  # which may not say of which generation
    )
    return {"processor": name, "cores": os.cpu_count(), "torch": torch.__version__}


def of_json(values: dict[str, Any]) -> Record:
    """Return the record of JSON values from `Record.as_json`."""
    groups = {
        name: [Figure(**fields) for fields in group] for name, group in values["groups"].items()
    }
    is_one_run, elsewhere = values.get("is_one_run", False), values.get("elsewhere", {})
    return Record(values["machine"], groups, is_one_run, elsewhere)


def load(path: Path = FILE) -> Record:
    """Load the record of a file."""
    return of_json(json.loads(path.read_text()))
