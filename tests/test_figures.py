"""The figures in the README and in benchmarks/README.md are those in figures.json."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
FILES = ("figure", "record", "tables", "picture", "startup")


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Import one of the scripts' modules, which import each other from their folder."""
    pytest.importorskip("rich", reason="rich is not installed")
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def module(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield module
    for name in FILES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("file", ["README.md", "benchmarks/README.md"])
def test_table_equals_the_record(load: Any, file: str) -> None:
    tables, current = load("tables"), load("record").load()
    path = BENCHMARKS.parent / file
    assert tables.between(path)[1] == tables.tables(current)[path] + "\n"


def test_figure_measured_beside_other_work_is_marked(load: Any) -> None:
    tables, current = load("tables"), load("record").load()
    current.groups["adam"] = [replace(figure, disturbance=1.0) for figure in current.groups["adam"]]
    first = current.figures["adam_gpt2"]
    assert "| ? |" in tables.all_of(current)
    assert "so the figure says little" in tables.all_of(current)
    assert "?" not in tables.few(current)
    assert f"| {first.value:.3g} · " not in tables.few(current)
    assert "Rows that were measured beside other processes are left out." in tables.few(current)


def test_readme_has_every_row_that_was_measured_alone(load: Any) -> None:
    tables, current = load("tables"), load("record").load()
    quiet_groups = {
        name: [replace(figure, disturbance=0.0) for figure in group]
        for name, group in current.groups.items()
    }
    text = tables.few(replace(current, groups=quiet_groups))
    assert "left out" not in text
    assert text.count("\n| ") >= tables.few(current).count("\n| ")


def test_row_appears_once_its_figures_are_measured(load: Any) -> None:
    tables, current = load("tables"), load("record").load()
    rows = tables.few(current).count("| ")
    missing = [name for name in current.groups if name.startswith("training")]
    for name in missing:
        del current.groups[name]
    assert 0 < tables.few(current).count("| ") < rows


def test_groups_of_another_machine_are_named(load: Any) -> None:
    tables, record = load("tables"), load("record")
    current = replace(record.load(), elsewhere={})
    machine = {"processor": "another processor", "cores": 96, "torch": "9.9"}
    new_record = record.Record(machine, {"adam": current.groups["adam"]})
    merged = record.combine(current, new_record, current.groups, is_complete=True)
    assert (merged.machine, merged.elsewhere) == (current.machine, {"adam": machine})
    assert merged.groups == current.groups
    assert not merged.is_one_run
    assert " Rows marked `adam`: another processor, 96 cores, torch 9.9." in tables.few(merged)
    assert record.of_json(merged.as_json()) == merged
    fresh = record.combine(merged, record.Record(machine, current.groups), current.groups, True)
    assert (fresh.machine, fresh.elsewhere, fresh.is_one_run) == (machine, {}, True)


def test_figures_of_one_run_say_so(load: Any) -> None:
    tables, record = load("tables"), load("record")
    current = record.load()
    assert "of one run" not in tables.few(replace(current, is_one_run=False))
    reloaded = record.of_json(replace(current, is_one_run=True).as_json())
    assert "Medians of one run. " in tables.few(reloaded)


def test_file_without_markers_raises(load: Any, tmp_path: Path) -> None:
    path = tmp_path / "text.md"
    path.write_text("no table here\n")
    with pytest.raises(ValueError, match="has no <!-- figures -->"):
        load("tables").between(path)


def test_picture_has_each_figure_beside_its_peer(load: Any) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    picture, current = load("picture"), load("record").load()
    (axes,) = picture.picture(current).axes
    lengths = [bar.get_width() for bar in axes.patches]
    assert lengths[1::2] == [1.0] * len(picture.ROWS)
    bars = dict(zip([name for name, _, _ in picture.ROWS], lengths[::2], strict=True))
    assert bars["adam_gpt2"] == current.figures["adam_gpt2"].value
    assert bars["sparse_adagrad_vs_torch"] == 1 / current.figures["sparse_adagrad_vs_torch"].value


@pytest.mark.slow
def test_programs_of_the_first_step_run(load: Any, tmp_path: Path) -> None:
    startup = load("startup")
    for make in (startup.RULE.format(rule="SGD"), startup.OPTIM + startup.THIRD):
        cost = startup._run(startup.FIRST.format(make=make), str(tmp_path))
        assert cost.wall > 0
