"""`thalweg convert`: TensorFlow's checkpoints as ours, and back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from thalweg import Variable, checkpoint, optim
from thalweg._cli.main import main
from thalweg.checkpoint import tensorflow
from thalweg.keras.optimizers import Adam

SAVER = Path(__file__).parents[1] / "goldens/checkpoints/ckpt_v1/adam/model.ckpt-5"
NUMBERS = ("learning_rate=0.01", "beta1=0.8", "beta2=0.99", "epsilon=1e-6")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_convert_round_trip_is_bit_exact(tmp_path: Path) -> None:
    settings = [word for number in NUMBERS for word in ("--set", number)]
    outcome = run("convert", SAVER, tmp_path / "ours", *settings)
    assert (outcome.exit_code, "14 tensors, 620 B" in outcome.output) == (0, True), outcome.output
    assert run("convert", "--to", "tf1", tmp_path / "ours", tmp_path / "back").exit_code == 0
    assert run("diff", tmp_path / "back", SAVER).output == "All tensors are equal, to the bit.\n"


def test_converted_files_are_restored_without_warnings(tmp_path: Path) -> None:
    settings = [word for number in NUMBERS for word in ("--set", number)]
    run("convert", SAVER, tmp_path / "ours", *settings)
    shapes = {"layer1/kernel": (4, 6), "layer1/bias": (6,), "layer2/kernel": (6, 3)}
    shapes["layer2/bias"] = (3,)
    variables = {name: Variable(torch.zeros(shape), name=name) for name, shape in shapes.items()}
    optimizer = checkpoint.restore(tmp_path / "ours", variables=variables).optimizer
    assert type(optimizer).__name__ == "AdamOptimizer"
    assert optimizer.get_slot(variables["layer1/kernel"], "v").any()


def test_omitted_tensors_are_printed(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.write_text("layer1/bias -> -\n** -> **\n")
    settings = [word for number in NUMBERS for word in ("--set", number)]
    outcome = run("convert", SAVER, tmp_path / "ours", "--rules", rules, *settings)
    assert outcome.exit_code == 0, outcome.output
    assert outcome.output.splitlines() == [
        "converted: 3 variables, optimizer v1:AdamOptimizer",
        f"wrote {tmp_path / 'ours'} for checkpoint.restore: 11 tensors, 548 B",
        "left out: 'layer1/bias': the rules leave it out",
        "left out: 'layer1/bias/Adam': it belongs to no converted variable or optimizer",
        "left out: 'layer1/bias/Adam_1': it belongs to no converted variable or optimizer",
    ]


def test_keras_optimizers_go_to_tensorflow_2(tmp_path: Path) -> None:
    w, opt = Variable([[1.0, 2.0]], name="w"), Adam(0.5)
    opt.apply_gradients([([[1.0, -1.0]], w)])
    checkpoint.save(tmp_path / "ours", optimizer=opt, variables=[w])
    outcome = run("convert", "--to", "tf", tmp_path / "ours", tmp_path / "theirs")
    assert outcome.exit_code == 0, outcome.output
    listing = run("inspect", tmp_path / "theirs").output
    assert ".OPTIMIZER_SLOT" in listing


def test_convert_flags_set_optimizer_arguments(tmp_path: Path) -> None:
    momentum = SAVER.parents[1] / "momentum/model.ckpt-5"
    flags = ("--set", "learning_rate=0.01", "--set", "momentum=0.9", "--set", "use_nesterov=true")
    assert run("convert", momentum, tmp_path / "ours", *flags).exit_code == 0
    assert "use_nesterov=True" in " ".join(run("inspect", tmp_path / "ours").output.split())


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        ((), 1, "does not hold learning_rate"),
        (("--set", "rate"), 2, "--set takes NAME=VALUE"),
        (("--set", "learning_rate=fast"), 2, "--set takes NAME=VALUE"),
        (("--optimizer", "Adamm"), 1, "there is no optimizer 'Adamm'"),
        (("--rules", "nowhere.txt"), 1, "nowhere.txt"),
        (("--to", "pickle"), 2, "'pickle' is not one of"),
        (("--set", "path=1"), 2, "--set is for hyperparameters, and 'path' is not one"),
    ],
)
def test_invalid_options_fail(
    options: tuple[str, ...], status: int, message: str, tmp_path: Path
) -> None:
    outcome = run("convert", SAVER, tmp_path / "ours", *options)
    assert outcome.exit_code == status
    assert message in " ".join(outcome.output.split())
    assert not (tmp_path / "ours").exists()


def test_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    settings = [word for number in NUMBERS for word in ("--set", number)]
    (tmp_path / "ours").write_text("mine")
    reply = run("convert", SAVER, tmp_path / "ours", *settings)
    assert (reply.exit_code, "is there: give another OUT, or --force" in reply.output) == (1, True)
    assert (tmp_path / "ours").read_text() == "mine"
    assert run("convert", SAVER, tmp_path / "ours", *settings, "--force").exit_code == 0
    command = ("convert", "--to", "tf1", tmp_path / "ours", tmp_path / "back")
    assert [
        run(*command).exit_code,
        run(*command).exit_code,
        run(*command, "--force").exit_code,
    ] == [0, 1, 0]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (("--set", "learning_rate=0.1"), "learning_rate"),
        (("--optimizer", "v1:AdamOptimizer"), "optimizer"),
        (("--which", "1"), "which"),
    ],
)
def test_options_of_a_new_optimizer_fail(
    options: tuple[str, ...], name: str, tmp_path: Path
) -> None:
    settings = [word for number in NUMBERS for word in ("--set", number)]
    run("convert", SAVER, tmp_path / "ours", *settings)
    outcome = run("convert", "--to", "tf1", tmp_path / "ours", tmp_path / "back", *options)
    assert outcome.exit_code == 1
    assert f"{name} would be of a new optimizer" in " ".join(outcome.output.split())
    assert not (tmp_path / "back.index").exists()


def test_missing_arguments_are_requested_as_options(tmp_path: Path) -> None:
    outcome = run("convert", SAVER, tmp_path / "ours")
    assert "AdamOptimizer: give --set learning_rate=...." in " ".join(outcome.output.split())


ADAM = SAVER.parents[3] / "keras_files/adam.keras"
CONVERSIONS: dict[str, tuple[Path, list[str]]] = {
    "by name": (SAVER, []),
    "by rules": (SAVER, ["--rules", "examples/two_layers.rules"]),
    "of Keras": (ADAM, []),
}


@pytest.mark.parametrize("name", CONVERSIONS)
def test_converted_files_equal_their_sources(name: str, tmp_path: Path) -> None:
    path, options = CONVERSIONS[name]
    numbers = NUMBERS if path == SAVER else ()
    settings = [word for number in numbers for word in ("--set", number)]
    target = tmp_path / "ours.safetensors"
    assert run("convert", path, target, *options, *settings).exit_code == 0
    for pair in ((path, target), (target, path)):
        outcome = run("diff", *pair)
        assert (outcome.exit_code, outcome.output) == (0, "All tensors are equal, to the bit.\n")
    target_format = ["--to", "tf1"] if path == SAVER else ["--to", "tf"]
    assert run("convert", *target_format, *options, target, tmp_path / "back").exit_code == 0
    assert run("diff", target, tmp_path / "back").exit_code == 0


def test_differences_from_converted_files_are_printed(tmp_path: Path) -> None:
    settings = [word for number in NUMBERS for word in ("--set", number)]
    run("convert", SAVER, tmp_path / "ours", *settings)
    file = tensorflow.load(SAVER)
    targets = {name: Variable(entry.tensor(), name) for name, entry in file.variables.items()}
    step = Variable(torch.tensor(0), name="global_step", trainable=False)
    opt = tensorflow.restore(file, targets, learning_rate=0.01, epsilon=1e-6, global_step=step)
    with torch.no_grad():
        targets["layer2/bias"] += 1
        step += 1
    tensorflow.save(tmp_path / "theirs", opt, targets, kind="tf1", global_step=step)
    outcome = run("diff", tmp_path / "theirs", tmp_path / "ours")
    assert outcome.exit_code == 1
    assert outcome.output.splitlines()[0] == "global_step is 6 and 5"
    assert "'variables/layer2/bias' differs in 3 of 3 elements, by 1 at most" in outcome.output
    assert len(outcome.output.splitlines()) == 2
    other_outcome = run("diff", ADAM, tmp_path / "ours")
    assert other_outcome.output.startswith("convert makes neither of the other: ")


def test_diff_compares_native_with_tensorflow_layout(tmp_path: Path) -> None:
    w, opt = Variable([[1.0, 2.0]], name="w"), Adam(0.5)
    opt.apply_gradients([([[1.0, -1.0]], w)])
    checkpoint.save(tmp_path / "ours", optimizer=opt, variables=[w])
    (tmp_path / "rules").write_text("net/kernel -> w\n")
    rules = ("--rules", tmp_path / "rules")
    run("convert", "--to", "tf", *rules, tmp_path / "ours", tmp_path / "theirs")
    assert run("diff", *rules, tmp_path / "theirs", tmp_path / "ours").exit_code == 0
    assert run("diff", tmp_path / "theirs", tmp_path / "ours").exit_code == 1


CONVERTED = SAVER.parents[3] / "converted"


def _write_source(kind: str, path: Path) -> None:
    """Write a file to convert; `kind` begins with the writer, and ends with what is special."""
    layer = torch.nn.Linear(3, 2)
    adam = optim.Adam(layer.parameters())
    match kind.split():
        case ["optim", "extra"]:
            checkpoint.save(path, extra={"a": 1})
        case ["optim", part]:
            checkpoint.save(path, optimizer=adam, module=layer if part == "whole" else None)
        case ["keras"]:
            w, opt = Variable([1.0], name="w"), Adam(0.5)
            checkpoint.save(path, optimizer=opt, variables=[w], extra={"epoch": 1})
        case ["torch", "layer"]:
            torch.save(layer, path)
        case ["torch", part]:
            state = {"state": []} if part == "other" else adam.state_dict()
            torch.save({"param_groups": 3, **state}, path)
            path.write_bytes(path.read_bytes()[: 300 if part == "cut" else None])
        case _:
            os.mkfifo(path)


NO_FORM = "TensorFlow has no torch-style optimizers"


@pytest.mark.parametrize(
    ("source", "options", "status", "parts"),
    [
        ("optim whole", "--to tf", 0, ("converted: 2 variables, no optimizer", NO_FORM)),
        ("optim whole", "--to tf1", 0, ("for tf.train.Saver: 2 tensors, 32 B", NO_FORM)),
        ("optim alone", "--to tf", 1, ("nothing to convert: the file has no variables",)),
        ("optim extra", "--to tf", 1, ("nothing to convert: the file has no variables",)),
        ("optim whole", "", 1, ("a checkpoint of thalweg already: --to tf turns it",)),
        ("keras", "--to tf", 0, ("1 variable, optimizer Adam", "'extra/epoch': a checkpoint of")),
        ("torch state", "", 1, ("optimizer.load_state_dict reads it",)),
        ("torch state", "--to tf", 1, (NO_FORM,)),
        ("torch other", "", 1, ("holds no state dict of an optimizer",)),
        ("torch cut", "", 1, ("is no file of torch.save, or damaged",)),
        ("torch layer", "", 1, ("it holds torch.nn.modules.linear.Linear",)),
        ("pipe", "", 1, ("a device or a pipe",)),
        (SAVER, "--rules none", 1, ("nothing to convert: the rules leave out all variables",)),
        (CONVERTED / "muon_with_adam.pt", "", 0, ("Muon to Muon", "checkpoint.read_state: 4 ten")),
        (CONVERTED / "adan.pt", "--set masters=true", 0, ("note: Adan with masters",)),
        (CONVERTED / "adan.pt", "--set nonsense=1", 1, ("Adan cannot be made",)),
        (CONVERTED / "adan.pt", "--which 1", 1, ("--which do not apply",)),
        (CONVERTED / "adan.pt", "--optimizer v1:Adam", 1, ("not a class of thalweg.optim",)),
    ],
)
def test_outcome_is_printed(
    source: Path | str, options: str, status: int, parts: tuple[str, ...], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("none").write_text("** -> -\n")
    path = Path("source.safetensors" if str(source).startswith(("optim", "keras")) else "source.pt")
    if isinstance(source, str):
        _write_source(source, path)
    before = set(os.listdir())
    # OUT is also a name of the source without its ending.
    outcome = run(
        "convert", path if isinstance(source, str) else source, "source", *options.split()
    )
    assert outcome.exit_code == status, outcome.output
    for part in (*parts, *["wrote source "] * (status == 0)):
        assert part in outcome.output
    if status:
        assert outcome.output.count("\n") == 1
        assert set(os.listdir()) == before
