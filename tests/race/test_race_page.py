"""The page of a race: layers of those that measure their steps, the loss of all, the same bits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from thalweg._cli.main import main
from thalweg._cli.race.contestants import line_up
from thalweg._cli.race.outcome import race_seeds
from thalweg._cli.race.problems import PROBLEMS

HOSTILE = "</script><img src=x onerror=alert(1)>"
RULE = f"""
from thalweg import Hyper, Rule, sign

def update(var, grad, *, learning_rate):
    return (var - learning_rate * sign(grad),)

SIGN = Rule(name={HOSTILE!r}, update=update, hypers=(Hyper("learning_rate", 0.001),))
"""


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(RULE)
    Path("here").symlink_to(".")


def race(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["race", "--epochs", "1", "--seed", "3", *arguments])


def read_page(path: Path) -> dict[str, Any]:
    page = path.read_text()
    assert HOSTILE not in page
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    return json.loads(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    ["optim:SGD,torch:SGD,mine.py:SIGN",
     pytest.param("optim:Muon,optim:AdamW,torch:Muon,mine.py:SIGN", marks=pytest.mark.slow)],
)  # fmt: skip
def test_report_page_of_a_race_has_all_contestants(names: str) -> None:
    losses: list[dict[str, list[float]]] = []
    for arguments in ((), ("--report", "race.html")):
        result = race("--optimizers", names, *arguments)
        assert result.exit_code == 0, result.output
        document = json.loads(Path("race.json").read_text())
        losses.append({row["optimizer"]: row["losses"] for row in document["results"]})
        assert document["settings"]["measured_every"] == (1 if arguments else None)
    assert result.stdout.splitlines()[-1] == "Saved race.json, race.png, race.html"
    assert "the times are not to be compared" in " ".join(result.stdout.split())
    assert losses[0] == losses[1]  # to the bit

    data = read_page(Path("race.html"))
    steps = document["settings"]["steps"]
    assert data["bins"] == {"first": 1, "width": 1, "count": steps, "last": steps}
    trainings = {training["name"]: training for training in data["trainings"]}
    assert list(trainings) == [row["optimizer"] for row in document["results"]]
    model = [*dict(PROBLEMS["digits"](3).make_model().named_parameters())]
    for name, training in trainings.items():
        assert training["loss"]["mean"] == [float(f"{loss:.4g}") for loss in losses[1][name]]
        assert "learning rate" in training["summary"] or name == HOSTILE
        if name.startswith("optim:"):
            assert (training["names"], training["note"]) == (model, "")
            assert [column["key"] for column in training["columns"]] == ["ratio", "gradient_norm"]
            assert all("AAAA" not in column["codes"][:400] for column in training["columns"])
        else:
            assert (training["names"], training["columns"]) == ([], [])
            assert training["note"].startswith("Its loss alone")
    (note,) = [row["note"] for name, row in trainings.items() if name.startswith("torch:")]
    assert "torch's own" in note
    assert "thalweg.optim" in trainings[HOSTILE]["note"]


def test_the_first_of_several_seeds_is_measured() -> None:
    racing = line_up(["optim:SGD"], {}, "digits")
    outcome = race_seeds(PROBLEMS["digits"], racing, seeds=[1, 2], epochs=1, measures=True)
    first, second = (race.lanes[0].recorder for race in outcome.races)
    assert first is not None
    assert len(first.history.rows) == len(first.history.losses) == outcome.race.steps
    assert second is None


def refuse_to_load(seed: int) -> None:
    raise AssertionError("the race has begun")


OPTIM = ("--optimizers", "optim:SGD")
INVALID_REPORTS = {
    "nobody": (
        ("--optimizers", "SGD,Adam"),
        "--report shows layers of optimizers of thalweg.optim, and none races: SGD, ",
    ),
    "torch": (("--optimizers", "torch:SGD"), "none races: torch:SGD. Name one, as in --optimizers"),
    "folder": ((*OPTIM, "--report", "none/race.html"), "--report: there is no folder 'none'"),
    "file": ((*OPTIM, "--report", "mine.py/a.html"), "--report: cannot write to 'mine.py'"),
    "taken": ((*OPTIM, "--report", "race.json"), "--report: the race writes 'race.json' itself"),
    "taken by another name": (
        (*OPTIM, "--report", "here/race.json"),
        "race writes 'here/race.json'",
    ),
    "long": ((*OPTIM, "--report", "a" * 300), "cannot write to '.': File name too long"),
    "device": ((*OPTIM, "--report", "/dev/null"), "'/dev/null' is a device"),
    "target": (("--target",), "--report does not go with --target"),
}


@pytest.mark.parametrize(("arguments", "message"), INVALID_REPORTS.values(), ids=INVALID_REPORTS)
def test_invalid_report_path_raises_before_the_race(
    arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROBLEMS, "digits", refuse_to_load)
    options = arguments if "--report" in arguments else (*arguments, "--report", "race.html")
    arguments = ("race", *options)
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert not Path("race.html").exists()
