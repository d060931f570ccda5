"""Training without `torch.compile` does not import torch's compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest

TRAINING = """
import copy, sys, torch
from thalweg import optim
from thalweg.optim import tensorflow
for kind in (optim.AdamW, tensorflow.Adam):
    param = torch.nn.Parameter(torch.ones(3))
    opt = kind([param])
    schedule = torch.optim.lr_scheduler.StepLR(opt, 1)
    for _ in range(4):
        param.square().sum().backward()
        opt.step()
        schedule.step()
        opt.zero_grad()
    opt.load_state_dict(copy.deepcopy(opt.state_dict()))
    opt.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
    copy.deepcopy(opt)
assert "torch._dynamo" not in sys.modules
"""


def test_a_training_does_not_import_dynamo() -> None:
    subprocess.run([sys.executable, "-c", TRAINING], check=True)


WRAPPED = """
import functools, sys, torch
from thalweg import optim
called = []
def noted(function):
    @functools.wraps(function)
    def own(*given, **named):
        called.append(function.__name__)
        return function(*given, **named)
    return own
for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
    setattr(torch.optim.Optimizer, name, noted(getattr(torch.optim.Optimizer, name)))
opt = optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1)
opt.zero_grad()
opt.load_state_dict(opt.state_dict())
assert {*called} == {"add_param_group", "zero_grad", "state_dict", "load_state_dict"}, called
"""


@pytest.mark.slow
def test_wrapped_step_functions_are_called() -> None:
    subprocess.run([sys.executable, "-c", WRAPPED], check=True)
