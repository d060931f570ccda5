"""Files of Keras are read, their optimizers restored, and their training continues."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from golden_files import FOLDER
from replay import distances
from tensorflow_files import load_vars
from thalweg import InvalidConfigError, NumericsWarning, UnsupportedCheckpointError, checkpoint
from thalweg._formats import keras_files
from thalweg._formats.keras_files import KerasFile, config
from thalweg._formats.stored_tensor import StoredTensor, of_tensor
from thalweg.checkpoint import tensorflow
from thalweg.checkpoint.tensorflow.detection.keras_config import momentum_product
from thalweg.checkpoint.tensorflow.detection.keras_file import sorted_file
from thalweg.checkpoint.tensorflow.detection.variable_order import trained_in
from thalweg.keras import optimizers
from thalweg.v1.train.experimental import DynamicLossScale, FixedLossScale

HOME = FOLDER / "keras_files"
# What a `.weights.h5` file does not tell.
CLASSES = {
    "keras3/adam_weights": (optimizers.Adam, {"beta_1": 0.8}),
    "keras3/bfloat16": (optimizers.SGD, {"momentum": 0.9}),
}
SCALED_CASE = "keras3/mixed"  # its loss is scaled, and its gradients with it
# Keras 2.11 to 2.15 keeps slots of a momentum of 0, which have no effect.
WITHOUT_EFFECT = "keras2.15/sgd"


@cache
def _cases() -> dict[str, dict[str, Any]]:
    return {case["id"]: case for case in json.loads((HOME / "cases.json").read_text())["cases"]}


@cache
def _arrays() -> Any:
    return np.load(HOME / "cases.npz")


def _of(case: dict[str, Any], part: str) -> dict[str, np.ndarray]:
    start = f"{case['id']}|{part}|"
    return {key.removeprefix(start): _arrays()[key] for key in _arrays() if key.startswith(start)}


def _floats(bits: np.ndarray) -> torch.Tensor:
    """Return recorded values; those of bfloat16 are recorded as bits."""
    if bits.dtype == np.uint16:
        return torch.from_numpy(bits.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(bits.copy())


def _restored(case: dict[str, Any]) -> tuple[Any, dict[str, thalweg.Variable]]:
    """Return the optimizer, and the variables by the names of the case."""
    file = tensorflow.load(HOME / case["file"])
    targets = load_vars(file.variables, zeros=True)
    cls, kwargs = CLASSES.get(case["id"], (None, {}))
    opt = tensorflow.restore(file, targets, optimizer=cls, **kwargs)
    return opt, dict(zip(case["variables"], targets.values(), strict=True))


@pytest.mark.parametrize("case_id", _cases())
def test_every_value_is_restored_to_the_bit(case_id: str) -> None:
    case = _cases()[case_id]
    opt, targets = _restored(case)
    for name, value in _of(case, "value").items():
        assert torch.equal(targets[name].detach(), _floats(value)), name
    slots = [value for value in _of(case, "slot").values() if value.shape]
    slots = [] if case_id == WITHOUT_EFFECT else slots
    actual = [
        slot
        for var in targets.values()
        for slot in [opt.get_slot(var, kind) for kind in opt.get_slot_names()]
    ]
    expected = sorted(_floats(value).float().numpy().tobytes() for value in slots)
    assert sorted(slot.float().detach().numpy().tobytes() for slot in actual) == expected
    assert opt.iterations.item() == 5


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case_id", _cases())
def test_five_more_steps_have_the_values_of_keras(case_id: str) -> None:
    case = _cases()[case_id]
    opt, targets = _restored(case)
    scale = 1024.0 if case_id == SCALED_CASE else 1.0
    gradients = _of(case, "gradient")
    for number in range(5):
        opt.apply_gradients(
            [(_floats(grad[number]) / scale, targets[name]) for name, grad in gradients.items()]
        )
    for name, value in _of(case, "value_after").items():
        expected = _floats(value)
        if case["keras"] == 2:  # OptimizerV2, whose arithmetic this is
            assert distances(targets[name].numpy(), value).max() == 0, name
        elif expected.dtype == torch.bfloat16:
            torch.testing.assert_close(targets[name].detach(), expected, rtol=1e-2, atol=1e-2)
        else:
            torch.testing.assert_close(targets[name].detach(), expected, rtol=1e-5, atol=1e-6)


NEWER = [case_id for case_id, case in _cases().items() if case["keras"] == 2.15]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case_id", NEWER)
@pytest.mark.parametrize("package", ["Custom", "thalweg", "mine", "my.package"])
@pytest.mark.parametrize("as_class", [False, True])
def test_class_package_selects_the_optimizer(case_id: str, package: str, as_class: bool) -> None:
    """Read registered names; a class that Keras does not define must be passed."""
    case = _cases()[case_id]
    name = case["class_name"].removeprefix("Custom>")
    read = keras_files.read(HOME / case["file"])
    file = sorted_file("run", replace(read, class_name=f"{package}>{name}"))
    targets = load_vars(file.variables, zeros=True)
    if package in ("mine", "my.package"):
        with pytest.raises(
            thalweg.CheckpointMismatchError, match=f"{package}>{name} is not a class of Keras"
        ):
            tensorflow.restore(file, targets)
        assert not any(bool(var.any()) for var in targets.values())
    cls: Any = type("Mine", (getattr(optimizers, name),), {})
    structure = {key: case["arguments"].get(key) for key in ("amsgrad", "momentum", "centered")}
    kwargs = {key: value for key, value in structure.items() if value is not None}
    kwargs |= {"schedule_decay": 1.0} if name == "Nadam" else {}
    if case_id == "keras2.15/adam_schedule" and not as_class:
        kwargs["learning_rate"] = optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
    opt = tensorflow.restore(file, targets, optimizer=cls if as_class else cls(**kwargs))
    assert (type(opt), opt.iterations.item()) == (cls, 5)
    for key, value in _of(case, "value").items():
        assert torch.equal(targets[key].detach(), _floats(value)), key
    recorded_slots = [value for value in _of(case, "slot").values() if value.shape]
    slots = [opt.get_slot(var, kind) for var in targets.values() for kind in opt.get_slot_names()]
    assert len(slots) == (0 if case_id == WITHOUT_EFFECT else len(recorded_slots))


def test_names_of_slots_count_before_their_order() -> None:
    file = keras_files.read(HOME / "k215_adam_amsgrad.h5")
    arrays = dict(reversed(file.optimizer.items()))
    (expected,) = sorted_file("run", file).optimizers
    (actual,) = sorted_file("run", replace(file, optimizer=arrays)).optimizers
    assert actual.slots == expected.slots
    foreign = {name.replace("layer1/", "gone/"): entry for name, entry in file.optimizer.items()}
    (by_order,) = sorted_file("run", replace(file, optimizer=foreign)).optimizers
    assert by_order.slots == expected.slots


def _described(**fields: Any) -> str | None:
    description = {"class_name": "Adam", "config": {}, **fields}
    return config.optimizer_of("run", description)[0]


@pytest.mark.parametrize(
    ("fields", "class_name"),
    [
        ({"module": "keras.optimizers", "registered_name": None}, "Adam"),
        ({"module": "tf_keras.src.optimizers.adam", "registered_name": "Adam"}, "Adam"),
        ({"module": None, "registered_name": "mine>Adam"}, "mine>Adam"),
        ({"module": None, "registered_name": "my-lab.nets>Adam"}, "my-lab.nets>Adam"),
        ({"module": None, "registered_name": "Adam"}, "__main__>Adam"),
        ({"module": "nets.train", "registered_name": "Adam"}, "nets.train>Adam"),
        ({"module": None, "registered_name": "Custom>Adam"}, "__main__>Adam"),
        ({"module": "nets.train", "registered_name": "Custom>Adam"}, "nets.train>Adam"),
        ({"module": "keras.optimizers", "registered_name": "Custom>Adam"}, "Adam"),
        ({"class_name": "Custom>Adam"}, "Custom>Adam"),
        ({}, "Adam"),
    ],
    ids=str,
)
def test_classes_of_your_own_are_not_those_of_keras(
    fields: dict[str, Any], class_name: str
) -> None:
    assert _described(**fields) == class_name
    file, _ = _file(class_name=_described(**fields))
    (actual,) = sorted_file("run", file).optimizers
    assert (actual.family is None) == (class_name not in ("Adam", "Custom>Adam"))


@pytest.mark.parametrize("steps", [0, 1, 5, 400, 1500, 10**15])
def test_the_momentum_product_of_nadam_is_recomputed(steps: int) -> None:
    beta = 0.8 if steps < 1000 else 0.999999
    file, _ = _file(class_name="Nadam", beta_1=beta)
    (product,) = momentum_product(file, steps).values()
    factors = beta * (1 - 0.5 * 0.96 ** np.arange(1.0, min(steps, 10**6) + 1))
    expected = np.prod(factors) * beta ** float(max(steps - 10**6, 0))
    np.testing.assert_allclose(product.array(), expected, rtol=1e-3, atol=1e-44)
    broken, _ = _file(class_name="Nadam", beta_1="fast")
    assert momentum_product(broken, steps) == {}


@pytest.mark.parametrize(
    "options", [("use_ema",), ("gradient_accumulation_steps",),
                ("use_ema", "gradient_accumulation_steps")], ids=str,
)  # fmt: skip
def test_slots_of_options_around_the_update_are_left_out(options: tuple[str, ...]) -> None:
    file, variables = _file("keras", "Adam", **dict.fromkeys(options, 1))
    values = list(file.optimizer.values())
    extra = [of_tensor(entry.tensor() * 7) for _ in options for entry in variables.values()]
    values[2:2] = extra
    arrays = {f"optimizer/vars/{index}": entry for index, entry in enumerate(values)}
    source = sorted_file("run", replace(file, optimizer=arrays))
    targets = load_vars(variables, zeros=True)
    with pytest.raises(UnsupportedCheckpointError, match=options[0]):
        tensorflow.restore(source, targets)
    opt = tensorflow.restore(source, targets, optimizer=optimizers.Adam(0.1))
    assert [opt.get_slot(var, "v").sum().item() for var in targets.values()] == [6, 3]


@pytest.mark.parametrize("class_name", ["LossScaleOptimizer", "LossScaleOptimizerV3"])
def test_inner_optimizers_of_loss_scales_of_keras_2_15(class_name: str) -> None:
    simple = keras_files.read(HOME / "k215_rmsprop.h5")
    assert simple.config is not None
    inner = {"class_name": "RMSprop", "config": simple.config, "module": "keras.optimizers"}
    # There the slots have no scope.
    arrays = {name.removeprefix("RMSprop/"): entry for name, entry in simple.optimizer.items()}
    scaling = replace(
        simple, class_name=class_name, config={"inner_optimizer": inner}, optimizer=arrays
    )
    (got,) = sorted_file("m", scaling).optimizers
    (expected,) = sorted_file("m", simple).optimizers
    assert (got.slots, got.hyperparameters) == (expected.slots, expected.hyperparameters)
    inner["registered_name"] = "mine>RMSprop"
    (unknown,) = sorted_file("m", scaling).optimizers
    assert unknown.lost == ("mine>RMSprop is not a class of Keras",)


@pytest.mark.parametrize("class_name", ["adam", "ADAM", "Custom>adam"])
def test_classes_of_keras_are_found_in_any_case(class_name: str) -> None:
    file, _ = _file(class_name=class_name)
    (actual,) = sorted_file("run", file).optimizers
    assert actual.family is not None
    assert actual.family.cls == "Adam"


@pytest.mark.parametrize("name", ["layer1/kernel", "layer1/bias", "layer2/kernel"])
def test_slots_stand_beside_their_own_variables(name: str) -> None:
    file = tensorflow.load(HOME / "adam.keras")
    case = _cases()["keras3/adam"]
    recorded_slots = _of(case, "slot")
    title = name.replace("/", "_")
    for kind, word in (("m", "momentum"), ("v", "velocity")):
        key = next(key for key in recorded_slots if key.endswith(f"{title}_{word}"))
        assert np.array_equal(file.slots[name][kind].array(), recorded_slots[key])


def test_configured_hyperparameters_are_restored() -> None:
    file = tensorflow.load(HOME / "adam_schedule.keras")
    targets = load_vars(file.variables)
    opt = tensorflow.restore(file, targets)
    assert opt.learning_rate.decay_steps == 3
    assert opt.get_config()["beta_1"] == float(np.float32(0.9))
    legacy = tensorflow.load(HOME / "adam_amsgrad.h5").optimizer
    assert legacy is not None
    assert legacy.hyperparameters["decay"] == 0.1
    assert legacy.hyperparameters["learning_rate"] == 0.01


def _file(
    kind: str = "keras", class_name: str | None = "Adam", **config: Any
) -> tuple[KerasFile, dict[str, StoredTensor]]:
    """Return a file with one layer, and its variables."""
    variables = {
        "dense/kernel": of_tensor(torch.ones(2, 3)),
        "dense/bias": of_tensor(torch.ones(3)),
    }
    slots = [entry for entry in variables.values() for _ in range(2)]
    values = [of_tensor(torch.tensor(5)), of_tensor(torch.tensor(0.1)), *slots]
    arrays = {f"optimizer/vars/{index}": entry for index, entry in enumerate(values)}
    return KerasFile(kind, class_name, config or None, arrays, variables), variables


@pytest.mark.parametrize(
    "config",
    [{"weight_decay": 0.004}, {"use_ema": True}, {"gradient_accumulation_steps": 4}],
    ids=str,
)
def test_unsupported_options_of_keras_raise_by_name(config: dict[str, Any]) -> None:
    file, variables = _file(**config)
    targets = load_vars(variables)
    (name, value) = next(iter(config.items()))
    for optimizer in (None, optimizers.Adam):  # a class is no more than a kind
        with pytest.raises(UnsupportedCheckpointError, match=f"{name}={value}"):
            tensorflow.restore(sorted_file("run", file), targets, optimizer=optimizer)
    opt = optimizers.Adam(0.1)
    assert tensorflow.restore(sorted_file("run", file), targets, optimizer=opt) is opt


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"learning_rate": {"class_name": "os.system", "config": {}}}, "schedule of the learning"),
        ({"learning_rate": {"class_name": "ExponentialDecay"}}, "schedule of the learning rate"),
        ({"clipnorm": -1.0}, "Adam cannot be made: Expected clipnorm >= 0"),
        ({"beta_1": "fast"}, "Adam cannot be made: beta_1"),
    ],
    ids=str,
)
def test_empty_configurations_are_ignored(config: dict[str, Any], message: str) -> None:
    file, variables = _file(**config)
    targets = load_vars(variables)
    if "learning_rate" in config:
        arrays = {n: entry for n, entry in file.optimizer.items() if n != "optimizer/vars/1"}
        file = KerasFile(file.kind, file.class_name, file.config, arrays, file.variables)
    with pytest.raises(InvalidConfigError, match=message):
        tensorflow.restore(sorted_file("run", file), targets)


@pytest.mark.parametrize("class_name", ["AdamW", "Lion", "Adagrad"])
def test_mismatched_classes_raise_with_their_names(class_name: str) -> None:
    file, variables = _file(class_name=class_name)
    source = sorted_file("run", file)
    targets = load_vars(variables)
    with pytest.raises(thalweg.CheckpointMismatchError, match=f"{class_name}, 6 arrays"):
        tensorflow.restore(source, targets)
    assert len(source.unknown) == 6
    for optimizer in (optimizers.Adam, optimizers.Adam(0.1)):  # would lose its slots
        with pytest.raises(
            thalweg.CheckpointMismatchError, match=rf"{class_name}.*: .*{class_name}"
        ):
            tensorflow.restore(source, targets, optimizer=optimizer)
    assert tensorflow.restore(source, targets, optimizer=False) is None
    assert torch.equal(targets["dense/kernel"].detach(), torch.ones(2, 3))


@pytest.mark.parametrize("as_class", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("has_rate", [False, True])
def test_a_schedule_takes_the_place_of_a_rate_in_weights(
    has_rate: bool, momentum: float, as_class: bool
) -> None:
    variables = {"scale/a": of_tensor(torch.ones(())), "dense/kernel": of_tensor(torch.ones(3))}
    values = [of_tensor(torch.tensor(5)), *[of_tensor(torch.tensor(0.1))] * has_rate]
    values += [of_tensor(entry.tensor() * 7) for entry in variables.values()] * bool(momentum)
    arrays = {f"optimizer/vars/{index}": entry for index, entry in enumerate(values)}
    source = sorted_file("run", KerasFile("weights.h5", None, None, arrays, variables))
    targets = load_vars(variables, zeros=True)
    schedule = optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    kwargs: dict[str, Any] = {"learning_rate": schedule, "momentum": momentum}
    if as_class:
        opt = tensorflow.restore(source, targets, optimizer=optimizers.SGD, **kwargs)
    else:
        opt = tensorflow.restore(source, targets, optimizer=optimizers.SGD(**kwargs))
    assert (opt.iterations.item(), opt.learning_rate) == (5, schedule)
    if momentum:
        assert [opt.get_slot(var, "momentum").sum().item() for var in targets.values()] == [7, 21]


@pytest.mark.parametrize(
    ("kind", "class_name", "message"),
    [
        ("keras", None, "there is no optimizer: the model was not compiled"),
        ("keras", "Adam", "Adam is described, and no state of it is there"),
        ("h5", "Adam", "Adam is described, and no state of it is there"),
    ],
)
def test_missing_optimizer_is_reported(
    kind: str, class_name: str | None, message: str, tmp_path: Path
) -> None:
    file, variables = _file(kind, class_name)
    source = sorted_file("run", replace(file, optimizer={}))
    targets = load_vars(variables, zeros=True)
    with pytest.raises(thalweg.CheckpointMismatchError, match=message):
        tensorflow.restore(source, targets)
    assert not any(bool(var.any()) for var in targets.values())
    assert tensorflow.restore(source, targets, optimizer=False) is None
    assert all(bool(var.all()) for var in targets.values())
    opt = optimizers.Adam(0.1)
    assert tensorflow.restore(source, targets, optimizer=opt) is opt


def test_loss_scale_is_restored(tmp_path: Path) -> None:
    file = tensorflow.load(HOME / _cases()[SCALED_CASE]["file"])
    targets = load_vars(file.variables)
    scale = DynamicLossScale(2.0)
    tensorflow.restore(file, targets, loss_scale=scale)
    loss_scale = file.optimizers[0].loss_scale
    assert scale._current_loss_scale.item() == loss_scale["current_loss_scale"].array() > 2
    assert scale._num_good_steps.item() == loss_scale["good_steps"].array()
    assert "the loss was scaled, at the end by" in file.summary()
    assert tensorflow.convert(HOME / _cases()[SCALED_CASE]["file"], tmp_path / "ours") == ()
    extra = checkpoint.restore(tmp_path / "ours", variables=targets).extra
    assert extra["tensorflow"]["loss_scale"]["current_loss_scale"] == scale().item()
    with pytest.raises(thalweg.InvalidArgumentError, match="must be a DynamicLossScale"):
        tensorflow.restore(file, targets, loss_scale=FixedLossScale(2.0))
    plain_file = tensorflow.load(HOME / "adam.keras")
    targets = load_vars(plain_file.variables)
    with pytest.raises(thalweg.CheckpointMismatchError, match="no loss scale around"):
        tensorflow.restore(plain_file, targets, loss_scale=scale)


def test_rmsprop_of_keras_3_warns_of_its_epsilon() -> None:
    file, variables = _file(class_name="RMSprop", momentum=0.0, centered=False)
    values = list(file.optimizer.items())
    arrays = dict([*values[:2], values[2], values[4]])
    source = KerasFile("keras", "RMSprop", file.config, arrays, variables)
    targets = load_vars(variables)
    with pytest.warns(NumericsWarning, match="epsilon"):
        tensorflow.restore(sorted_file("run", source), targets)


def test_h5_loss_scale_config_names_the_inner_optimizer() -> None:
    simple = keras_files.read(HOME / "sgd.h5")
    inner = {"class_name": simple.class_name, "config": simple.config}
    scaling = replace(simple, class_name="LossScaleOptimizer", config={"inner_optimizer": inner})
    (got,) = sorted_file("m", scaling).optimizers
    (expected,) = sorted_file("m", simple).optimizers
    assert got.hyperparameters == expected.hyperparameters != {}
    assert got.slots == expected.slots


def _weights(*shapes: tuple[str, tuple[int, ...]], kind: str = "weights.h5") -> KerasFile:
    variables = {name: of_tensor(torch.ones(shape)) for name, shape in shapes}
    return KerasFile(kind, None, None, {}, variables)


A, B, C = (2, 3), (3,), (3, 2)


@pytest.mark.parametrize(
    ("variables", "shapes", "expected"),
    [
        # Layers of one class are numbered in their order.
        (
            ["dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias"],
            [A, B, A, B],
            [0, 1, 2, 3],
        ),
        # Two classes: their shapes tell which comes first.
        (["conv/kernel", "conv/bias", "dense/kernel", "dense/bias"], [C, B, A, B], [2, 3, 0, 1]),
        # They do not.
        (["conv/gamma", "dense/gamma"], [B, B], None),
        # A variable that is not trained.
        (["dense/kernel", "norm/moving_mean"], [A], [0]),
        (["dense/kernel", "dense/bias"], [A], None),
    ],
    ids=["one class", "two classes", "alike", "mean", "frozen"],
)  # fmt: skip
def test_ambiguous_layer_order_is_not_guessed(
    variables: list[str], shapes: list[tuple[int, ...]], expected: list[int] | None
) -> None:
    layer_shapes = {"kernel": {"conv": A, "dense": C}, "bias": {}, "gamma": {}}
    numbered = "dense_1/kernel" in variables or len(variables) < 3
    layers = []
    for name in variables:
        layer, part = name.split("/")
        shape = layer_shapes.get(part, {}).get(layer, B if part in ("bias", "gamma") else A)
        layers.append((name, A if numbered and part == "kernel" else shape))
    actual = trained_in(_weights(*layers), shapes)
    assert actual == (None if expected is None else [variables[index] for index in expected])


def test_a_keras_file_may_have_layers_that_are_not_trained() -> None:
    names = [("a/kernel", A), ("a/bias", B), ("b/kernel", C), ("b/bias", (2,))]
    assert trained_in(_weights(*names, kind="keras"), [C, (2,)]) == ["b/kernel", "b/bias"]
    layers = [("a/kernel", A), ("b/kernel", A)]
    assert trained_in(_weights(*layers, kind="keras"), [A]) is None


PLACES: dict[str, tuple[dict[str, tuple[int | None, str]], list[str] | None]] = {
    "listed": ({"b": (0, "layers/dense_1"), "a": (1, "layers/dense")}, ["b", "a"]),
    "a list": ({"b": (None, "blocks/dense"), "a": (None, "blocks/dense_1")}, ["b", "a"]),
    "attributes": ({"b": (None, "alpha"), "a": (None, "zeta")}, None),
    "within a layer": ({"b": (0, "layers/block/alpha"), "a": (0, "layers/block/zeta")}, None),
    "numbers in a layer": (
        {"b": (0, "layers/rnn/cells/cell"), "a": (0, "layers/rnn/cells/cell_1")},
        ["b", "a"],
    ),
    "own ones first": ({"b": (0, "layers/block"), "a": (0, "layers/block/zeta")}, ["b", "a"]),
    "own ones last": ({"b": (0, "layers/block/zeta"), "a": (0, "layers/block")}, None),
}  # fmt: skip


@pytest.mark.parametrize("case", PLACES)
def test_keras_files_list_layers_in_their_order_and_attributes_by_name(case: str) -> None:
    places, expected = PLACES[case]
    file = _weights(*[(f"{name}/kernel", A) for name in places], kind="keras")
    file = replace(file, places={f"{name}/kernel": place for name, place in places.items()})
    actual = trained_in(file, [A, A])
    assert actual == (None if expected is None else [f"{name}/kernel" for name in expected])


def test_attribute_order_is_inferred_from_shapes() -> None:
    file = _weights(("alpha/kernel", A), ("zeta/kernel", C), kind="keras")
    file = replace(file, places={name: (None, name.split("/")[0]) for name in file.variables})
    assert trained_in(file, [C, A]) == ["zeta/kernel", "alpha/kernel"]


def test_search_over_too_many_orders_is_abandoned() -> None:
    names = [(f"c{'abcdefghijklmnop'[i]}_{n}/gamma", B) for i in range(16) for n in range(15)]
    assert trained_in(_weights(*names, ("z/kernel", A)), [B] * 240 + [C]) is None
