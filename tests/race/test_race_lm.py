"""The problem of characters, what rules of matrices have of it, and how means are evaluated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from thalweg._cli.main import main
from thalweg._cli.race.contestants import line_up
from thalweg._cli.race.problems import DEFAULT_OPTIMIZERS, PROBLEMS, lm, stdlib_text
from thalweg._cli.race.run import run
from thalweg._cli.registry import named
from thalweg._cli.registry.apply_gradients_adapter import ApplyGradientsAdapter


@pytest.fixture(autouse=True)
def _short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stdlib_text, "PACKAGES", "argparse ast contextlib csv enum json")
    monkeypatch.setattr(lm, "FEWEST_CHARACTERS", 10_000)
    monkeypatch.setattr(stdlib_text, "FEWEST_TOKENS", 10_000)
    monkeypatch.setattr(lm, "STEPS", 4)
    monkeypatch.setattr(lm, "SAMPLE", 8)
    monkeypatch.setattr(lm, "TEST_EXAMPLES", 8)


def test_a_seed_has_the_same_examples_and_another_has_others() -> None:
    one, again, other = map(PROBLEMS["lm"], (3, 3, 4))
    for each in ("train", "test"):
        examples, same = getattr(one, each), getattr(again, each)
        assert torch.equal(examples.inputs, same.inputs)
        assert not torch.equal(examples.inputs, getattr(other, each).inputs)
        assert torch.equal(examples.inputs[:, 1:], examples.targets[:, :-1])
    assert one.train.inputs.shape == (64, 64)
    assert one.steps_per_epoch == 4


@pytest.mark.parametrize(
    ("text", "classes"),
    [("\n ~", [0, 1, 95]), ("a\tb", [66, 96, 67]), ("é\U0001f600\x7f\ud800", [96, 96, 96, 96])],
)
def test_characters_have_classes(text: str, classes: list[int]) -> None:
    assert lm._encode(text).tolist() == classes


def test_the_model_looks_at_nothing_that_follows() -> None:
    torch.manual_seed(0)
    model = lm.Transformer()
    assert sum(each.numel() for each in model.parameters()) == 116_193
    characters = torch.randint(lm.CLASSES, (2, lm.CONTEXT))
    changed = characters.clone()
    changed[:, 40:] = 5
    one, other = model(characters), model(changed)
    assert one.shape == (2, lm.CLASSES, lm.CONTEXT)
    torch.testing.assert_close(one[..., :40], other[..., :40])
    assert not torch.equal(one[..., 40:], other[..., 40:])


HIDDEN = {
    "lm": [f"layers.{layer}.{name}.weight" for layer in (0, 1)
           for name in ("queries", "keys", "values", "joined", "wide", "narrow")],
    "digits": ["0.weight", "2.weight", "6.weight"],
    "lines": [f"convolutions.{number}.weight" for number in range(3)],
    "stdlib": ["hidden.weight"],
}  # fmt: skip


@pytest.mark.parametrize("name", PROBLEMS)
def test_hidden_matrices_of_each_problem(name: str) -> None:
    if name in ("digits", "lines"):
        pytest.importorskip("sklearn")
    problem = PROBLEMS[name](0)
    model = problem.make_model()
    own = {id(param) for param in problem.hidden_matrices(model)}
    assert [name for name, each in model.named_parameters() if id(each) in own] == HIDDEN[name]


@pytest.mark.parametrize("name", ["optim:Muon", "torch:Muon", "optim:SOAP"])
def test_adamw_has_all_but_the_hidden_matrices(name: str) -> None:
    race = run(PROBLEMS["lm"](0), line_up([name], {}, "lm"))
    made: Any = race.lanes[0].optimizer
    groups = [group for each in made._optimizers for group in each.param_groups]
    names = {id(param): title for title, param in race.lanes[0].model.named_parameters()}
    first, rest = (sorted(names[id(param)] for param in group["params"]) for group in groups)
    assert first == sorted(HIDDEN["lm"])
    assert sorted(first + rest) == sorted(names.values())


def test_without_hidden_matrices_all_of_two_dimensions_are_matrices() -> None:
    optimizer = named("optim:Muon").make(0.1)
    matrix, vector = torch.ones(3, 2), torch.ones(3)
    optimizer.apply_gradients([(torch.ones(3, 2), matrix), (torch.ones(3), vector)])
    first, rest = (group["params"] for group in optimizer._optimizers[0].param_groups)
    assert ([*map(id, first)], [*map(id, rest)]) == ([id(matrix)], [id(vector)])


def test_a_schedule_free_class_is_evaluated_as_its_means(monkeypatch: pytest.MonkeyPatch) -> None:
    inside: list[str] = []
    evaluated, scores = ApplyGradientsAdapter.evaluated, lm.Problem.scores

    @contextmanager
    def told(self: Any) -> Iterator[None]:
        with evaluated(self):
            inside.append(f"{self.factory.__name__} {self._optimizers[0]._cache.holds_averages}")
            yield
            inside.append("out")

    def scored(self: Any, model: Any) -> Any:
        inside.append("scored")
        return scores(self, model)

    monkeypatch.setattr(ApplyGradientsAdapter, "evaluated", told)
    monkeypatch.setattr(lm.Problem, "scores", scored)
    names = ["optim:ScheduleFreeAdamW", "optim:AdamW"]
    run(PROBLEMS["lm"](0), line_up(names, {}, "lm"))
    assert {" ".join(inside[at : at + 3]) for at in range(0, len(inside), 3)} == {
        "ScheduleFreeAdamW True scored out",
        "AdamW False scored out",
    }


def test_the_race_of_its_contestants() -> None:
    done = CliRunner().invoke(main, ["race", "--problem", "LM", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["problem"]["name"] == "lm"
    assert told["problem"]["parameters"] == 116_193
    assert {row["optimizer"] for row in told["results"]} == set(DEFAULT_OPTIMIZERS["lm"])
    for row in told["results"]:
        assert row["losses"][-1] < row["losses"][0], row["optimizer"]


def test_a_library_without_sources_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdlib_text, "root", lambda: Path("nowhere"))
    done = CliRunner().invoke(main, ["race", "--problem", "lm"])
    assert done.exit_code == 1
    assert "'lm' found 0 .py files of the standard library in nowhere" in done.stderr
