"""Trainings of numbers of 8 and 16 bits, by optimizers of `thalweg.optim`."""

from __future__ import annotations

import contextlib

import torch

import thalweg


def give_gradients(params, step):
    """Write gradients of a step into the memory of the previous ones, as graphs do."""
    for place, param in enumerate(params):
        generator = torch.Generator().manual_seed(1000 * step + place)
        grad = (torch.randn(param.shape, generator=generator) / 8).to(param.dtype)
        if param.grad is None:
            param.grad = grad
        else:
            param.grad.copy_(grad)


def made_by(make, shapes, dtype=torch.bfloat16, **options):
    generator = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(x, generator=generator).to(dtype)) for x in shapes]
    return make(params, lr=0.01, **options)


def take_step(optimizer, number, overflow=None):
    give_gradients(optimizer.param_groups[0]["params"], number)
    if overflow is not None:
        optimizer.found_inf = torch.tensor([float(overflow)])
        optimizer.grad_scale = torch.tensor(8.0)
    optimizer.step()


def written(optimizer):
    state_values = [x for state in optimizer.state.values() for x in state.values()]
    values = (*optimizer.param_groups[0]["params"], *state_values)
    return plain(x for x in values if isinstance(x, torch.Tensor))


def plain(tensors):
    return [x.detach().short() if x.dtype == torch.uint8 else x.detach().clone() for x in tensors]


def trained(engine, make, steps=3, context=contextlib.nullcontext, overflows=(), **options):
    """Return parameters and state after some steps.

    Args:
        engine, make, options: As those of `thalweg.engine` and `made_by`.
        steps: How many.
        context: Given the optimizer, a block around the last one.
        overflows: What a scaler has found before each.
    """
    with thalweg.engine(engine):
        optimizer = made_by(make, **options)
        for number in range(steps):
            with context(optimizer) if number == steps - 1 else contextlib.nullcontext():
                take_step(optimizer, number, *overflows[number : number + 1])
    return written(optimizer)


def replayed(captured, eager, captured_optimizer):
    """Return the results of two equal optimizers, one of which replays a graph.

    Args:
        captured: A block that makes the graph.
        eager, captured_optimizer: The optimizers.
    """
    with thalweg.engine("cuda"):
        for optimizer in (eager, captured_optimizer):
            take_step(optimizer, 0)
        with captured() as graph:
            captured_optimizer.step()
        eager.step()
        for number in range(2):
            give_gradients(captured_optimizer.param_groups[0]["params"], number)
            graph.replay()
            take_step(eager, number)
    return written(captured_optimizer), written(eager)
