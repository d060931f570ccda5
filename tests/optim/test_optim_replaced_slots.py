"""Slots that the user replaces by unreadable values between steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from thalweg import optim
from thalweg.optim import tensorflow

CLASSES: list[tuple[Any, str, dict[str, Any]]] = [
    (optim.AdamW, "exp_avg", {}),
    (optim.AdamW, "exp_avg_sq", {"state_storage": "8bit"}),
    (optim.AdamW, "exp_avg", {"accumulate": 2, "clip_grad_norm": 1.0}),
    (optim.SGD, "momentum_buffer", {"momentum": 0.9}),
    (optim.Lion, "exp_avg", {}),
    (optim.Adafactor, "row_var", {}),
    (optim.Muon, "momentum_buffer", {}),
    (tensorflow.Adam, "v", {}),
]


def step(opt: Any, param: torch.nn.Parameter) -> None:
    for _ in range(opt.step_options.accumulate):
        param.grad = torch.ones_like(param)
        opt.step()


@pytest.mark.parametrize(("cls", "name", "kwargs"), CLASSES)
@pytest.mark.parametrize("value", [None, [1.0], 1.0], ids=str)
@pytest.mark.parametrize("steps", [1, 4])
def test_non_tensor_slot_raises(
    cls: Any, name: str, kwargs: dict[str, Any], value: Any, steps: int
) -> None:
    param = torch.nn.Parameter(torch.ones(64, 64))
    opt = cls([param], lr=0.1, **kwargs)
    for _ in range(steps):
        step(opt, param)
    slot, previous = opt.state[param][name], param.detach().clone()
    unread_keys = (name, "step", "gradient_sum")
    other_slots = {k: x.clone() for k, x in opt.state[param].items() if k not in unread_keys}
    opt.state[param][name] = value
    if value is None and cls is optim.SGD:  # torch's for "none yet"
        step(opt, param)
        return
    for _ in range(2):
        with pytest.raises(TypeError, match=f"'{name}' of 'parameter 0 of group 0' is .*expected"):
            step(opt, param)
        assert torch.equal(param, previous)
        assert opt.state[param][name] is value
        for k, x in other_slots.items():
            assert torch.equal(opt.state[param][k], x)
    opt.state[param][name] = slot
    step(opt, param)
    assert not torch.equal(param, previous)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("steps", [0, 1, 4])
def test_float_tensor_in_place_of_encoded_slot_raises(kind: torch.dtype, steps: int) -> None:
    large, small = (torch.nn.Parameter(torch.ones(n)) for n in (4096, 64))
    opt = optim.AdamW([("w", large), ("b", small)], state_storage="8bit")

    def both() -> None:
        large.grad, small.grad = torch.ones_like(large), torch.ones_like(small)
        opt.step()

    for _ in range(steps):
        both()
    states = [dict(opt.state[param]) for param in (large, small)]
    opt.state[large]["exp_avg"] = torch.zeros(4096, dtype=kind)
    with pytest.raises(TypeError, match=r"'exp_avg' of 'w' is .*softsign8, as uint8 \(4608,\)"):
        both()
    assert large.detach().unique().numel() == 1
    opt.state[large].clear()
    opt.state[large].update(states[0])
    opt.state[small]["exp_avg"] = torch.zeros(72, dtype=torch.uint8)
    with pytest.raises(TypeError, match=r"'exp_avg' of 'b' is uint8 .*fewer than 4,096"):
        both()
