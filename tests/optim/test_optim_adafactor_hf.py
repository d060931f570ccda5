"""`optim.AdafactorHF` compared with the Adafactor of transformers: steps, states, errors."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from thalweg import optim
from thalweg.errors import InvalidTypeError, RuleError
from thalweg.formula import Slot

SHAPES = ((24, 16), (16,), (7, 5, 3), (6, 4, 3, 3), (5, 4, 1, 1), (), (1, 9), (300, 5))
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
# Of the movement. A bfloat16 parameter may round an element to the other side.
BOUNDS = {torch.float32: 5e-6, torch.float64: 1e-13, torch.bfloat16: 2e-3}
GIVEN: dict[str, Any] = {"lr": 1e-2, "relative_step": False}
CONFIGS: list[dict[str, Any]] = [
    {"weight_decay": 0.1},
    {"warmup_init": True},
    {"beta1": 0.9},
    {**GIVEN, "scale_parameter": False},
    {**GIVEN, "clip_threshold": 0.5, "beta1": 0.8, "decay_rate": -0.5, "eps": (1e-10, 1.5)},
]
each_config = pytest.mark.parametrize("config", CONFIGS, ids=str)


@pytest.fixture
def transformers() -> Any:
    return pytest.importorskip("transformers.optimization", reason="transformers is not installed")


def params_of(dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in SHAPES]


def take_steps(pairs: list[tuple[Any, Any]], count: int = 6, seed: int = 1) -> None:
    """Take steps of several optimizers with the same gradients; every third one is larger."""
    generator = torch.Generator().manual_seed(seed)
    for step in range(count):
        for members in zip(*(params for params, _ in pairs), strict=True):
            scale = 100.0 if step % 3 == 0 else 0.1
            grad = torch.randn(members[0].shape, generator=generator) * scale
            for param in members:
                param.grad = grad.to(param.dtype)
        for _, optimizer in pairs:
            optimizer.step()


def assert_near(actual: Any, expected: Any, dtype: torch.dtype, least: float = 0.0) -> None:
    starts = params_of(dtype)
    for param, other, start in zip(actual, expected, starts, strict=True):
        movement = (other.double() - start.double()).norm()
        # With `warmup_init`, the last bits of parameters exceed the bound.
        rounding = 0.0 if dtype == torch.bfloat16 else torch.finfo(dtype).eps / 4 * start.norm()
        allowed = max(BOUNDS[dtype], least) * movement + rounding
        assert (param.double() - other.double()).norm() <= allowed


def copied(params: Any) -> Any:
    return [param.detach().clone().requires_grad_() for param in params]


@pytest.mark.one_in(3)
@each_config
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_steps_and_state_are_those_of_transformers(
    transformers: Any, dtype: torch.dtype, config: Any
) -> None:
    params, peer_params = params_of(dtype), params_of(dtype)
    optimizer = optim.AdafactorHF(params, **config)
    peer = transformers.Adafactor(peer_params, **config)
    take_steps([(params, optimizer), (peer_params, peer)])
    assert_near(params, peer_params, dtype)
    for param, peer_param in zip(params, peer_params, strict=True):
        state, peer_state = optimizer.state[param], peer.state[peer_param]
        assert state.keys() == peer_state.keys()
        for name in state.keys() - {"step"}:
            assert state[name].shape == peer_state[name].shape
            assert state[name].dtype == peer_state[name].dtype
            torch.testing.assert_close(state[name], peer_state[name], rtol=1e-5, atol=1e-7)
        assert state["step"] == peer_state["step"] == 6


@pytest.mark.one_in(3)
@each_config
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_states_load_into_each_other(transformers: Any, dtype: torch.dtype, config: Any) -> None:
    params, peer_params = params_of(dtype), params_of(dtype)
    optimizer = optim.AdafactorHF(params, **config)
    peer = transformers.Adafactor(peer_params, **config)
    take_steps([(params, optimizer), (peer_params, peer)])
    loaded_params, peer_loaded_params = copied(peer_params), copied(params)
    loaded = optim.AdafactorHF(loaded_params)
    loaded.load_state_dict(copy.deepcopy(peer.state_dict()))
    peer_loaded = transformers.Adafactor(peer_loaded_params)
    peer_loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for param, peer_param in zip(loaded_params, peer_params, strict=True):
        for name, value in peer.state[peer_param].items():
            assert torch.equal(loaded.state[param][name], torch.as_tensor(value).float()) or (
                dtype == torch.float64 and torch.equal(loaded.state[param][name], value)
            )
    pairs = [(params, optimizer), (peer_params, peer), (loaded_params, loaded)]
    if dtype != torch.bfloat16:  # torch rounds the state of transformers' class to bfloat16
        pairs.append((peer_loaded_params, peer_loaded))
    take_steps(pairs, seed=2)
    for others, _ in pairs[1:]:
        # transformers' class computes rates in float32 where the step is a tensor.
        assert_near(others, params, dtype, least=1e-5)


def test_training_continues_from_state_with_all_bits() -> None:
    for dtype in DTYPES:
        params = params_of(dtype)
        optimizer = optim.AdafactorHF(params, beta1=0.9)
        take_steps([(params, optimizer)])
        loaded = optim.AdafactorHF(loaded_params := copied(params))
        loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        take_steps([(params, optimizer), (loaded_params, loaded)])
        assert all(map(torch.equal, params, loaded_params))


def test_schedule_of_transformers_reads_the_rate(transformers: Any) -> None:
    rates: list[list[float]] = []
    for cls in (optim.AdafactorHF, transformers.Adafactor):
        params = params_of(torch.float32)
        optimizer = cls(params, warmup_init=True)
        schedule = transformers.AdafactorSchedule(optimizer)
        for _ in range(3):
            take_steps([(params, optimizer)], 1)
            schedule.step()
            rates.append([float(rate) for rate in schedule.get_last_lr()])
    torch.testing.assert_close(rates[:3], rates[3:])
    assert rates[0] != rates[1]


def test_missing_gradients_and_mixed() -> None:
    params, mixed_params = params_of(torch.bfloat16), params_of(torch.bfloat16)
    optimizer = optim.AdafactorHF(params)
    groups = [{"params": mixed_params, "rule": "AdafactorHF"}]
    mixed = optim.Mixed(groups)
    for step in range(5):
        for param, mixed_param in zip(params, mixed_params, strict=True):
            grad = torch.full_like(param, step + 1)
            param.grad, mixed_param.grad = grad, grad.clone()
        if step == 3:
            params[0].grad = mixed_params[0].grad = None
        optimizer.step()
        mixed.step()
    assert all(map(torch.equal, params, mixed_params))
    assert optimizer.state[params[0]]["step"] == 4


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"lr": 1e-3}, ValueError, "Invalid lr value: 0.001 beside relative_step=True"),
        ({"relative_step": False}, ValueError, "lr is None: give a number, or relative_step=True"),
        ({**GIVEN, "warmup_init": True}, ValueError, "warmup_init=True needs relative_step=True"),
        ({"eps": 1e-3}, InvalidTypeError, "eps must be two numbers, not 0.001"),
        ({"eps": (1e-3, None)}, InvalidTypeError, "eps must be two numbers"),
        ({"beta1": 1.0}, ValueError, "Invalid beta1 value: 1.0"),
        ({"beta1": "0.9"}, InvalidTypeError, "Invalid beta1 value: '0.9'; expected: a number"),
        ({"decay_rate": None}, InvalidTypeError, "Invalid decay_rate value: None"),
        ({"clip_threshold": 0.0}, ValueError, "clip_threshold must be above 0, not 0.0"),
        ({"state_storage": "8bit"}, ValueError, "AdafactorHF has no slots that state_storage"),
    ],
)
def test_invalid_arguments_raise(config: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        optim.AdafactorHF(params_of(torch.float32), **config)


def test_squeezed_is_for_slots_of_rows_and_columns() -> None:
    assert Slot("rows", per="row", squeezed=True).is_shaped
    invalid_fields: list[dict[str, Any]] = [
        {},
        {"per": "optimizer"},
        {"shape": lambda rows, columns: (rows,)},
    ]
    for fields in invalid_fields:
        with pytest.raises(RuleError, match="squeezed of Slot 'rows' must be False"):
            Slot("rows", squeezed=True, **fields)
