"""The figures that were measured last, in `figures.json`."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from figure import Figure

from thalweg.bench.table import processor
from thalweg.engines.cpu import machine_code

FILE = Path(__file__).with_name("figures.json")


@dataclass
class Record:
    """Figures by group, and where they were measured.

    Attributes:
        machine: The processor, its cores, and torch's version.
        groups: The figures of each group.
        is_one_run: Whether all are of one run.
    """

    machine: dict[str, Any]
    groups: dict[str, list[Figure]]
    is_one_run: bool = False

    @property
    def figures(self) -> dict[str, Figure]:
        """All figures by name."""
        return {figure.name: figure for group in self.groups.values() for figure in group}

    @property
    def place(self) -> str:
        """The machine in words."""
        return "{processor}, {cores} cores, torch {torch}".format_map(self.machine)

    def as_json(self) -> dict[str, Any]:
        """A dictionary of plain values."""
        groups = {name: [each.as_json() for each in group] for name, group in self.groups.items()}
        return {"machine": self.machine, "is_one_run": self.is_one_run, "groups": groups}

    def save(self, path: Path = FILE) -> None:
        """Write the file."""
        path.write_text(json.dumps(self.as_json(), indent=1) + "\n")


def machine() -> dict[str, Any]:
    """What figures depend on."""
    name = f"{processor()} ({machine_code.processor()})"  # which may not say of which generation
    return {"processor": name, "cores": os.cpu_count(), "torch": torch.__version__}


def of_json(values: dict[str, Any]) -> Record:
    """What `as_json` described."""
    groups = {name: [Figure(**each) for each in group] for name, group in values["groups"].items()}
    return Record(values["machine"], groups, values.get("is_one_run", False))


def load(path: Path = FILE) -> Record:
    """The figures that were written last."""
    return of_json(json.loads(path.read_text()))
