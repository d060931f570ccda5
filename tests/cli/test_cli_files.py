"""`thalweg inspect`, `verify` and `diff`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from thalweg import Variable, checkpoint, optim
from thalweg._cli.commands import files
from thalweg._cli.main import main
from thalweg._formats import bundle, container
from thalweg._formats.stored_tensor import of_tensor
from thalweg.checkpoint.inspection import compare_tensors
from thalweg.keras.optimizers import Adam, schedules
from thalweg.v1 import train


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """Return the path of a checkpoint after two steps."""
    w, opt = Variable([[1.0, 2.0]], name="w"), Adam(0.5, clipnorm=1.0)
    manager = checkpoint.CheckpointManager(tmp_path)
    for _ in range(2):
        opt.apply_gradients([([[1.0, -1.0]], w)])
    return manager.save(2, optimizer=opt, variables=[w], metrics={"loss": 0.25})


def test_inspect_lists_tensors_optimizer_and_step(trained: Path) -> None:
    reply = run("inspect", trained)
    assert reply.exit_code == 0
    for part in (
        "optimizer: Adam (",
        "clipnorm=1.0",
        "step: 2",
        "loss: 0.25",
        "thalweg, 4 tensors",
    ):
        assert part in reply.output
    rows = {line.split()[0]: line.split()[1:] for line in reply.output.splitlines() if line.strip()}
    assert rows["variables/w"] == ["F32", "1", "x", "2", "8", "B"]
    assert rows["optimizer/iterations"] == ["I64", "()", "8", "B"]


def _keras_on_a_schedule(path: Path) -> None:
    w, opt = Variable([1.0], name="w"), Adam(schedules.ExponentialDecay(0.1, 10, 0.9))
    for _ in range(3):
        opt.apply_gradients([([1.0], w)])
    checkpoint.save(path, optimizer=opt, variables=[w])


def _v1_with_powers(path: Path) -> None:
    w, opt = Variable([1.0], name="w"), train.AdamOptimizer(0.1, beta2=0.99)
    for _ in range(3):
        opt.apply_gradients([([1.0], w)])
    checkpoint.save(path, optimizer=opt, variables=[w])


def _v1_with_global_step(path: Path) -> None:
    w, step = Variable([1.0], name="w"), Variable(2, name="global_step", dtype="int64")
    opt = train.GradientDescentOptimizer(train.exponential_decay(0.1, step, 10, 0.9))
    opt.apply_gradients([([1.0], w)], global_step=step)
    checkpoint.save(path, optimizer=opt, variables=[w, step])


@pytest.mark.parametrize(
    ("save", "rate"),
    [
        (
            _keras_on_a_schedule,
            "learning_rate=ExponentialDecay(initial_learning_rate=0.1, decay_steps=10,"
            " decay_rate=0.9, staircase=False), beta_1=",
        ),
        (_v1_with_powers, "learning_rate=0.1, beta1=0.9, beta2=0.99, "),
        (
            _v1_with_global_step,
            "learning_rate=train.exponential_decay(learning_rate=0.1, global_step=global_step,"
            " decay_steps=10, decay_rate=0.9)",
        ),
    ],
)
def test_inspect_prints_step_and_learning_rate(
    save: Callable[[Path], None], rate: str, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    save(path)
    text = run("inspect", path).output
    assert "step: 3\n" in text
    assert rate in text
    assert json.loads(run("inspect", "--json", path).output)["step"] == 3
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[:8], "little")
    content[8 + length :] = bytes(len(content) - 8 - length)  # the counters are damaged
    path.write_bytes(content)
    assert "step:" not in run("inspect", path).output.replace("_step", "")


def _train(rules: list[dict[str, Any]]) -> Any:
    """Return an optimizer with a group per element of `rules`, which are options of the group."""
    groups = [{"params": [torch.nn.Parameter(torch.ones(2, 2))], **options} for options in rules]
    return (optim.Mixed if "rule" in rules[0] else optim.AdamW)(groups)


GROUP = "lr=0.25, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.01, amsgrad=False"


@pytest.mark.parametrize("form", ["optimizer", "extra", "torch", "nested"])
@pytest.mark.parametrize(
    ("groups", "lines"),
    [
        ([{"lr": 0.25}, {"lr": 0.5}], [f"group 0: 1 parameter, {GROUP}", "group 1: 1 parameter, "]),
        ([{"lr": torch.tensor(0.25)}], [f"group 0: 1 parameter, {GROUP}"]),
        ([{"rule": "Muon"}, {"rule": "SGD"}], ["momentum=0.95, nesterov=True", "rule=SGD"]),
        ([{"lr": 0.25}] * 12, [f"group 9: 1 parameter, {GROUP}", "and 2 more groups"]),
    ],
)
def test_inspect_prints_parameter_groups(
    groups: list[dict[str, Any]], lines: list[str], form: str, tmp_path: Path
) -> None:
    path, optimizer = tmp_path / "run", _train(groups)
    state = optimizer.state_dict()
    match form:
        case "optimizer":
            checkpoint.save(path, optimizer=optimizer)
        case "extra":
            checkpoint.save(path, extra=state)
        case _:
            torch.save(state if form == "torch" else {"optimizer": state, "epoch": 3}, path)
    outcome = run("inspect", path)
    assert (outcome.exit_code, " of group " in outcome.output) == (0, False)
    for line in lines:
        assert line in outcome.output
    report = json.loads(run("inspect", "--json", path).output)["param_groups"]
    assert [group["lr"] for group in report] == [group["lr"] for group in state["param_groups"]]


def test_inspect_has_no_step_for_tensor_files(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "run", variables={"w": torch.ones(2)})
    assert json.loads(run("inspect", "--json", tmp_path / "run").output)["step"] is None


def test_inspect_prints_json(trained: Path) -> None:
    report = json.loads(run("inspect", "--json", trained).output)
    assert (report["kind"], report["step"], report["metrics"]) == ("thalweg", 2, {"loss": 0.25})
    assert report["optimizer"]["class"] == "Adam"
    entries = {entry["name"]: entry for entry in report["tensors"]}
    assert entries["variables/w"] == {
        "name": "variables/w", "dtype": "F32", "shape": [1, 2], "bytes": 8
    }  # fmt: skip


def test_inspect_prints_a_tree(trained: Path) -> None:
    lines = run("inspect", "--tree", trained).output.splitlines()
    assert any(line.endswith("── variables") for line in lines)
    assert any(line.endswith("── w  F32 1 x 2") for line in lines)


def test_inspect_reads_checkpoints_of_tensorflow(tmp_path: Path) -> None:
    bundle.write(tmp_path / "model.ckpt-5", {"layer/w": of_tensor(torch.ones(2, 3))})
    text = run("inspect", tmp_path / "model.ckpt-5").output
    assert "TensorFlow, 1 tensors, 24 B" in " ".join(text.split())
    assert "2 x 3" in text


def test_saver_prefix_names_the_file(trained: Path) -> None:
    for command in ("inspect", "verify"):
        assert run(command, trained.with_suffix("")).exit_code == 0
    assert run("diff", trained, trained.with_suffix("")).exit_code == 0


def test_verify_detects_damage(trained: Path) -> None:
    good = run("verify", trained)
    assert (good.exit_code, "4 tensors, 32 B, verified" in good.output) == (0, True)
    content = bytearray(trained.read_bytes())
    content[-1] ^= 1
    damaged = trained.with_name("damaged.safetensors")
    damaged.write_bytes(content)
    bad = run("verify", damaged)
    assert bad.exit_code == 1
    assert "Checksum does not match" in " ".join(bad.output.split())
    outcome = run("verify", damaged, trained)
    assert outcome.exit_code == 1
    assert "verified" in outcome.output


def test_files_without_checksums_are_not_called_verified() -> None:
    reply = run("verify", Path(__file__).parents[1] / "goldens/keras_files/adam.h5")
    assert reply.exit_code == 0
    assert "13 tensors, 620 B, readable; HDF5 holds no checksums" in " ".join(reply.output.split())


def test_diff_lists_differing_tensors(trained: Path, tmp_path: Path) -> None:
    equal = run("diff", trained, trained)
    assert (equal.exit_code, equal.output) == (0, "All tensors are equal, to the bit.\n")
    first, second = tmp_path / "one", tmp_path / "other"
    a, b = Variable([1.0, 2.0], name="a"), Variable([1.0, 2.5], name="a")
    zeros = [Variable([value], name="z") for value in (0.0, -0.0)]
    checkpoint.save(first, variables=[a, zeros[0], Variable([1.0], name="only")])
    checkpoint.save(second, variables=[b, zeros[1], Variable([1.0], name="new")])
    outcome = run("diff", first, second)
    assert outcome.exit_code == 1
    assert outcome.output.splitlines() == [
        f"'variables/only' is in {first} only",
        f"'variables/new' is in {second} only",
        "'variables/a' differs in 1 of 2 elements, by 0.5 at most",
        "'variables/z' has other bits of equal values",
    ]
    assert len(json.loads(run("diff", "--json", first, second).output)["differences"]) == 4


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (torch.tensor([1 + 2j]), torch.tensor([1 + 3j]), "1 of 1 elements, by 1 at most"),
        (torch.tensor([2**53]), torch.tensor([2**53 + 1]), "1 of 1 elements, by 1 at most"),
        (torch.tensor([-(2**63)]), torch.tensor([2**63 - 1]), "by 1.84e+19 at most"),
        (torch.tensor([-3]).char(), torch.tensor([4]).char(), "1 of 1 elements, by 7 at most"),
        (torch.tensor([250]).byte(), torch.tensor([4]).byte(), "by 246 at most"),
        (torch.tensor([True]), torch.tensor([False]), "1 of 1 elements, by 1 at most"),
        (torch.tensor([1.0]).bfloat16(), torch.tensor([2.0]).bfloat16(), "by 1 at most"),
        (torch.tensor([1.0, torch.nan]), torch.tensor([1.0, 0.0]), "1 of 2 elements, by inf"),
        (torch.ones(2), torch.ones(2, 1), "is F32 (2,) and F32 (2, 1)"),
        (torch.ones(2), torch.ones(2).double(), "is F32 (2,) and F64 (2,)"),
    ],
)
def test_diff_reports_dtype_differences(
    first: torch.Tensor, second: torch.Tensor, message: str, tmp_path: Path
) -> None:
    for name, value in (("a", first), ("b", second)):
        checkpoint.save(tmp_path / name, variables={"w": value})
    assert message in run("diff", tmp_path / "a", tmp_path / "b").output


def test_contents_of_files_are_escaped_on_the_terminal(tmp_path: Path) -> None:
    hostile = "[/x][red]\x1b[2J\u202e\x9b"
    escaped = "[/x][red]\\x1b[2J\\u202e\\x9b"
    file, empty = tmp_path / "[b]\x1bone", tmp_path / "other"
    container.write(
        file,
        {hostile: of_tensor(torch.ones(2))},
        {
            "optimizer": {"class": hostile, "arguments": {hostile: hostile}},
            "step": hostile,
            "metrics": {hostile: hostile},
        },
    )
    container.write(empty, {}, {})
    damaged = tmp_path / "[y]\x1bdamaged"
    damaged.write_bytes(file.read_bytes()[:-1] + b"\1")
    runs = [
        ("inspect", file), ("inspect", "--tree", file), ("inspect", empty), ("verify", file),
        ("verify", file, damaged), ("verify", damaged), ("diff", file, empty),
        ("convert", file, tmp_path / "out"), ("inspect", tmp_path / f"none{hostile}"),
        ("--debug", "verify", damaged),
    ]  # fmt: skip
    texts = ["\n".join((reply.stdout, reply.stderr)) for reply in (run(*words) for words in runs)]
    for text in texts:
        assert "MarkupError" not in text
        assert not set(text) & set("\x1b\u202e\x9b")
    assert sum(escaped in text for text in texts) >= 6
    assert f"optimizer: {escaped} ({escaped}={escaped})" in texts[0]
    assert "[b]\\x1bone: 1 tensors, 8 B, verified" in texts[3]
    assert "[y]\\x1bdamaged" in texts[5]


SAVER = Path(__file__).parents[1] / "goldens" / "checkpoints" / "ckpt_v1" / "adam" / "model.ckpt-5"
KERAS = Path(__file__).parents[1] / "goldens" / "keras_files" / "adam.keras"
READ_COMMANDS = [
    *[("verify", "ours"), ("verify", "tensorflow"), ("verify", "keras"), ("inspect", "keras")],
    *[("diff", "ours"), ("diff", "tensorflow"), ("diff", "keras")],
    *[("convert", "tensorflow"), ("convert", "keras"), ("convert --to tf", "ours")],
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("command", "kind"), READ_COMMANDS)
@pytest.mark.parametrize("large", [True, False])
def test_large_files_show_a_progress_bar(
    command: str, kind: str, large: bool, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.progress import Progress

    updates: list[tuple[int, int]] = []

    def update(self: Progress, task: Any, *, completed: int, total: int) -> None:
        updates.append((completed, total))

    monkeypatch.setattr(Progress, "update", update)
    monkeypatch.setattr(files, "LARGE", 100 if large else 1 << 30)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes the terminal for one
    path = {"ours": trained, "tensorflow": SAVER, "keras": KERAS}[kind]
    name, *options = command.split()
    arguments = {"diff": [path, path], "convert": [*options, path, trained.parent / "out"]}
    if kind == "tensorflow":
        arguments["convert"] += ["--set", "learning_rate=0.1"]
    outcome = run(name, *arguments.get(name, [path]))
    assert outcome.exit_code == 0, outcome.output
    assert bool(updates) == large
    if large:
        assert f"{path.name} " in outcome.stderr
        assert updates[-1][0] == updates[-1][1]
        falls = sum(first[0] > second[0] for first, second in pairwise(updates))
        assert falls <= (name == "diff")  # the second file may begin at 0


def test_progress_bar_is_only_for_terminals(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LARGE", 1)
    assert run("verify", trained).stderr == ""


def test_equal_tensors_are_compared_at_once() -> None:
    large = of_tensor(torch.zeros(1 << 25))
    begin = time.process_time()
    assert compare_tensors("a", {"w": large}, "b", {"w": of_tensor(torch.zeros(1 << 25))}) == []
    assert time.process_time() - begin < 1.0  # element by element it is 6 seconds


def test_pickles_are_not_read(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "run.pt")
    (tmp_path / "raw").write_bytes(b"\x80\x04K\x01.")
    for command, path in (("verify", tmp_path / "run.pt"), ("inspect", tmp_path / "raw")):
        outcome = run(command, path)
        assert outcome.exit_code == 1
        assert "torch.load(weights_only=True)" in " ".join(outcome.output.split())


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_files_without_a_checkpoint_fail(command: str, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("hello")
    for path, message in (
        (text, "is no checkpoint of thalweg, TensorFlow or Keras"),
        (tmp_path / "none", "does not exist"),
    ):
        outcome = run(command, path)
        assert outcome.exit_code == 1
        assert message in " ".join(outcome.output.split())


GOLDENS = Path(__file__).parents[1] / "goldens"


@pytest.mark.parametrize(
    ("name", "lines", "step", "optimizer"),
    [
        ("checkpoints/ckpt_v1/adam/model.ckpt-5", "beta1=0.8, beta2=0.99", 5, "AdamOptimizer"),
        ("keras_files/adam_amsgrad.keras", "Adam: Adam, ", None, "Adam"),
    ],
)
def test_inspect_shows_optimizers_of_other_packages(
    name: str, lines: str, step: int | None, optimizer: str
) -> None:
    assert lines in run("inspect", GOLDENS / name).output
    document = json.loads(run("inspect", "--json", GOLDENS / name).output)
    assert document["optimizer"]["class"] == optimizer
    assert step is None or document["step"] == step
