"""`thalweg conform`: its output and exit status."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import other_optimizers as others
from thalweg._cli.main import main

PLAIN_CLASS, SIGN = f"{others.__file__}:Plain", f"{others.__file__}:SIGN"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["conform", *arguments])


def of_file(name: str) -> tuple[str, ...]:
    return f"{others.__file__}:{name}", "--rule", SIGN


def test_conform_reports_equal_bits() -> None:
    result = run(*of_file("Plain"))
    assert result.exit_code == 0, result.output
    assert "The same bits after each step." in result.stdout
    assert "beside SignSGD, 20 steps (list)" in result.stdout


def test_conform_reports_rounding_differences() -> None:
    result = run(*of_file("LastPlace"))
    assert result.exit_code == 0, result.output
    assert "Rounding: " in result.stdout
    assert "bits first differ in step " in result.stdout


def test_class_name_selects_the_library_rule() -> None:
    result = run("torch.optim:AdamW", "--set", "lr=0.01", "--set", "betas=0.8,0.9")
    assert result.exit_code == 0, result.output
    assert "beside optim:AdamW" in result.stdout
    assert "ours:   lr=0.01, betas=(0.8, 0.9)" in result.stdout


def test_conform_reports_the_first_divergence() -> None:
    result = run(*of_file("Later"), "--steps", "5")
    assert result.exit_code == 1, result.output
    assert "They part in step 3, parameter 1 of shape [7], element [5]: " in result.stdout
    assert "after 5 steps" in result.stdout
    assert "There is no argument to try." in result.stdout
    result = run("torch.optim:Adam", "--rule", "optim:SGD")
    assert "changes tried closes it: theirs eps=1e-16, " in result.stdout


def test_candidate_arguments_close_a_difference() -> None:
    arguments = ("torch.optim:AdamW", "--rule", "OPTIM:adam", "--set", "weight_decay=0.1")
    result = run(*arguments)
    assert result.exit_code == 1, result.output
    closing = "Closed by: ours decoupled_weight_decay=True; or both weight_decay=0.0."
    assert closing in result.stdout
    assert run(*arguments, "--ours", "decoupled_weight_decay=True").exit_code == 0


def test_json_output_excludes_prints_of_the_class() -> None:
    result = run(*of_file("Scribbling"), "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 0
    assert "a step" in result.stderr
    assert document["outcome"]["verdict"] == "bits"
    assert (document["ours"], document["note"]) == ("SignSGD", "")
    document = json.loads(run(*of_file("NotFinite"), "--json").stdout)
    assert document["outcome"]["parting"]["theirs"] is None
    assert document["outcome"]["difference"] is None


def test_group_option_adds_required_keys() -> None:
    assert run(*of_file("OfGroups")).exit_code == 2
    result = run(*of_file("OfGroups"), "--group", "lr=0.01")
    assert "20 steps (groups)" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give either PACKAGE:CLASS, or --atlas"),
        (("torch.optim:Adam", "--atlas", "a.svg"), "give either"),
        (("torch.optim:Adam", "--list", others.__file__), "--list goes with --atlas"),
        (("--atlas", "a.svg", "--set", "lr=1"), "takes rules and arguments from its list"),
        (("--atlas", "a.png"), "must end in .svg"),
        (("--atlas", "nowhere/a.svg"), "is not a folder"),
        (("--atlas", "a.svg", "--list", others.__file__), "is no list of classes"),
        (("torch.optim:Adam", "--set", "lr"), "'lr' is not NAME=VALUE"),
        (("torch.optim:Adam", "--set", "=1"), "'=1' is not NAME=VALUE"),
        (("torch.optim:Adam", "--set", "betas=(1,"), "neither a word nor a literal"),
        (("torch.optim:Adam", "--set", "lrr=1"), "Did you mean 'lr'?"),
        (("torch.optim:Adam", "--ours", "ep=1"), "Did you mean 'eps'?"),
        (("torch.optim:Adam", "--set", "lr=fast"), "Adam cannot be made"),
        (("torch.optim:Adam", "--steps", "0"), "1 or more"),
        (("torch.optim:Adam", "--rule", "optim:Adamm"), "near it: optim:Adam"),
        (("torch.optim:LBFGS",), "Name ours with --rule"),
        (("no_such_package:Adam",), "there is no module 'no_such_package'"),
        (("torch.optim:lr_scheduler",), "not a class"),
        (of_file("NeedsBase"), "cannot be made without the argument 'base'"),
        (of_file("Random"), "is not deterministic"),
        (of_file("Still"), "has not moved"),
    ],
)
def test_invalid_conform_arguments_fail(
    arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.stderr.split())
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_the_help_says_that_packages_are_executed() -> None:
    assert "its code is executed" in run("--help").stdout


@pytest.mark.slow
def test_atlas_compares_all_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [os.path.dirname(others.__file__), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    row: dict[str, Any] = {
        "name": "SGD", "rule": "torch:SGD", "set": {"lr": 0.01},
        "classes": {
            "torch": "SGD", "others": {"class": "other_optimizers:OfGroups", "group": {"lr": 0.01}},
            "missing": "SGD",
        },
    }  # fmt: skip
    packages = [
        {"name": "torch", "module": "torch.optim"}, {"name": "others"},
        {"name": "missing", "module": "no_such_package"},
    ]  # fmt: skip
    list_path, picture = tmp_path / "list.json", tmp_path / "atlas.svg"
    list_path.write_text(json.dumps({"seconds": 100, "packages": packages, "optimizers": [row]}))
    result = run("--atlas", str(picture), "--list", str(list_path), "--steps", "3", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert [column["version"] is None for column in document["columns"]] == [False, True, True]
    equal, grouped, missing = document["rows"][0]["cells"]
    assert (equal["verdict"], equal["way"]) == ("bits", "list")
    assert (grouped["verdict"], grouped["way"]) == ("parts", "groups")
    assert "--group lr=0.01" in grouped["command"]
    assert missing["note"] == "no_such_package is not installed"
    assert "no_such_package is not installed" in picture.read_text()
    assert f"--list {list_path} --steps 3" in picture.read_text()
