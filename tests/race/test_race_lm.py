"""The problem of characters, its hidden matrices, and the evaluation of means."""

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


def test_seed_determines_examples() -> None:
    problem, same_problem, other_problem = map(PROBLEMS["lm"], (3, 3, 4))
    for part in ("train", "test"):
        examples, same_examples = getattr(problem, part), getattr(same_problem, part)
        assert torch.equal(examples.inputs, same_examples.inputs)
        assert not torch.equal(examples.inputs, getattr(other_problem, part).inputs)
        assert torch.equal(examples.inputs[:, 1:], examples.targets[:, :-1])
    assert problem.train.inputs.shape == (64, 64)
    assert problem.steps_per_epoch == 4


@pytest.mark.parametrize(
    ("text", "classes"),
    [("\n ~", [0, 1, 95]), ("a\tb", [66, 96, 67]), ("é\U0001f600\x7f\ud800", [96, 96, 96, 96])],
)
def test_characters_are_mapped_to_classes(text: str, classes: list[int]) -> None:
    assert lm._encode(text).tolist() == classes


def test_model_is_causal() -> None:
    torch.manual_seed(0)
    model = lm.Transformer()
    assert sum(param.numel() for param in model.parameters()) == 116_193
    characters = torch.randint(lm.CLASSES, (2, lm.CONTEXT))
    altered = characters.clone()
    altered[:, 40:] = 5
    logits, altered_logits = model(characters), model(altered)
    assert logits.shape == (2, lm.CLASSES, lm.CONTEXT)
    torch.testing.assert_close(logits[..., :40], altered_logits[..., :40])
    assert not torch.equal(logits[..., 40:], altered_logits[..., 40:])


MATRICES = {
    "lm": [f"layers.{layer}.{name}.weight" for layer in (0, 1)
           for name in ("queries", "keys", "values", "joined", "wide", "narrow")],
    "digits": ["0.weight", "2.weight", "6.weight"],
    "lines": [f"convolutions.{number}.weight" for number in range(3)],
    "stdlib": ["hidden.weight"],
}  # fmt: skip


@pytest.mark.parametrize("name", PROBLEMS)
def test_problems_have_hidden_matrices(name: str) -> None:
    if name in ("digits", "lines"):
        pytest.importorskip("sklearn")
    problem = PROBLEMS[name](0)
    model = problem.make_model()
    ids = {id(param) for param in problem.hidden_matrices(model)}
    assert [name for name, param in model.named_parameters() if id(param) in ids] == MATRICES[name]


@pytest.mark.parametrize("name", ["optim:Muon", "torch:Muon", "optim:SOAP"])
def test_adamw_gets_all_except_hidden_matrices(name: str) -> None:
    race = run(PROBLEMS["lm"](0), line_up([name], {}, "lm"))
    optimizer: Any = race.lanes[0].optimizer
    groups = [group for part in optimizer._optimizers for group in part.param_groups]
    names = {id(param): title for title, param in race.lanes[0].model.named_parameters()}
    first, second = (sorted(names[id(param)] for param in group["params"]) for group in groups)
    assert first == sorted(MATRICES["lm"])
    assert sorted(first + second) == sorted(names.values())


def test_all_2d_params_are_matrices_without_hidden_matrices() -> None:
    optimizer = named("optim:Muon").make(0.1)
    matrix, vector = torch.ones(3, 2), torch.ones(3)
    optimizer.apply_gradients([(torch.ones(3, 2), matrix), (torch.ones(3), vector)])
    first, second = (group["params"] for group in optimizer._optimizers[0].param_groups)
    assert ([*map(id, first)], [*map(id, second)]) == ([id(matrix)], [id(vector)])


def test_a_schedule_free_class_is_evaluated_as_its_means(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    evaluated, scores = ApplyGradientsAdapter.evaluated, lm.Problem.scores

    @contextmanager
    def told(self: Any) -> Iterator[None]:
        with evaluated(self):
            cache = self._optimizers[0].step_cache
            events.append(f"{self.factory.__name__} {cache.holds_averages}")
            yield
            events.append("out")

    def scored(self: Any, model: Any) -> Any:
        events.append("scored")
        return scores(self, model)

    monkeypatch.setattr(ApplyGradientsAdapter, "evaluated", told)
    monkeypatch.setattr(lm.Problem, "scores", scored)
    names = ["optim:ScheduleFreeAdamW", "optim:AdamW"]
    run(PROBLEMS["lm"](0), line_up(names, {}, "lm"))
    assert {" ".join(events[start : start + 3]) for start in range(0, len(events), 3)} == {
        "ScheduleFreeAdamW True scored out",
        "AdamW False scored out",
    }


def test_language_model_race_runs() -> None:
    outcome = CliRunner().invoke(main, ["race", "--problem", "LM", "--json"])
    assert outcome.exit_code == 0, outcome.output
    document = json.loads(outcome.stdout)
    assert document["problem"]["name"] == "lm"
    assert document["problem"]["parameters"] == 116_193
    assert {row["optimizer"] for row in document["results"]} == set(DEFAULT_OPTIMIZERS["lm"])
    for row in document["results"]:
        assert row["losses"][-1] < row["losses"][0], row["optimizer"]


def test_library_without_sources_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdlib_text, "root", lambda: Path("nowhere"))
    outcome = CliRunner().invoke(main, ["race", "--problem", "lm"])
    assert outcome.exit_code == 1
    assert "'lm' found 0 .py files of the standard library in nowhere" in outcome.stderr
