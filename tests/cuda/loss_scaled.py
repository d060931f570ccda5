"""Trainings by `optimize_loss` with a loss scaler, on any device, whose gradients overflow."""

from __future__ import annotations

import contextlib
import math
from functools import partial

import pytest
import torch

import thalweg
from thalweg._core import vectors
from thalweg.openseq2seq.optimizers import lr_policies, optimize_loss
from thalweg.openseq2seq.optimizers.novograd import NovoGrad

OVERFLOWS = [None, math.inf, None, math.nan, None, None, None, math.inf, None]
HALF, BRAIN, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
LARC = {"larc_eta": 0.01, "larc_mode": "clip"}
BACKOFF = {"loss_scaling": "Backoff", "loss_scaling_params": {"scale_max": 64.0, "step_window": 2}}
LOG_MAX = {"loss_scaling": "LogMax", "loss_scaling_params": {"scale_max": 64.0}}
DECAYING = partial(lr_policies.exp_decay, learning_rate=0.1, decay_steps=2, decay_rate=0.3,
                   use_staircase_decay=False)  # fmt: skip


class Training:
    """Steps of `optimize_loss` with gradients that overflow now and then.

    Args:
        dtypes: Those of the variables.
        optimizer: Of `optimize_loss`.
        policy: Makes the learning rate of the step.
        device: Where the variables and their gradients are.
        **options: Others of `optimize_loss`.
    """

    def __init__(self, dtypes, optimizer="Adam", policy=DECAYING, device="cpu", **options):
        generator = torch.Generator().manual_seed(0)
        sizes = ((5, 7), (130,), (), (3,))
        self.variables = [
            thalweg.Variable(
                torch.randn(size, generator=generator).to(device, dtype), name=f"v{place}"
            )
            for place, (size, dtype) in enumerate(zip(sizes, dtypes, strict=False))
        ]
        self.step = optimize_loss(
            lambda: None, optimizer, options.pop("params", {}), policy, self.variables,
            dtype="mixed", **options,
        )  # fmt: skip
        self._generator = generator
        self.outcomes = []

    def gradients(self, overflow):
        scale = float(self.step.loss_scale)
        grads = [
            torch.randn(var.shape, generator=self._generator) * scale for var in self.variables
        ]
        if overflow is not None:
            grads[1][7] = overflow
        return [
            grad.to(var.device, var.dtype) for grad, var in zip(grads, self.variables, strict=True)
        ]

    def take(self, overflow, context=contextlib.nullcontext):
        gradients = self.gradients(overflow)
        with context():
            self.outcomes.append(self.step.apply_gradients(gradients))

    def there(self):
        """Return the tensors that are on the device only."""
        slots = self.step.optimizer.variables()
        scaler = self.step.loss_scaler
        scaler_vars = [] if scaler is None else [*scaler.variables.values(), self.step.global_step]
        return [*self.variables, *slots, *scaler_vars]

    def written(self):
        state = {**self.step.state_dict(), "rate": self.step.learning_rate}
        return plain([*self.variables, *(state[name] for name in sorted(state))])


class Log:
    """A writer of summaries that remembers them."""

    def __init__(self):
        self.records = []

    def add_scalar(self, tag, value, step):
        self.records.append((step, tag, value))

    def add_histogram(self, tag, values, step):
        self.records.append((step, tag, values))

    def plain(self):
        """All of it as numbers, and bits of NaN alike."""
        return [(step, tag, torch.as_tensor(value)) for step, tag, value in self.records]


def plain(tensors):
    """Return floating-point numbers of the host, in float64 what is none."""
    copies = [tensor.detach().cpu() for tensor in tensors]
    return [tensor if tensor.is_floating_point() else tensor.double() for tensor in copies]


@contextlib.contextmanager
def computing(engine):
    """Run a block on an engine; on the CPU's no tensor of the CPU stands for one of a GPU."""
    with pytest.MonkeyPatch.context() as patch, thalweg.engine(engine):
        if engine == "cpu":
            patch.setattr(vectors, "_INTERPRETS", False)
        yield


def trained(engine, make, waiting=None):
    """Return a training, whose steps from the third on are taken in `waiting(training)`."""
    with computing(engine):
        training = make()
        for number, overflow in enumerate(OVERFLOWS):
            is_free = waiting is None or number < 2
            context = contextlib.nullcontext if is_free else partial(waiting, training)
            training.take(overflow, context)
    return training


MAKERS = {
    "masters": partial(Training, (HALF, HALF, HALF)),
    "mixed": partial(Training, (HALF, SINGLE, BRAIN, DOUBLE)),
    "momentum": partial(Training, (HALF, HALF), "Momentum", params={"momentum": 0.9}),
    "clips": partial(Training, (HALF, SINGLE), clip_gradients=0.5),
    "larc": partial(Training, (HALF, HALF), larc_params=LARC),
    "NovoGrad": partial(Training, (HALF, HALF), NovoGrad),
    "constant rate": partial(Training, (HALF, HALF), policy=lambda _: 0.1),
    "own policy": partial(Training, (HALF, HALF), policy=lambda step: 0.1 / (int(step) + 1)),
    "runs are added up": partial(Training, (HALF, HALF), iter_size=2),
}


def fresh(key, scaling):
    skips = iter([True, False] * len(OVERFLOWS))
    return partial(MAKERS[key], **scaling, skip_update_ph=lambda: next(skips))
