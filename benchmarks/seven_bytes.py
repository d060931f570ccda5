"""The transformer of `thalweg race --problem lm` with AdamW at 16, 7 and 6 bytes a parameter.

    python benchmarks/seven_bytes.py [--seeds 5] [--steps 400]

Three ways, of the same start and the same examples for each seed: all in float32; parameters and
gradients of bfloat16 with `weights="split"` and `state_storage="8bit"`; and the same without the
correction. The arithmetic of the model is that of float32 in all, on the parameters as they are: a
forward pass in bfloat16 would add what it loses itself. Prints the loss on examples for testing,
its mean over seeds and their spread; ends with 1 if the means of the first two are further apart
than the spread of the first.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
from typing import Any

import torch
from torch import nn

from thalweg import optim
from thalweg._cli.race.problems import lm

RATE = 0.01  # of the race
WAYS: dict[str, dict[str, Any] | None] = {
    "float32": None,
    "7 bytes": {"weights": "split", "state_storage": "8bit"},
    "bfloat16 alone": {"state_storage": "8bit"},
}


def main() -> int:
    """Train, and print a line for each seed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, default=5, help="(5)")
    parser.add_argument("--steps", type=int, default=lm.STEPS, help=f"({lm.STEPS})")
    arguments = parser.parse_args()
    print(f"{'seed':6}" + "".join(f"{name:>16}" for name in WAYS))
    losses: dict[str, list[float]] = {name: [] for name in WAYS}
    for seed in range(arguments.seeds):
        for name, loss in zip(WAYS, _trained(seed, arguments.steps), strict=True):
            losses[name].append(loss)
        print(
            f"{seed:<6}" + "".join(f"{seed_losses[-1]:16.4f}" for seed_losses in losses.values()),
            flush=True,
        )
    means = {name: statistics.mean(seed_losses) for name, seed_losses in losses.items()}
    spreads = {name: statistics.pstdev(seed_losses) for name, seed_losses in losses.items()}
    print(f"{'mean':6}" + "".join(f"{mean:16.4f}" for mean in means.values()))
    print(f"{'spread':6}" + "".join(f"{spread:16.4f}" for spread in spreads.values()))
    return int(abs(means["7 bytes"] - means["float32"]) > spreads["float32"])


def _trained(seed: int, steps: int) -> list[float]:
    """Return the final test loss of each way."""
    problem = lm.load(seed)
    torch.manual_seed(seed)
    start = problem.make_model()
    order = problem.order(1, seed)[:steps]
    return [_train(problem, copy.deepcopy(start), order, options) for options in WAYS.values()]


def _train(problem: Any, model: nn.Module, order: Any, options: dict[str, Any] | None) -> float:
    if options is None:
        params = [*model.parameters()]
    else:
        params = [nn.Parameter(param_.detach().to(torch.bfloat16)) for param_ in model.parameters()]
    optimizer = optim.AdamW(params, lr=RATE, **(options or {}))
    for rows in order:
        _show(model, params)
        problem.loss(model, rows).backward()
        for param, model_param in zip(params, model.parameters(), strict=True):
            if param is not model_param and model_param.grad is not None:
                param.grad = model_param.grad.to(param.dtype)
        optimizer.step()
        model.zero_grad()
    _show(model, params)
    return problem.scores(model).test_loss


def _show(model: nn.Module, params: list[nn.Parameter]) -> None:
    """Copy the parameters into the model, in float32."""
    with torch.no_grad():
        for model_param, param in zip(model.parameters(), params, strict=True):
            if model_param is not param:
                model_param.copy_(param)


if __name__ == "__main__":
    sys.exit(main())
