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
    """Imports one of the scripts' modules, which find each other in their own folder."""
    pytest.importorskip("rich", reason="rich is not installed")
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def module(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield module
    for name in FILES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("file", ["README.md", "benchmarks/README.md"])
def test_table_is_the_one_of_the_record(load: Any, file: str) -> None:
    tables, stands = load("tables"), load("record").load()
    path = BENCHMARKS.parent / file
    assert tables.between(path)[1] == tables.tables(stands)[path] + "\n"


def test_figure_measured_beside_other_work_is_marked(load: Any) -> None:
    tables, stands = load("tables"), load("record").load()
    stands.groups["adam"] = [replace(each, disturbance=1.0) for each in stands.groups["adam"]]
    first = stands.figures["adam_gpt2"]
    assert "| ? |" in tables.all_of(stands)
    assert "so the figure says little" in tables.all_of(stands)
    assert "?" not in tables.few(stands)
    assert f"| {first.value:.3g} · " not in tables.few(stands)
    assert "Rows that were measured beside other processes are left out." in tables.few(stands)


def test_readme_has_every_row_that_was_measured_alone(load: Any) -> None:
    tables, stands = load("tables"), load("record").load()
    alone = {
        name: [replace(figure, disturbance=0.0) for figure in group]
        for name, group in stands.groups.items()
    }
    text = tables.few(replace(stands, groups=alone))
    assert "left out" not in text
    assert text.count("\n| ") >= tables.few(stands).count("\n| ")


def test_a_row_is_there_once_its_figures_were_measured(load: Any) -> None:
    tables, stands = load("tables"), load("record").load()
    rows = tables.few(stands).count("| ")
    missing = [name for name in stands.groups if name.startswith("training")]
    for name in missing:
        del stands.groups[name]
    assert 0 < tables.few(stands).count("| ") < rows


def test_groups_of_another_machine_are_named(load: Any) -> None:
    tables, record = load("tables"), load("record")
    stands = replace(record.load(), elsewhere={})
    other = {"processor": "another processor", "cores": 96, "torch": "9.9"}
    made = record.Record(other, {"adam": stands.groups["adam"]})
    both = record.combine(stands, made, stands.groups, is_complete=True)
    assert (both.machine, both.elsewhere) == (stands.machine, {"adam": other})
    assert both.groups == stands.groups
    assert not both.is_one_run
    assert " Rows marked `adam`: another processor, 96 cores, torch 9.9." in tables.few(both)
    assert record.of_json(both.as_json()) == both
    whole = record.combine(both, record.Record(other, stands.groups), stands.groups, True)
    assert (whole.machine, whole.elsewhere, whole.is_one_run) == (other, {}, True)


def test_figures_of_one_run_say_so(load: Any) -> None:
    tables, record = load("tables"), load("record")
    stands = record.load()
    assert "of one run" not in tables.few(replace(stands, is_one_run=False))
    kept = record.of_json(replace(stands, is_one_run=True).as_json())
    assert "Medians of one run. " in tables.few(kept)


def test_file_without_markers_is_refused(load: Any, tmp_path: Path) -> None:
    path = tmp_path / "text.md"
    path.write_text("no table here\n")
    with pytest.raises(ValueError, match="has no <!-- figures -->"):
        load("tables").between(path)


def test_picture_has_each_figure_beside_its_peer(load: Any) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    picture, stands = load("picture"), load("record").load()
    (axes,) = picture.picture(stands).axes
    lengths = [bar.get_width() for bar in axes.patches]
    assert lengths[1::2] == [1.0] * len(picture.ROWS)
    named = dict(zip([name for name, _, _ in picture.ROWS], lengths[::2], strict=True))
    assert named["adam_gpt2"] == stands.figures["adam_gpt2"].value
    assert named["sparse_adagrad_vs_torch"] == 1 / stands.figures["sparse_adagrad_vs_torch"].value


def test_programs_of_the_first_step_run(load: Any, tmp_path: Path) -> None:
    startup = load("startup")
    for make in (startup.RULE.format(rule="SGD"), startup.OPTIM + startup.THIRD):
        cost = startup._run(startup.FIRST.format(make=make), str(tmp_path))
        assert cost.wall > 0
