"""Print the test loss of a rule with 8-bit slots beside float32, over paired seeds.

    python benchmarks/eight_bit_losses.py [--problems digits lm] [--seeds 16] [--rule Muon]

A rule for matrices updates the hidden matrices, and AdamW all else, in 8 bits, too.

A pair has the same start and the same batches. `digits` trains an MLP of 85,000 parameters for 300
steps (it needs scikit-learn), `lm` is the transformer of `thalweg race --problem lm`. Ends with 1
if a mean is more than 0.5 % above that of float32.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from thalweg import optim
from thalweg._cli.race.problems import lm

STORAGES = ("8bit", "dynamic8")
# Maximum increase of the mean loss, as a share of that of float32.
ALLOWED = 0.005


def make_optimizer(model: nn.Module, rule: str, lr: float, **options: Any) -> Any:
    """Return the optimizer of a model; with a rule for matrices, its other parameters get AdamW."""
    if rule == "AdamW":
        return optim.AdamW(model.parameters(), lr=lr, **options)
    params = dict(model.named_parameters())
    matrix_names = [name for name, param in params.items() if param.dim() == 2]
    matrices = [params[name] for name in matrix_names if "embed" not in name]
    matrix_ids = set(map(id, matrices))
    others = [param for param in params.values() if id(param) not in matrix_ids]
    matrix_lr = 3e-3 if rule.endswith("SOAP") else 0.02
    groups = [
        {"params": matrices, "rule": rule, "lr": matrix_lr},
        {"params": others, "rule": "AdamW", "lr": lr},
    ]
    return optim.Mixed(groups, **options)


def train_digits(seed: int, rule: str, **options: Any) -> float:
    """Return the test loss of an MLP on the digits of scikit-learn."""
    from sklearn.datasets import load_digits

    images, labels = (torch.tensor(array) for array in load_digits(return_X_y=True))
    images = (images / 16).float()
    torch.manual_seed(seed)
    order = torch.randperm(len(images))
    train, test = order[:1400], order[1400:]
    sizes = [(64, 256), (256, 256), (256, 10)]
    layers = [layer for size in sizes for layer in (nn.Linear(*size), nn.GELU())]
    model = nn.Sequential(*layers[:-1])
    optimizer = make_optimizer(model, rule, 2e-3, **options)
    for _ in range(300):
        batch = train[torch.randint(0, len(train), (64,))]
        cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        return cross_entropy(model(images[test]), labels[test]).item()


def train_lm(seed: int, rule: str, **options: Any) -> float:
    """Return the test loss of the race's transformer."""
    problem = lm.load(seed)
    torch.manual_seed(seed)
    model = problem.make_model()
    optimizer = make_optimizer(model, rule, 0.01, **options)
    for rows in problem.order(1, seed)[: lm.STEPS]:
        problem.loss(model, rows).backward()
        optimizer.step()
        optimizer.zero_grad()
    return problem.scores(model).test_loss


PROBLEMS: dict[str, Callable[..., float]] = {"digits": train_digits, "lm": train_lm}


def main() -> int:
    """Train, and print a line for each problem and storage."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=[*PROBLEMS])
    parser.add_argument("--seeds", type=int, default=16, help="(16)")
    parser.add_argument("--rule", default="AdamW", help="a class of thalweg.optim (AdamW)")
    arguments = parser.parse_args()
    is_worse = False
    for name in arguments.problems:
        train, seeds = PROBLEMS[name], range(arguments.seeds)
        wide = [train(seed, arguments.rule) for seed in seeds]
        for storage in STORAGES:
            losses_8bit = [train(seed, arguments.rule, state_storage=storage) for seed in seeds]
            pairs = zip(losses_8bit, wide, strict=True)
            shares = [(loss - loss_float32) / statistics.mean(wide) for loss, loss_float32 in pairs]
            mean, error = statistics.mean(shares), statistics.stdev(shares) / len(shares) ** 0.5
            summary = f"{statistics.mean(losses_8bit):.4f}, float32 {statistics.mean(wide):.4f}"
            print(f"{name} {storage}: {summary}, {mean:+.2%} +- {error:.2%}", flush=True)
            is_worse |= mean > ALLOWED
    return int(is_worse)


if __name__ == "__main__":
    sys.exit(main())
