"""The input `random` of stages: its numbers on engines, in batches, after restarts, per block."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import thalweg
from thalweg import Hyper, Pass, Rule, Slot, Stage, check_rule, optim
from thalweg._engines.philox import draw_bits
from thalweg._engines.stage_random import StageRandom
from thalweg.errors import RuleError
from thalweg.keras.optimizers import RuleOptimizer

CPU = torch.device("cpu")


def gradient(var: Any, grad: Any) -> Any:
    return grad


def add_noise(*, step: Tensor, random: StageRandom) -> dict[str, Tensor]:
    noise = random.normal(*step.shape[1:]) + random.uniform(step.shape[1], 1)
    return {"step": step + noise}


def update(var: Any, grad: Any, step: Any, *, learning_rate: Any) -> Any:
    return var - learning_rate * step


def noisy(*stages: Stage, name: str = "Noisy") -> Rule:
    passes = (Pass(gradient, makes=("step",)), *(stages or (Stage(add_noise, seed=7),)))
    return Rule(name=name, passes=passes, update=update, hypers=(Hyper("learning_rate", 0.5),))


def params_of(count: int = 3, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.zeros(6, 5, dtype=dtype, requires_grad=True) for _ in range(count)]


def take_steps(optimizer: Any, count: int = 3, skipped: int | None = None) -> None:
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for _ in range(count):
        for index, param in enumerate(params):
            param.grad = None if index == skipped else torch.ones_like(param)
        optimizer.step()


def trained(rule: Rule, count: int = 3, skipped: int | None = None) -> list[Tensor]:
    params = params_of(count)
    take_steps(optim.RuleOptimizer(params, rule), skipped=skipped)
    return [param.detach() for param in params]


def draw(rule: Rule, numbers: Any = (0,), step: int = 1, stage: int = 1) -> StageRandom:
    entry: Any = rule.passes[stage]
    return StageRandom(rule, entry, numbers, step, torch.empty(0, dtype=torch.float64))


def test_numbers_do_not_depend_on_engine_or_other_parameters() -> None:
    params = trained(rule := noisy())
    with thalweg.engine("reference"):
        assert all(map(torch.equal, params, trained(rule)))
    for index, param in enumerate(trained(rule, skipped=1)):
        assert torch.equal(param, params[index] if index != 1 else torch.zeros(6, 5))
    assert len({float(param.sum()) for param in params}) == 3


def test_each_seed_step_variable_and_stage_has_its_numbers() -> None:
    rule = noisy(Stage(add_noise, seed=7), Stage(add_noise, seed=7))
    other = noisy(Stage(add_noise, seed=8), Stage(add_noise, seed=7 + (1 << 24)))
    draws = [
        draw(rule), draw(rule, step=2), draw(rule, [1]), draw(rule, stage=2), draw(other),
        draw(other, stage=2),
    ]  # fmt: skip
    assert len({float(random.uniform(1)) for random in draws}) == len(draws)
    random = draw(rule)
    assert len({float(random.uniform(1)) for _ in range(9)}) == 9
    both = draw(rule, [0, 1]).normal(2, 3)
    assert torch.equal(both[1:], draw(rule, [1]).normal(2, 3))


def test_uniform_numbers_are_those_of_philox() -> None:
    bits = draw_bits([(5, 0, 12)], 3, 254, (7, 0)).numpy().reshape(2, 3, 2)
    expected = (bits[..., 0] * 256.0 + np.floor(bits[..., 1] / 256)) / 2**24
    random = draw(noisy(), [5], step=3)
    assert np.array_equal(random.uniform(2, 3)[0].numpy(), expected)


def test_distributions() -> None:
    random = draw(noisy())
    uniform, normal = random.uniform(200_000), random.normal(200_000)
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 3e-3
    assert abs(uniform.var() - 1 / 12) < 1e-3
    for power, moment in enumerate((0.0, 1.0, 0.0, 3.0), start=1):
        assert abs((normal**power).mean() - moment) < 0.05


def test_training_continues_from_state() -> None:
    rule, params = noisy(), params_of()
    optimizer = optim.RuleOptimizer(params, rule)
    take_steps(optimizer)
    copies = [param.detach().clone().requires_grad_() for param in params]
    loaded = optim.RuleOptimizer(copies, rule)
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    take_steps(optimizer)
    take_steps(loaded)
    assert all(map(torch.equal, params, copies))


def test_blocks_have_their_numbers_and_mixed_numbers_all_groups() -> None:
    (param, *_) = trained(noisy(Stage(add_noise, heads=2)), 1)
    assert not torch.equal(param[:3], param[3:])
    params, rule = params_of(2), noisy()
    other = torch.zeros(4, requires_grad=True)
    groups = [{"params": [other], "rule": "SGD", "lr": 0.1}, {"params": params, "rule": rule}]
    mixed = optim.Mixed(groups)
    take_steps(mixed)
    # The parameters are 1 and 2 there, as the last two of three are here.
    assert all(map(torch.equal, params, trained(rule)[1:]))


def test_named_values_come_first_and_keras_takes_the_input() -> None:
    rule = Rule(
        name="Named",
        passes=(Pass(gradient, makes=("random",)), Stage(lambda *, random: {"random": random * 2})),
        update=update,
        hypers=(Hyper("learning_rate", 0.5),),
    )
    check_rule(rule)
    assert torch.equal(trained(rule, 1)[0], torch.full((6, 5), -3.0))
    results: list[Any] = []
    for _ in range(2):
        var = thalweg.Variable(np.zeros((6, 5), np.float32), name="w")
        RuleOptimizer(noisy()).apply_gradients([(np.ones((6, 5), np.float32), var)])
        results.append(var.numpy())
    assert np.array_equal(*results)
    assert len(set(results[0].ravel().tolist())) == 30


@pytest.mark.parametrize("seed", [-1, 1 << 48, 1.0, True, None])
def test_invalid_seed_raises(seed: Any) -> None:
    with pytest.raises(RuleError, match=r"seed of a Stage must be an integer from 0 to 2\*\*48"):
        Stage(add_noise, seed=seed)


def test_slots_of_chosen_rank_differ_between_rules() -> None:
    def low_rank(rank: int) -> Rule:
        def keep(*, step: Tensor, basis: Tensor) -> dict[str, Tensor]:
            return {"basis": step[..., :rank].clone()}

        return Rule(
            name=f"LowRank{rank}",
            passes=(Pass(gradient, makes=("step",)), Stage(keep)),
            update=update,
            slots=(Slot("basis", shape=lambda rows, columns: (rows, min(rank, columns))),),
        )

    params = params_of(2)
    rules = low_rank(1), low_rank(2)
    groups = [{"params": [p], "rule": rule} for p, rule in zip(params, rules, strict=True)]
    optimizer = optim.Mixed(groups)
    take_steps(optimizer, 1)
    assert [tuple(optimizer.state[param]["basis"].shape) for param in params] == [(6, 1), (6, 2)]
