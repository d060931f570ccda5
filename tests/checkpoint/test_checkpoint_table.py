"""Every public part of an optimizer continues from a file, or an error names it."""

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
    values = np.random.default_rng(step).standard_normal(tuple(shape), np.float32)
    return torch.from_numpy(values).to(dtype)


def variables(dtype: torch.dtype = torch.float32) -> list[Variable]:
    values = [numbers(9, shape, dtype) for shape in ((3, 2), (4,))]
    step = Variable(np.int64(0), "global_step", trainable=False)
    return [*(Variable(value, name) for value, name in zip(values, "ab", strict=True)), step]


def trained(make: Callable[..., Any], dtype: torch.dtype = torch.float32) -> Training:
    """Apply gradients to two variables; return all three, of which the last counts steps."""
    params = variables(dtype)
    optimizer = make(params)
    return params, optimizer, stepping(optimizer, params)


def stepping(optimizer: Any, params: list[Variable]) -> Callable[[], object]:
    *weights, step = params

    def take() -> object:
        pairs = [(numbers(int(step), var.shape, torch.float32), var) for var in weights]
        if isinstance(optimizer, MixedPrecisionOptimizerWrapper):
            loss = lambda: sum((grad * var.float()).sum() for grad, var in pairs)  # noqa: E731
            return optimizer.minimize(loss, global_step=step, var_list=weights)
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
    "MovingAverageOptimizer": lambda params: opt.MovingAverageOptimizer(
        train.MomentumOptimizer(0.1, 0.9), 0.75, num_updates=params[2]
    ),
    "VariableClippingOptimizer": lambda params: opt.VariableClippingOptimizer(
        train.AdamOptimizer(0.1), {params[0]: [1]}, 0.5
    ),
    "averages around clipping": lambda params: opt.MovingAverageOptimizer(
        opt.VariableClippingOptimizer(train.AdagradOptimizer(0.1), {params[1]: [0]}, 0.5), 0.5
    ),
    "averages of a noisy rate": lambda params: opt.MovingAverageOptimizer(
        train.MomentumOptimizer(train.noisy_linear_cosine_decay(0.1, params[2], 6), 0.9), 0.5
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

    def made(params: list[Variable]) -> Any:
        place = "x" if "piecewise" in name else "global_step"
        first = {} if place == "x" else {"learning_rate": 0.1}
        rate = function(**{place: params[2]}, **first, **arguments(function))
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


def averages(optimizer: Any, params: list[Variable]) -> list[Any]:
    if isinstance(optimizer, opt.MovingAverageOptimizer):
        return [optimizer.average(var) for var in params[:2]]
    if isinstance(optimizer, MixedPrecisionOptimizerWrapper):
        return [optimizer.get_master(var) for var in params[:2]]
    return []


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("in_place", [False, True], ids=["made", "given"])
def test_training_resumes_with_the_same_bits(case: str, in_place: bool, tmp_path: Path) -> None:
    params, optimizer, take = CASES[case]()
    names = [f"file/{var.name.split(':')[0]}" for var in params]
    for _ in range(2):
        take()
    checkpoint.save(
        tmp_path / "run", optimizer=optimizer, variables=dict(zip(names, params, strict=True))
    )
    for _ in range(STEPS):
        take()
    targets, target_opt, _ = CASES[case]()
    for var in targets[:2]:
        var.assign(torch.zeros_like(var))
    loaded = checkpoint.restore(
        tmp_path / "run",
        optimizer=target_opt if in_place else None,
        variables=dict(zip(names, targets, strict=True)),
    )
    assert (loaded.optimizer is target_opt) == in_place
    take = stepping(loaded.optimizer, targets)
    for _ in range(STEPS):
        take()
    actual, expected = (
        [*group[:2], *averages(opt, group)]
        for opt, group in ((loaded.optimizer, targets), (optimizer, params))
    )
    assert_same([var.float() for var in actual], [var.float() for var in expected], case)
    assert int(targets[2]) == 2 + STEPS


# optimize_loss: the loss is yours, so the step is always given.

STEPPED: dict[str, dict[str, Any]] = {
    **{f"policy {name}": {"policy": (name, config)} for name, config in POLICIES.items()},
    "Backoff": {"dtype": "mixed", "loss_scaling": "Backoff"},
    "LogMax": {"dtype": "mixed", "loss_scaling": "LogMax"},
    "static": {"dtype": "mixed", "loss_scaling": 64.0},
    "clipped": {"clip_gradients": 0.5},
    "LARC": {"larc_params": {"larc_eta": 0.01}},
    "accumulated": {"iter_size": 2, "use_horovod": True},
    "NovoGrad": {"optimizer": NovoGrad, "optimizer_params": {"beta1": 0.9}},
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", STEPPED)
def test_minimize_step_resumes_with_the_same_bits(case: str, tmp_path: Path) -> None:
    options = dict(STEPPED[case])
    name, policy_params = options.pop("policy", ("fixed_lr", {}))
    policy = getattr(lr_policies, name)
    dtype = torch.float16 if "dtype" in options else torch.float32

    def training() -> tuple[list[Variable], Any]:
        *params, _ = variables(dtype)

        def loss() -> Any:
            return sum(var.float().square().sum() for var in params)

        config = {"optimizer": "Momentum", "optimizer_params": {"momentum": 0.9}, **options}
        if "iter_size" in config:
            rate = {"lr_policy": policy, "lr_policy_params": {"learning_rate": 0.1}}
            return params, from_config({**config, **rate, "max_steps": 9}).optimize(loss, params)
        rate = lambda step: policy(step, learning_rate=0.1, **policy_params)  # noqa: E731
        return params, optimize_loss(loss, learning_rate_decay_fn=rate, var_list=params, **config)

    params, step = training()
    for _ in range(3):
        step()
    checkpoint.save(tmp_path / "run", optimizer=step, variables=params)
    expected = [step() for _ in range(STEPS)]
    # Masters set their variables, too.
    for selection in [False, None] if dtype == torch.float16 else [None]:
        targets, target_step = training()
        for var in targets:
            var.assign(torch.ones_like(var))
        restore_into = targets if selection is None else selection
        checkpoint.restore(tmp_path / "run", optimizer=target_step, variables=restore_into)
        assert_same([target_step() for _ in range(STEPS)], expected)
        assert_same([var.float() for var in targets], [var.float() for var in params])
        assert int(target_step.global_step) == int(step.global_step)


# What cannot go on by itself


def changed(path: Path, target_path: Path, **parts: Any) -> None:
    """Rewrite a file with other parts of its document."""
    contents = container.read(path)
    container.write(target_path, contents.tensors, {**contents.document, **parts})


def test_missing_random_state_raises_with_its_name(tmp_path: Path) -> None:
    params, optimizer, take = of_schedule("NoisyLinearCosineDecay")
    take()
    checkpoint.save(tmp_path / "run", optimizer=optimizer, variables=params)
    target_opt = of_schedule("NoisyLinearCosineDecay")[1]
    initial = target_opt.learning_rate.state_dict()
    for damage, message in (
        ({}, "The learning rates: the random numbers of learning_rate are missing"),
        ({"learning_rate": {"state": 1}}, "The state of NoisyLinearCosineDecay"),
        ({"learning_rate": 3}, "The state of NoisyLinearCosineDecay"),
    ):
        changed(tmp_path / "run", tmp_path / "other", rates=damage)
        with pytest.raises(CheckpointMismatchError, match=f"{message}.*Nothing was loaded"):
            checkpoint.restore(tmp_path / "other", optimizer=target_opt, variables=params)
        assert (target_opt.learning_rate.state_dict(), int(target_opt.iterations)) == (initial, 0)
    changed(tmp_path / "run", tmp_path / "other", rates={})
    options: dict[str, Any] = {"variables": params, "check_arguments": False}
    checkpoint.restore(tmp_path / "other", optimizer=target_opt, **options)
    plain_sgd = SGD(0.1, momentum=0.9)
    checkpoint.restore(tmp_path / "run", optimizer=plain_sgd, **options)


def test_arithmetic_on_a_noisy_rate_keeps_its_random_numbers(tmp_path: Path) -> None:
    def made(params: list[Variable]) -> Any:
        rate = train.noisy_linear_cosine_decay(0.1, params[2], 6)
        return train.GradientDescentOptimizer(torch.clamp(rate * 2.0 + rate, min=0.0))

    params, optimizer, take = trained(made)
    take()
    checkpoint.save(tmp_path / "run", optimizer=optimizer, variables=params)
    take()
    targets, target_opt, repeat = trained(made)
    checkpoint.restore(tmp_path / "run", optimizer=target_opt, variables=targets)
    repeat()
    assert_same(targets[:2], params[:2])


def test_optimizers_of_graphs_raise(tmp_path: Path) -> None:
    optimizer = train.SyncReplicasOptimizer(train.GradientDescentOptimizer(0.1), 2)
    with pytest.raises(FailedPreconditionError, match=r"of sync_replicas is .* of a graph"):
        checkpoint.save(tmp_path / "run", optimizer=optimizer)


def test_extended_classes_must_be_passed_with_equal_arguments(tmp_path: Path) -> None:
    cls = opt.extend_with_decoupled_weight_decay(train.MomentumOptimizer)

    def made(rate: float = 0.1, decay: float = 0.01, nesterov: bool = False) -> Training:
        options = {"learning_rate": rate, "momentum": 0.9, "use_nesterov": nesterov}
        return trained(lambda _: cls(weight_decay=decay, **options))

    params, optimizer, take = made()
    take()
    checkpoint.save(tmp_path / "run", optimizer=optimizer, variables=params)
    with pytest.raises(NotFoundError, match="your own class"):
        checkpoint.restore(tmp_path / "run", variables=params)
    for change, message in (
        ({"rate": 0.2}, r"learning_rate is 0\.2, in the file 0\.1"),
        ({"decay": 0.02}, r"weight_decay is 0\.02, in the file 0\.01"),
        ({"nesterov": True}, "use_nesterov is True, in the file False"),
    ):
        with pytest.raises(CheckpointMismatchError, match=message):
            checkpoint.restore(tmp_path / "run", optimizer=made(**change)[1], variables=params)
    checkpoint.restore(tmp_path / "run", optimizer=made()[1], variables=params)


def test_table_covers_all_public_optimizers() -> None:
    classes = {entry.cls for entry in by_class().values()}
    wrapping = {name for name in WRAPPERS if " " not in name}
    other_names = {*wrapping, "Optimizer", "SyncReplicasOptimizer", "DecoupledWeightDecayExtension"}
    for room in (train, opt):
        for name in room.__all__:
            thing = getattr(room, name)
            if inspect.isclass(thing) and issubclass(thing, train.Optimizer):
                assert thing in classes or name in other_names, name
    policies = [policy for policy in vars(lr_policies).values() if inspect.isfunction(policy)]
    names = {policy.__name__ for policy in policies if policy.__module__ == lr_policies.__name__}
    assert {name for name in names if not name.startswith("_")} == {*POLICIES}
