"""Whatever is public and part of an optimizer goes on from a file, or is asked for by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rulebook import assert_same
from thalweg import (
    CheckpointMismatchError,
    FailedPreconditionError,
    NotFoundError,
    Variable,
    checkpoint,
    schedules,
)
from thalweg._cli.registry import by_class
from thalweg._formats import container
from thalweg.keras.optimizers import SGD
from thalweg.openseq2seq import from_config
from thalweg.openseq2seq.optimizers import lr_policies
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler
from thalweg.openseq2seq.optimizers.mp_wrapper import MixedPrecisionOptimizerWrapper
from thalweg.openseq2seq.optimizers.novograd import NovoGrad
from thalweg.openseq2seq.optimizers.optimizers import optimize_loss
from thalweg.v1 import train
from thalweg.v1.contrib import opt

Training = tuple[list[Variable], Any, Callable[[], object]]
STEPS = 3


def numbers(step: int, shape: Any, dtype: torch.dtype) -> torch.Tensor:
    drawn = np.random.default_rng(step).standard_normal(tuple(shape), np.float32)
    return torch.from_numpy(drawn).to(dtype)


def variables(dtype: torch.dtype = torch.float32) -> list[Variable]:
    values = [numbers(9, shape, dtype) for shape in ((3, 2), (4,))]
    step = Variable(np.int64(0), "global_step", trainable=False)
    return [*(Variable(value, name) for value, name in zip(values, "ab", strict=True)), step]


def trained(make: Callable[..., Any], dtype: torch.dtype = torch.float32) -> Training:
    """Gradients of two variables, applied by an optimizer; the third one counts."""
    known = variables(dtype)
    optimizer = make(known)
    return known, optimizer, stepping(optimizer, known)


def stepping(optimizer: Any, known: list[Variable]) -> Callable[[], object]:
    *own, step = known

    def take() -> object:
        pairs = [(numbers(int(step), each.shape, torch.float32), each) for each in own]
        if isinstance(optimizer, MixedPrecisionOptimizerWrapper):
            loss = lambda: sum((grad * each.float()).sum() for grad, each in pairs)  # noqa: E731
            return optimizer.minimize(loss, global_step=step, var_list=own)
        if isinstance(optimizer, train.Optimizer):
            return optimizer.apply_gradients(pairs, global_step=step)
        optimizer.apply_gradients(pairs)
        return step.assign_add(1)

    return take


RATES = {"decay_steps": 4, "decay_rate": 0.5, "first_decay_steps": 2, "seed": 3}
RATES |= {"boundaries": [2, 4], "values": [0.1, 0.05, 0.01]}
SCHEDULES = [name for name in schedules.__all__ if inspect.isclass(getattr(schedules, name))]
DECAYS = [name for name in train.__all__ if name.endswith("_decay") or "piecewise" in name]
POLICIES: dict[str, dict[str, Any]] = {
    "fixed_lr": {},
    "piecewise_constant": {"boundaries": [1, 3], "decay_rates": [0.5, 0.1], "steps_per_epoch": 1},
    "exp_decay": {"decay_steps": 2, "decay_rate": 0.5, "use_staircase_decay": True},
    "poly_decay": {"decay_steps": 6},
    "cosine_decay": {"decay_steps": 6},
    "transformer_policy": {"d_model": 8, "warmup_steps": 3, "dtype": torch.float32},
    "inv_poly_decay": {"decay_steps": 6, "min_lr": 0.01},
}
WRAPPERS: dict[str, Callable[[list[Variable]], Any]] = {
    "MovingAverageOptimizer": lambda own: opt.MovingAverageOptimizer(
        train.MomentumOptimizer(0.1, 0.9), 0.75, num_updates=own[2]
    ),
    "VariableClippingOptimizer": lambda own: opt.VariableClippingOptimizer(
        train.AdamOptimizer(0.1), {own[0]: [1]}, 0.5
    ),
    "averages around clipping": lambda own: opt.MovingAverageOptimizer(
        opt.VariableClippingOptimizer(train.AdagradOptimizer(0.1), {own[1]: [0]}, 0.5), 0.5
    ),
    "averages of a noisy rate": lambda own: opt.MovingAverageOptimizer(
        train.MomentumOptimizer(train.noisy_linear_cosine_decay(0.1, own[2], 6), 0.9), 0.5
    ),
}


def arguments(function: Any) -> dict[str, Any]:
    return {name: RATES[name] for name in inspect.signature(function).parameters if name in RATES}


def of_schedule(name: str) -> Training:
    cls = getattr(schedules, name)
    first = {} if "Piecewise" in name else {"initial_learning_rate": 0.1}
    return trained(lambda _: SGD(cls(**first, **arguments(cls)), momentum=0.9))


def of_decay(name: str) -> Training:
    function = getattr(train, name)

    def made(known: list[Variable]) -> Any:
        place = "x" if "piecewise" in name else "global_step"
        first = {} if place == "x" else {"learning_rate": 0.1}
        rate = function(**{place: known[2]}, **first, **arguments(function))
        return train.MomentumOptimizer(rate, 0.9)

    return trained(made)


def mixed(scale: Any) -> Training:
    return trained(
        lambda _: MixedPrecisionOptimizerWrapper(train.AdamOptimizer(0.1), scale()), torch.float16
    )


CASES: dict[str, Callable[[], Training]] = {
    **{f"schedule {name}": lambda name=name: of_schedule(name) for name in SCHEDULES},
    **{f"decay {name}": lambda name=name: of_decay(name) for name in DECAYS},
    **{f"wrapper {name}": lambda make=make: trained(make) for name, make in WRAPPERS.items()},
    "mixed": lambda: mixed(lambda: 128.0),
    "mixed, Backoff": lambda: mixed(lambda: AutomaticLossScaler("Backoff", {"step_window": 2})),
    "mixed, LogMax": lambda: mixed(lambda: AutomaticLossScaler("LogMax", {"log_max": 8.0})),
}
CASES.pop("schedule LearningRateSchedule")


def averages(optimizer: Any, known: list[Variable]) -> list[Any]:
    if isinstance(optimizer, opt.MovingAverageOptimizer):
        return [optimizer.average(each) for each in known[:2]]
    if isinstance(optimizer, MixedPrecisionOptimizerWrapper):
        return [optimizer.get_master(each) for each in known[:2]]
    return []


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("given", [False, True], ids=["made", "given"])
def test_a_training_goes_on_with_the_same_bits(case: str, given: bool, tmp_path: Path) -> None:
    known, optimizer, take = CASES[case]()
    names = [f"file/{each.name.split(':')[0]}" for each in known]
    for _ in range(2):
        take()
    checkpoint.save(
        tmp_path / "run", optimizer=optimizer, variables=dict(zip(names, known, strict=True))
    )
    for _ in range(STEPS):
        take()
    again, other, _ = CASES[case]()
    for each in again[:2]:
        each.assign(torch.zeros_like(each))
    found = checkpoint.restore(
        tmp_path / "run",
        optimizer=other if given else None,
        variables=dict(zip(names, again, strict=True)),
    )
    assert (found.optimizer is other) == given
    take = stepping(found.optimizer, again)
    for _ in range(STEPS):
        take()
    own, wanted = (
        [*those[:2], *averages(each, those)]
        for each, those in ((found.optimizer, again), (optimizer, known))
    )
    assert_same([each.float() for each in own], [each.float() for each in wanted], case)
    assert int(again[2]) == 2 + STEPS


# optimize_loss: the loss is yours, so the step is always given.

STEPPED: dict[str, dict[str, Any]] = {
    **{f"policy {name}": {"policy": (name, own)} for name, own in POLICIES.items()},
    "Backoff": {"dtype": "mixed", "loss_scaling": "Backoff"},
    "LogMax": {"dtype": "mixed", "loss_scaling": "LogMax"},
    "static": {"dtype": "mixed", "loss_scaling": 64.0},
    "clipped": {"clip_gradients": 0.5},
    "LARC": {"larc_params": {"larc_eta": 0.01}},
    "accumulated": {"iter_size": 2, "use_horovod": True},
    "NovoGrad": {"optimizer": NovoGrad, "optimizer_params": {"beta1": 0.9}},
}


@pytest.mark.parametrize("case", STEPPED)
def test_a_step_of_a_loss_goes_on_with_the_same_bits(case: str, tmp_path: Path) -> None:
    options = dict(STEPPED[case])
    name, own = options.pop("policy", ("fixed_lr", {}))
    policy = getattr(lr_policies, name)
    dtype = torch.float16 if "dtype" in options else torch.float32

    def training() -> tuple[list[Variable], Any]:
        *known, _ = variables(dtype)

        def loss() -> Any:
            return sum(each.float().square().sum() for each in known)

        given = {"optimizer": "Momentum", "optimizer_params": {"momentum": 0.9}, **options}
        if "iter_size" in given:
            rate = {"lr_policy": policy, "lr_policy_params": {"learning_rate": 0.1}}
            return known, from_config({**given, **rate, "max_steps": 9}).optimize(loss, known)
        rate = lambda step: policy(step, learning_rate=0.1, **own)  # noqa: E731
        return known, optimize_loss(loss, learning_rate_decay_fn=rate, var_list=known, **given)

    known, step = training()
    for _ in range(3):
        step()
    checkpoint.save(tmp_path / "run", optimizer=step, variables=known)
    wanted = [step() for _ in range(STEPS)]
    # Masters set their variables, too.
    for those in [False, None] if dtype == torch.float16 else [None]:
        again, other = training()
        for each in again:
            each.assign(torch.ones_like(each))
        given = again if those is None else those
        checkpoint.restore(tmp_path / "run", optimizer=other, variables=given)
        assert_same([other() for _ in range(STEPS)], wanted)
        assert_same([each.float() for each in again], [each.float() for each in known])
        assert int(other.global_step) == int(step.global_step)


# What cannot go on by itself


def changed(path: Path, other: Path, **parts: Any) -> None:
    """Write a file again with other parts of its document."""
    contents = container.read(path)
    container.write(other, contents.tensors, {**contents.document, **parts})


def test_random_numbers_that_are_not_there_are_named(tmp_path: Path) -> None:
    known, optimizer, take = of_schedule("NoisyLinearCosineDecay")
    take()
    checkpoint.save(tmp_path / "run", optimizer=optimizer, variables=known)
    other = of_schedule("NoisyLinearCosineDecay")[1]
    before = other.learning_rate.state_dict()
    for damage, said in (
        ({}, "The learning rates: the random numbers of learning_rate are missing"),
        ({"learning_rate": {"state": 1}}, "The state of NoisyLinearCosineDecay"),
        ({"learning_rate": 3}, "The state of NoisyLinearCosineDecay"),
    ):
        changed(tmp_path / "run", tmp_path / "other", rates=damage)
        with pytest.raises(CheckpointMismatchError, match=f"{said}.*Nothing was loaded"):
            checkpoint.restore(tmp_path / "other", optimizer=other, variables=known)
        assert (other.learning_rate.state_dict(), int(other.iterations)) == (before, 0)
    changed(tmp_path / "run", tmp_path / "other", rates={})
    options: dict[str, Any] = {"variables": known, "check_arguments": False}
    checkpoint.restore(tmp_path / "other", optimizer=other, **options)
    plain = SGD(0.1, momentum=0.9)
    checkpoint.restore(tmp_path / "run", optimizer=plain, **options)


def test_arithmetic_on_a_noisy_rate_keeps_its_random_numbers(tmp_path: Path) -> None:
    def made(known: list[Variable]) -> Any:
        rate = train.noisy_linear_cosine_decay(0.1, known[2], 6)
        return train.GradientDescentOptimizer(torch.clamp(rate * 2.0 + rate, min=0.0))

    known, optimizer, take = trained(made)
    take()
    checkpoint.save(tmp_path / "run", optimizer=optimizer, variables=known)
    take()
    again, other, repeat = trained(made)
    checkpoint.restore(tmp_path / "run", optimizer=other, variables=again)
    repeat()
    assert_same(again[:2], known[:2])


def test_what_only_a_graph_has_is_refused(tmp_path: Path) -> None:
    made = train.SyncReplicasOptimizer(train.GradientDescentOptimizer(0.1), 2)
    with pytest.raises(FailedPreconditionError, match=r"of sync_replicas is .* of a graph"):
        checkpoint.save(tmp_path / "run", optimizer=made)


def test_extended_classes_are_yours_and_all_their_numbers_are_compared(tmp_path: Path) -> None:
    cls = opt.extend_with_decoupled_weight_decay(train.MomentumOptimizer)

    def made(rate: float = 0.1, decay: float = 0.01, nesterov: bool = False) -> Training:
        own = {"learning_rate": rate, "momentum": 0.9, "use_nesterov": nesterov}
        return trained(lambda _: cls(weight_decay=decay, **own))

    known, optimizer, take = made()
    take()
    checkpoint.save(tmp_path / "run", optimizer=optimizer, variables=known)
    with pytest.raises(NotFoundError, match="your own class"):
        checkpoint.restore(tmp_path / "run", variables=known)
    for change, said in (
        ({"rate": 0.2}, r"learning_rate is 0\.2, in the file 0\.1"),
        ({"decay": 0.02}, r"weight_decay is 0\.02, in the file 0\.01"),
        ({"nesterov": True}, "use_nesterov is True, in the file False"),
    ):
        with pytest.raises(CheckpointMismatchError, match=said):
            checkpoint.restore(tmp_path / "run", optimizer=made(**change)[1], variables=known)
    checkpoint.restore(tmp_path / "run", optimizer=made()[1], variables=known)


def test_nothing_public_is_missing_here() -> None:
    made = {each.cls for each in by_class().values()}
    wrapping = {name for name in WRAPPERS if " " not in name}
    known = {*wrapping, "Optimizer", "SyncReplicasOptimizer", "DecoupledWeightDecayExtension"}
    for room in (train, opt):
        for name in room.__all__:
            thing = getattr(room, name)
            if inspect.isclass(thing) and issubclass(thing, train.Optimizer):
                assert thing in made or name in known, name
    own = [each for each in vars(lr_policies).values() if inspect.isfunction(each)]
    names = {each.__name__ for each in own if each.__module__ == lr_policies.__name__}
    assert {name for name in names if not name.startswith("_")} == {*POLICIES}
