"""Names in checkpoints of `tf.train.Saver`: what belongs to what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from thalweg import CheckpointMismatchError, InvalidArgumentError
from thalweg.checkpoint import tensorflow
from thalweg.checkpoint.steps import after
from thalweg.checkpoint.tensorflow.setting.making import class_of, family_of
from thalweg.checkpoint.tensorflow.sorting.families import KERAS, V1, Family
from thalweg.checkpoint.tensorflow.sorting.saver_names import sorted_names
from thalweg.errors import (
    InvalidTypeError,
    NotFoundError,
    OptionError,
    UnsupportedCheckpointError,
)
from thalweg.keras import optimizers as keras
from thalweg.storage.stored import Stored, of_tensor
from thalweg.v1 import train
from thalweg.v1.contrib import opt as contrib


def _tensors(names: str, shape: tuple[int, ...] = (2,)) -> dict[str, Stored]:
    """Tensors of these names, each of other values."""
    return {
        name: of_tensor(torch.full(shape, float(index + 1)))
        for index, name in enumerate(names.split())
    }


def _powers(steps: int, suffix: str = "", scope: str = "", **betas: float) -> dict[str, Stored]:
    return {
        f"{scope}{name}_power{suffix}": of_tensor(torch.tensor(after(np.float32(beta), steps)))
        for name, beta in {"beta1": 0.9, "beta2": 0.999, **betas}.items()
    }


def _sorted(tensors: dict[str, Stored]) -> tensorflow.TensorFlowCheckpoint:
    return sorted_names("model.ckpt", tensors)


def _slot_names(found: tensorflow.TensorFlowCheckpoint, name: str = "w") -> dict[str, float]:
    """The first element of each slot of a variable, by kind."""
    return {kind: float(each.array().flat[0]) for kind, each in found.slots[name].items()}


@pytest.mark.parametrize(
    ("names", "cls", "kinds"),
    [
        ("w w/Momentum", "MomentumOptimizer", ["momentum"]),
        ("w w/Adagrad", "AdagradOptimizer", ["accumulator"]),
        ("w w/Adadelta w/Adadelta_1", "AdadeltaOptimizer", ["accum", "accum_update"]),
        ("w w/Ftrl w/Ftrl_1", "FtrlOptimizer", ["accum", "linear"]),
        ("w w/RMSProp w/RMSProp_1", "RMSPropOptimizer", ["rms", "momentum"]),
        ("w w/RMSProp w/RMSProp_1 w/RMSProp_2", "RMSPropOptimizer", ["rms", "mg", "momentum"]),
        ("w w/ProximalAdagrad", "ProximalAdagradOptimizer", ["accumulator"]),
        (
            "w w/AdagradDA w/AdagradDA_1",
            "AdagradDAOptimizer",
            ["gradient_accumulator", "gradient_squared_accumulator"],
        ),
        ("w w/LARSOptimizer", "LARSOptimizer", ["momentum"]),
        ("w w/MomentumW", "MomentumWOptimizer", ["momentum"]),
        ("w scope/w/Momentum", "MomentumOptimizer", ["momentum"]),
        ("a/w s/t/a/w/Ftrl s/t/a/w/Ftrl_1", "FtrlOptimizer", ["accum", "linear"]),
    ],
)
def test_slots_are_told_by_the_order_of_creation(names: str, cls: str, kinds: list[str]) -> None:
    tensors = _tensors(names)
    found = _sorted(tensors)
    variable = names.split()[0]
    assert list(found.variables) == [variable]
    assert found.optimizer is not None
    assert found.optimizer.family is not None
    assert found.optimizer.family.cls == cls
    assert _slot_names(found, variable) == {kind: i + 2.0 for i, kind in enumerate(kinds)}
    assert found.optimizer.hyperparameters.get("centered", False) == ("mg" in kinds)


@pytest.mark.parametrize("cls", ["AdamOptimizer", "AdamWOptimizer", "AdaMaxOptimizer"])
def test_powers_belong_to_the_optimizer(cls: str) -> None:
    title = cls.removesuffix("Optimizer")
    powers = _powers(7, beta1=0.8)
    if cls == "AdaMaxOptimizer":
        del powers["beta2_power"]
    found = _sorted({**_tensors(f"w w/{title} w/{title}_1"), **powers}).optimizer
    assert found is not None
    assert found.family is not None
    assert found.family.cls == cls
    assert list(found.scalars) == list(powers)
    assert found.hyperparameters.get("beta1") == 0.8
    assert found.steps == 7
    assert "powers beta1_power=0.167772" in found.evidence


def test_order_of_creation_is_not_that_of_names() -> None:
    tensors = _tensors("w/RMSProp_1 w/RMSProp_2 w/RMSProp w")
    assert _slot_names(_sorted(tensors)) == {"rms": 3.0, "mg": 1.0, "momentum": 2.0}


def test_scopes_of_slots_and_powers_are_left_off() -> None:
    tensors = _tensors("net/w s/net/w/Adam s/net/w/Adam_1")
    found = _sorted({**tensors, **_powers(3, scope="s/")})
    assert list(found.variables) == ["net/w"]
    assert found.optimizer is not None
    assert found.optimizer.steps == 3


def test_a_second_optimizer_of_the_same_variables() -> None:
    tensors = _tensors("w w/Adam w/Adam_1 w/Adam_2 w/Adam_3")
    found = _sorted({**tensors, **_powers(3), **_powers(5, "_1")})
    slots = [each.slots["w"].items() for each in found.optimizers]
    kinds = [{kind: float(slot.array()[0]) for kind, slot in own} for own in slots]
    assert kinds == [{"m": 2.0, "v": 3.0}, {"m": 4.0, "v": 5.0}]
    assert [each.steps for each in found.optimizers] == [3, 5]
    with pytest.raises(InvalidArgumentError, match="2 optimizers"):
        _ = found.optimizer
    with pytest.raises(InvalidArgumentError, match="which="):
        tensorflow.restore(found, [_variable("w")], learning_rate=0.1)
    opt = tensorflow.restore(found, [w := _variable("w")], which=1, learning_rate=0.1)
    assert opt.get_slot(w, "m").numpy().tolist() == [4.0, 4.0]
    with pytest.raises(NotFoundError, match="none of number 2"):
        tensorflow.restore(found, [_variable("w")], which=2)


def test_optimizers_of_other_variables_share_a_name() -> None:
    """As the two of a generator and a discriminator do."""
    tensors = _tensors("g/w g/w/Adam g/w/Adam_1 d/w d/w/Adam d/w/Adam_1")
    found = _sorted({**tensors, **_powers(4), **_powers(8, "_1")})
    assert [each.steps for each in found.optimizers] == [4, 8]
    assert all("several optimizers are called Adam" in each.notes[0] for each in found.optimizers)
    rules = {"g/w": "w", "d/**": "-"}
    opt = tensorflow.restore(found, [w := _variable("w")], rules, which=1, learning_rate=0.1)
    assert opt.get_slot(w, "v").numpy().tolist() == [3.0, 3.0]
    power = opt._get_non_slot_variable("beta1_power").numpy()
    assert power == after(np.float32(0.9), 8)


def test_two_optimizers_that_went_in_step_are_one() -> None:
    tensors = _tensors("g/w g/w/Adam g/w/Adam_1 d/w d/w/Adam d/w/Adam_1")
    found = _sorted({**tensors, **_powers(4), **_powers(4, "_1")})
    assert len(found.optimizers) == 1


def _variable(name: str, count: int = 2) -> thalweg.Variable:
    return thalweg.Variable(torch.zeros(count), name)


def test_a_name_of_its_own() -> None:
    tensors = {**_tensors("w w/MyAdam w/MyAdam_1"), **_powers(5)}
    found = _sorted(tensors)
    assert list(found.variables) == ["w"]
    assert found.optimizer is not None
    assert found.optimizer.family is None
    assert "AdamOptimizer" in found.optimizer.candidates
    w = _variable("w")
    with pytest.raises(CheckpointMismatchError, match=r"'MyAdam' .*fits no optimizer for certain"):
        tensorflow.restore(found, [w], learning_rate=0.1)
    assert w.numpy().tolist() == [0.0, 0.0]
    opt = tensorflow.restore(
        found, [w], optimizer=train.AdamOptimizer, learning_rate=0.1, name="MyAdam"
    )
    assert opt.get_slot(w, "v").numpy().tolist() == [3.0, 3.0]
    given = contrib.LazyAdamOptimizer(0.1, name="MyAdam")
    assert tensorflow.restore(found, [w], optimizer=given) is given
    assert given.get_slot(w, "m").numpy().tolist() == [2.0, 2.0]


def test_slots_with_names_of_their_own() -> None:
    found = _sorted(_tensors("w w/AC w/LI"))
    given = train.FtrlOptimizer(0.1, accum_name="AC", linear_name="LI")
    w = _variable("w")
    tensorflow.restore(found, [w], optimizer=given)
    assert given.get_slot(w, "accum").numpy()[0] == 2.0
    assert given.get_slot(w, "linear").numpy()[0] == 3.0


class _Twofold(train.Optimizer):
    """An optimizer of a user."""

    def __init__(self) -> None:
        super().__init__(False, "Twofold")

    def _create_slots(self, var_list: Any) -> None:
        for var in var_list:
            self._zeros_slot(var, "first", self._name)
            self._zeros_slot(var, "second", "Other")


def test_an_optimizer_of_a_user() -> None:
    opt, w = _Twofold(), _variable("w")
    tensorflow.restore(_sorted(_tensors("w w/Twofold w/Other")), [w], optimizer=opt)
    assert [opt.get_slot(w, name).numpy()[0] for name in ("first", "second")] == [2.0, 3.0]


def test_moving_averages_are_neither_slots_nor_variables() -> None:
    found = _sorted(_tensors("w w/Momentum w/ExponentialMovingAverage"))
    assert list(found.variables) == ["w"]
    assert [each.array()[0] for each in found.averages.values()] == [3.0]
    assert "moving averages of 1 variables" in found.summary()


def test_variables_below_others_stay_variables() -> None:
    tensors = {**_tensors("block block/kernel", (2, 2)), **_tensors("block/bias")}
    tensors["block"] = of_tensor(torch.zeros(3))
    assert set(_sorted(tensors).variables) == {"block", "block/kernel", "block/bias"}
    assert _sorted(tensors).optimizer is None


def test_a_checkpoint_without_an_optimizer_sets_variables() -> None:
    w = _variable("w")
    assert tensorflow.restore(_sorted(_tensors("w")), [w]) is None
    assert w.numpy().tolist() == [1.0, 1.0]
    given = train.GradientDescentOptimizer(0.1)
    assert tensorflow.restore(_sorted(_tensors("w")), [w], optimizer=given) is given
    counting = keras.Adam(0.1)
    counting.apply_gradients([(torch.ones(2), w)])
    assert tensorflow.restore(_sorted(_tensors("w")), [w], optimizer=counting) is counting
    assert counting.iterations.item() == 1


def test_a_variable_without_all_slots_is_refused() -> None:
    found = _sorted({**_tensors("w w/Adam w/Adam_1 b b/Adam"), **_powers(2)})
    own = [_variable("w"), _variable("b")]
    with pytest.raises(CheckpointMismatchError, match="'b' has no slot 'v'"):
        tensorflow.restore(found, own, learning_rate=0.1)
    assert not any(var.numpy().any() for var in own)


def test_frozen_variables_have_no_slots() -> None:
    found = _sorted(_tensors("w w/Momentum frozen"))
    own = [_variable("w"), _variable("frozen")]
    opt = tensorflow.restore(found, own, learning_rate=0.1, momentum=0.9)
    assert opt.get_slot(own[1], "momentum") is None
    assert own[1].numpy()[0] == 3.0


def test_half_precision_and_doubles_keep_their_dtypes() -> None:
    tensors = {
        name: of_tensor(torch.full((2,), 1 / 3, dtype=dtype))
        for name, dtype in {
            "h": torch.float16,
            "h/Momentum": torch.float16,
            "b": torch.bfloat16,
            "b/Momentum": torch.bfloat16,
            "d": torch.float64,
            "d/Momentum": torch.float64,
        }.items()
    }
    own = {
        name: thalweg.Variable(tensors[name].tensor() * 0, name=name) for name in ("h", "b", "d")
    }
    opt = tensorflow.restore(_sorted(tensors), own, learning_rate=0.1, momentum=0.9)
    for name, var in own.items():
        assert torch.equal(var.detach(), tensors[name].tensor())
        assert torch.equal(opt.get_slot(var, "momentum"), tensors[f"{name}/Momentum"].tensor())


def test_betas_that_are_doubles_stay_doubles() -> None:
    betas = {"beta1": 0.9, "beta2": 0.999}
    powers = {name: after(np.float64(beta), 5) for name, beta in betas.items()}
    tensors = {**_tensors("w w/Adam w/Adam_1")}
    tensors |= {f"{name}_power": of_tensor(torch.tensor(value)) for name, value in powers.items()}
    opt = tensorflow.restore(_sorted(tensors), [_variable("w")], learning_rate=0.1)
    assert opt._get_non_slot_variable("beta1_power").numpy() == powers["beta1"]


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"beta1": 0.8}, "beta1 is 0.9 in the file, not 0.8"),
    ({"beta2": 0.99}, "beta2 is 0.999 in the file, not 0.99"),
]


@pytest.mark.parametrize(("given", "message"), CONTRADICTIONS, ids=str)
def test_arguments_that_contradict_the_file_are_refused(
    given: dict[str, Any], message: str
) -> None:
    found = _sorted({**_tensors("w w/Adam w/Adam_1"), **_powers(5)})
    w = _variable("w")
    with pytest.raises(CheckpointMismatchError, match=message):
        tensorflow.restore(found, [w], learning_rate=0.1, **given)
    opt = train.AdamOptimizer(0.1, **given)
    name, value = next(iter(given.items()))
    with pytest.raises(CheckpointMismatchError, match=f"no power of {name}={value}"):
        tensorflow.restore(found, [w], optimizer=opt)
    assert opt.get_slot(w, "m") is None
    assert not w.numpy().any()


def test_default_betas_that_cannot_be_are_refused() -> None:
    """beta1_power is 0 long before beta1 = 0.9 makes it so."""
    powers = {**_powers(20), "beta1_power": of_tensor(torch.tensor(0.0))}
    found = _sorted({**_tensors("w w/Adam w/Adam_1"), **powers})
    with pytest.raises(CheckpointMismatchError, match="'beta1_power' is 0, no power"):
        tensorflow.restore(found, [_variable("w")], learning_rate=0.1)


def test_powers_of_different_steps_are_refused() -> None:
    powers = {**_powers(5), "beta2_power": _powers(6)["beta2_power"]}
    found = _sorted({**_tensors("w w/Adam w/Adam_1"), **powers})
    assert found.optimizer is not None
    assert "after the same number of steps" in found.optimizer.notes[0]
    message = "different numbers of steps: 'beta1_power' after 5 and 'beta2_power' after 6"
    with pytest.raises(CheckpointMismatchError, match=message):
        tensorflow.restore(found, [_variable("w")], learning_rate=0.1)


def test_an_optimizer_finds_the_slots_of_its_name() -> None:
    found = _sorted({**_tensors("w w/Adam w/Adam_1 w/Momentum"), **_powers(5)})
    opt, w = train.MomentumOptimizer(0.1, 0.9), _variable("w")
    tensorflow.restore(found, [w], optimizer=opt)
    assert opt.get_slot(w, "momentum").numpy()[0] == 4.0


def test_a_count_needs_a_variable_that_can_hold_it() -> None:
    found = _sorted({**_tensors("w"), "global_step": of_tensor(torch.tensor(5))})
    w, step = _variable("w"), thalweg.Variable(torch.zeros(2, dtype=torch.int64), "step")
    with pytest.raises(CheckpointMismatchError, match="'global_step' is int64 of shape"):
        tensorflow.restore(found, [w], global_step=step)
    assert not w.numpy().any()


def test_adamax_of_contrib_has_one_power() -> None:
    powers = _powers(6)
    del powers["beta2_power"]
    found = _sorted({**_tensors("w w/AdaMax w/AdaMax_1"), **powers})
    opt = tensorflow.restore(found, [_variable("w")], learning_rate=0.1)
    assert opt._get_non_slot_variable("beta2_power").numpy() == after(np.float32(0.999), 6)


def test_adagrad_da_asks_for_the_step_it_reads() -> None:
    tensors = _tensors("w w/AdagradDA w/AdagradDA_1")
    tensors["global_step"] = of_tensor(torch.tensor(12))
    w = _variable("w")
    with pytest.raises(OptionError, match=r"learning_rate=\.\.\., global_step"):
        tensorflow.restore(_sorted(tensors), [w])
    step = thalweg.Variable(np.int64(0), "global_step", trainable=False)
    opt = tensorflow.restore(_sorted(tensors), [w], learning_rate=0.1, global_step=step)
    assert opt._global_step is step
    assert step.item() == 12


@pytest.mark.parametrize("family", V1, ids=lambda family: f"{family.cls}-{len(family.slots)}")
def test_the_table_of_slots_is_that_of_the_optimizers(family: Family) -> None:
    found = tensorflow.FoundOptimizer(family.title, "v1", family, (), "", {}, {})
    cls: Callable[..., Any] = class_of(found, "")
    needed = {"learning_rate": 0.1, **family.options}
    if "Momentum" in family.cls:
        needed["momentum"] = 0.9
    if family.cls.endswith("WOptimizer"):
        needed["weight_decay"] = 0.0
    if family.cls == "AdagradDAOptimizer":
        needed["global_step"] = thalweg.Variable(np.int64(0), "step", trainable=False)
    own = family_of(cls(**needed), _variable("w"))
    assert own.parts == family.parts
    if family.cls != "AdaMaxOptimizer":
        assert own.powers == family.powers


@pytest.mark.parametrize("family", KERAS, ids=lambda family: f"{family.cls}-{len(family.slots)}")
def test_the_table_of_hyperparameters_is_that_of_keras(family: Family) -> None:
    options = dict(family.options)
    if "momentum" in family.slots:
        options["momentum"] = 0.9
    opt = getattr(keras, family.cls)(**options)
    opt.apply_gradients([(torch.ones(2), _variable("w"))])
    assert set(opt.get_slot_names()) == set(family.slots)
    assert set(opt._hyper) == {"learning_rate", "decay", *family.hypers}
    assert set(opt._extra_weights()) == set(family.powers)


def test_a_variable_of_one_of_two_optimizers_is_left_to_who_knows() -> None:
    """Adam of a and b, then another Adam of b and c: c is no variable of the first one."""
    names = "a a/Adam a/Adam_1 b b/Adam b/Adam_1 b/Adam_2 b/Adam_3 c c/Adam c/Adam_1"
    found = _sorted({**_tensors(names), **_powers(3), **_powers(5, "_1")})
    assert [each.steps for each in found.optimizers] == [3, 5]
    assert all("it is not known which" in each.notes[0] for each in found.optimizers)
    own = {name: _variable(name) for name in "bc"}
    rules = {"b": "b", "c": "c", "**": "-"}
    opt = tensorflow.restore(found, own, rules, which=1, learning_rate=0.1)
    assert [opt.get_slot(own[name], "m").numpy()[0] for name in "bc"] == [7.0, 10.0]


def test_three_optimizers_of_a_name_and_a_variable_of_two_are_refused() -> None:
    names = "a a/Momentum a/Momentum_1 a/Momentum_2 b b/Momentum b/Momentum_1"
    with pytest.raises(UnsupportedCheckpointError, match=r"'b' has slots of 2 of 3 optimizers"):
        _sorted(_tensors(names))


def test_slots_of_two_scopes_are_refused() -> None:
    with pytest.raises(UnsupportedCheckpointError, match=r"may both be slots of 'w', made in diff"):
        _sorted(_tensors("w s/w/Adam s/w/Adam_1 t/w/Adam t/w/Adam_1"))


@pytest.mark.parametrize(
    ("names", "left"),
    [
        # scope/w is not in the file, and scope/b is: the scope is that of variables.
        ("w scope/b scope/b/Adam scope/b/Adam_1 scope/w/Adam scope/w/Adam_1", "scope/w/Adam"),
        # Of scope/q there is nothing: this is no scope of an optimizer of w.
        ("w scope/w/Adam scope/w/Adam_1 scope/q/Adam scope/q/Adam_1", "scope/w/Adam"),
    ],
)
def test_slots_of_variables_that_are_not_there_are_not_anothers(names: str, left: str) -> None:
    found = _sorted(_tensors(names))
    assert all("w" not in each.slots for each in found.optimizers)
    assert left in found.variables
    with pytest.raises(CheckpointMismatchError, match=f"'{left}' belongs to nothing here"):
        tensorflow.restore(found, [_variable("w")], learning_rate=0.1)


def test_slots_in_a_scope_have_the_shape_of_their_variable() -> None:
    found = _sorted({**_tensors("w"), **_tensors("scope/w/Momentum", (3,))})
    assert found.optimizers == ()


def test_betas_that_the_file_leaves_open_are_asked_for() -> None:
    powers = _powers(9, beta1=0.25, beta2=0.9999)
    found = _sorted({**_tensors("w w/Adam w/Adam_1"), **powers})
    assert found.step is None
    message = (
        r"does not hold learning_rate and beta1 and beta2 of AdamOptimizer; the powers of beta are"
        r" those of beta1=0\.25 and beta2=0\.9999 after 9 steps, and of beta1=0\.5 and beta2=0\.999"
    )
    with pytest.raises(OptionError, match=message):
        tensorflow.restore(found, [_variable("w")])
    given = {"learning_rate": 0.1, "beta1": 0.25, "beta2": 0.9999}
    with pytest.raises(CheckpointMismatchError, match=r"no count of steps for global_step; the po"):
        tensorflow.restore(found, [_variable("w")], global_step=_counter(), **given)
    opt = tensorflow.restore(found, [_variable("w")], **given)
    assert opt._get_non_slot_variable("beta1_power").numpy() == after(np.float32(0.25), 9)


def _counter(dtype: torch.dtype = torch.int64) -> thalweg.Variable:
    return thalweg.Variable(torch.zeros((), dtype=dtype), "step", trainable=False)


@pytest.mark.parametrize(
    ("value", "own", "count"),
    [
        (torch.tensor(5.0), torch.int64, 5),
        (torch.tensor(5, dtype=torch.int8), torch.int64, 5),
        (torch.tensor(300), torch.float32, 300),
        (torch.tensor(-3), torch.int64, "is -3 in the file, which is no count"),
        (torch.tensor(300), torch.int8, "is 300 in the file, which int8 does not hold"),
        (torch.tensor(2**24 + 1), torch.float32, "is 16777217 in the file, which float32 does"),
        (torch.tensor(70_000), torch.float16, "is 70000 in the file, which float16 does"),
        (torch.tensor(1), torch.bool, "is 1 in the file, which bool does not hold"),
        (torch.tensor(2.5), torch.int64, "there is no count of steps"),
    ],
    ids=str,
)
def test_counts_of_other_dtypes(value: torch.Tensor, own: torch.dtype, count: int | str) -> None:
    found = _sorted({**_tensors("w"), "global_step": of_tensor(value)})
    w, step = _variable("w"), _counter(own)
    if isinstance(count, int):
        tensorflow.restore(found, [w], global_step=step)
        assert step.item() == count == found.step
        return
    with pytest.raises(CheckpointMismatchError, match=count):
        tensorflow.restore(found, [w], global_step=step)
    assert not w.numpy().any()
    assert not step.item()


def test_a_step_that_is_no_variable_is_refused() -> None:
    found = _sorted({**_tensors("w"), "global_step": of_tensor(torch.tensor(5))})
    with pytest.raises(InvalidTypeError, match="global_step must be a variable, not 5"):
        tensorflow.restore(found, [_variable("w")], global_step=5)
