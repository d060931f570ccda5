"""Speech recognition in small, trained from a config of OpenSeq2Seq: lines of handwritten digits.

A line is a picture of 3 to 6 digits that is read column by column, 8 pixels to a frame, as speech
is; CTC finds out where each digit stands. No image of a test line is in a training line. The digits
are scikit-learn's (1,797 images of 8 x 8, E. Alpaydin and C. Kaynak, UCI Machine Learning
Repository, CC BY 4.0). See `thalweg._cli.race.problems.digit_lines` for data, model and loss.

`CONFIGS` look like those for Jasper and Deep Speech 2: float16 weights with float32 masters, a loss
scale that backs off on overflow, NovoGrad or LARC, polynomial decay. Run it with
`python examples/openseq2seq_ctc.py`; it trains in mixed precision and in float32, each well under a
minute. On seeds that were not used to choose the settings (20 to 22 with NovoGrad, 5 to 8 with
LARC) 0.5 to 2.1 % of the labels are read wrong then, and the two precisions are at most 0.4 points
apart. It needs scikit-learn for the data and, for --logdir, tensorboard.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from itertools import count
from time import perf_counter
from typing import Any, NamedTuple

import torch

from thalweg._cli.race.problems import digit_lines
from thalweg.openseq2seq import from_config
from thalweg.openseq2seq.optimizers.lr_policies import poly_decay
from thalweg.openseq2seq.optimizers.novograd import NovoGrad
from thalweg.v1.contrib.layers import l2_regularizer

BASE_PARAMS: dict[str, Any] = {
    "random_seed": 0,
    "use_horovod": False,
    "num_epochs": 5,
    "batch_size_per_gpu": 32,
    "dtype": "mixed",
    "loss_scaling": "Backoff",
    "loss_scaling_params": {"scale_max": 2.0**24, "step_window": 200},
    "lr_policy": poly_decay,
    "summaries": [
        "learning_rate",
        "global_gradient_norm",
        "gradient_norm",
        "variable_norm",
        "larc_summaries",
        "loss_scale",
    ],
}
CONFIGS: dict[str, dict[str, Any]] = {
    "novograd": {
        **BASE_PARAMS,
        "optimizer": NovoGrad,
        # With beta1 0.95 and no warm-up one seed of seven stayed where CTC begins, at blanks.
        "optimizer_params": {"beta1": 0.9, "beta2": 0.98, "weight_decay": 0.001},
        "lr_policy_params": {"learning_rate": 0.03, "power": 2.0, "warmup_steps": 100},
    },
    "larc": {
        **BASE_PARAMS,
        "optimizer": "Momentum",
        "optimizer_params": {"momentum": 0.9},
        "lr_policy_params": {"learning_rate": 0.1, "power": 2.0, "warmup_steps": 100},
        "larc_params": {"larc_eta": 0.005},
        "regularizer": l2_regularizer,
        "regularizer_params": {"scale": 0.0005},
    },
}


class Trained(NamedTuple):
    """Result of a training.

    Attributes:
        error_rate: Label error rate on the test lines: edits over labels.
        losses: The loss of each run.
        skipped: Runs without an update, because a gradient was not finite.
        loss_scale: The last one, or None.
        seconds: How long it took.
    """

    error_rate: float
    losses: list[float]
    skipped: int
    loss_scale: float | None
    seconds: float


def train(
    config: dict[str, Any],
    problem: digit_lines.DigitLines,
    half: torch.dtype = torch.float16,
    writer: Any = None,
) -> Trained:
    """Train a model until the last step of a config.

    Args:
        config: In the form of `CONFIGS`.
        problem: The lines.
        half: dtype of the weights if the config says "mixed".
        writer: Optional. Gets the config's summaries, as torch's SummaryWriter does.
    """
    begin = perf_counter()
    torch.manual_seed(config["random_seed"])
    model = digit_lines.LineReader(half if config["dtype"] == "mixed" else torch.float32)
    batches = shuffled(problem, config["random_seed"])
    plan = from_config(config, dataset_size=len(problem.train.targets))
    step = plan.optimize(lambda: problem.loss(model, next(batches)), model, summary_writer=writer)
    losses: list[float] = []
    while step.global_step < plan.last_step:
        losses.append(step().item())
        if writer is not None:
            writer.add_scalar("train_loss", losses[-1], int(step.global_step))
    _, error_rate = digit_lines.measured(model, problem.test)
    scale = None if step.loss_scaler is None else step.loss_scaler.loss_scale.item()
    return Trained(error_rate, losses, len(losses) - plan.last_step, scale, perf_counter() - begin)


def shuffled(problem: digit_lines.DigitLines, seed: int) -> Iterator[torch.Tensor]:
    """Yield rows of one batch after another, without end."""
    for epoch in count():
        yield from problem.order(1, seed + epoch)


def summaries(logdir: str | None, run: str) -> Any:
    """Return a writer for TensorBoard, if there is a folder for it."""
    if logdir is None:
        return contextlib.nullcontext()
    from torch.utils.tensorboard.writer import SummaryWriter

    return SummaryWriter(f"{logdir}/{run}")


def main(arguments: Sequence[str] | None = None) -> dict[str, Trained]:
    parser = argparse.ArgumentParser(description="Reads lines of digits with CTC.")
    parser.add_argument("--config", choices=CONFIGS, default="novograd")
    parser.add_argument("--epochs", type=int, help="[default: as the config says]")
    parser.add_argument("--lines", type=int, default=digit_lines.TRAIN_LINES, help="to train on")
    parser.add_argument("--half", choices=["float16", "bfloat16"], default="float16")
    parser.add_argument("--seed", type=int, default=BASE_PARAMS["random_seed"])
    parser.add_argument("--logdir", help="folder for TensorBoard events")
    options = parser.parse_args(arguments)
    config = {**CONFIGS[options.config], "random_seed": options.seed}
    if options.epochs is not None:
        config = {**config, "num_epochs": options.epochs}
    torch.set_num_threads(1)  # as fast as many for a model this small
    problem = digit_lines.load(options.seed, train_lines=options.lines)
    steps = config["num_epochs"] * (len(problem.train.targets) // config["batch_size_per_gpu"])
    policy = config["lr_policy_params"]
    if policy.get("warmup_steps", 0) >= steps:  # a training this short has no time for it
        config = {**config, "lr_policy_params": {**policy, "warmup_steps": steps // 4}}
    results: dict[str, Trained] = {}
    for dtype in ("mixed", torch.float32):
        name = dtype if isinstance(dtype, str) else "float32"
        with summaries(options.logdir, f"{options.config}-{name}") as writer:
            result = train(
                {**config, "dtype": dtype}, problem, getattr(torch, options.half), writer
            )
        results[name] = result
        scale = "" if dtype != "mixed" else f", loss scale {result.loss_scale:g}"
        print(
            f"{options.config}, {name}: label error rate {result.error_rate:.2%}, loss"
            f" {result.losses[-1]:.4f}, {result.skipped} of {len(result.losses)} runs skipped"
            f"{scale}, {result.seconds:.0f} s"
        )
    return results


if __name__ == "__main__":
    main()
