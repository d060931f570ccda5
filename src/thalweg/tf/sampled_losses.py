"""Losses over a sample of many classes: noise-contrastive estimation and sampled softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from thalweg import _graph
from thalweg.errors import InvalidArgumentError
from thalweg.tf.convert import call, named_in_graphs, tensor
from thalweg.tf.elementwise import cast, stop_gradient
from thalweg.tf.partitioned_lookup import look_up

__all__ = [
    "log_uniform_candidate_sampler", "nce_loss", "sampled_softmax_loss",
    "uniform_candidate_sampler",
]  # fmt: skip

_LOWEST = float(np.finfo(np.float32).min)


class Candidates(NamedTuple):
    """Sampled classes and expected counts of classes.

    Attributes:
        sampled_candidates: Sampled classes, int64, of shape (num_sampled,).
        true_expected_count: Expected counts of the true classes, float32, (batch, num_true).
        sampled_expected_count: Expected counts of the sampled classes, float32.
    """

    sampled_candidates: Tensor
    true_expected_count: Tensor
    sampled_expected_count: Tensor


Draw = Callable[[int, torch.Generator | None], torch.Tensor]
Probability = Callable[[torch.Tensor], torch.Tensor]


class _Sampler(NamedTuple):
    """Distribution of classes.

    Attributes:
        draw: `draw(count, generator)` returns random classes.
        probability: `probability(classes)` returns probabilities.
        range_max: The number of classes.
    """

    name: str
    draw: Draw
    probability: Probability
    range_max: int


def log_uniform_candidate_sampler(
    true_classes: object,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    seed: int | None = None,
    name: str | None = None,
) -> Candidates:
    """Sample classes below `range_max` log-uniformly, for classes sorted by frequency.

    The probability of class k is log((k + 2) / (k + 1)) / log(range_max + 1).

    Args:
        true_classes: Integers of shape (batch, num_true).
        num_true: Number of true classes of each example.
        num_sampled: Number of classes to sample for the batch.
        unique: True to sample different classes.
        range_max: The number of classes.

    Raises:
        InvalidArgumentError: `unique` is True, and `num_sampled` is above `range_max`.
    """
    span = math.log1p(range_max)

    def draw(count: int, generator: torch.Generator | None) -> torch.Tensor:
        uniform_numbers = torch.rand(count, dtype=torch.float64, device="cpu", generator=generator)
        # Rounding may yield `range_max` itself.
        return torch.expm1(uniform_numbers * span).long() % range_max

    def probability(classes: torch.Tensor) -> torch.Tensor:
        k = classes.double()
        return torch.log((k + 2) / (k + 1)) / span

    sampler = _Sampler(name or "LogUniformCandidateSampler", draw, probability, range_max)
    return _sample_classes(sampler, true_classes, num_sampled, unique, seed)


def uniform_candidate_sampler(
    true_classes: object,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    seed: int | None = None,
    name: str | None = None,
) -> Candidates:
    """Sample classes below `range_max` uniformly; see `log_uniform_candidate_sampler`."""

    def draw(count: int, generator: torch.Generator | None) -> torch.Tensor:
        return torch.randint(
            range_max, (count,), dtype=torch.int64, device="cpu", generator=generator
        )

    def probability(classes: torch.Tensor) -> torch.Tensor:
        return torch.full_like(classes, 1 / range_max, dtype=torch.float64)

    sampler = _Sampler(name or "UniformCandidateSampler", draw, probability, range_max)
    return _sample_classes(sampler, true_classes, num_sampled, unique, seed)


def _sample_classes(
    sampler: _Sampler, true_classes: object, count: int, unique: bool, seed: int | None
) -> Candidates:
    """Return the `Candidates` with `count` sampled classes, all different if `unique` is True."""
    draw, range_max = sampler.draw, sampler.range_max
    if unique and count > range_max:
        raise InvalidArgumentError(f"{count} unique classes cannot be sampled from {range_max}.")
    true_classes, generator = tensor(true_classes), _graph.numbers_of(seed)

    def sample(labels: torch.Tensor) -> list[torch.Tensor]:
        source = generator()
        sampled_ids, tries = (
            _draw_unique(draw, count, source) if unique else (draw(count, source), count)
        )
        sampled_ids = sampled_ids.to(labels.device)
        probabilities = [sampler.probability(x) for x in (labels, sampled_ids)]
        expected = [_expected_count(values, count, tries) for values in probabilities]
        return [sampled_ids, *expected]

    if not isinstance(true_classes, _graph.SymbolicTensor):
        return Candidates(*sample(true_classes))
    outputs = [
        _graph.Output(torch.int64, (count,), ()),
        _graph.Output(torch.float32, true_classes.shape, ()),
        _graph.Output(torch.float32, (count,), ()),
    ]
    return Candidates(
        *_graph.operation(sample, [true_classes], sampler.name, kind="pure", outputs=outputs)
    )


def _draw_unique(
    draw: Draw, count: int, generator: torch.Generator | None
) -> tuple[torch.Tensor, int]:
    """Call `draw(n, generator)` until `count` classes differ; return (classes, number of draws)."""
    draws = np.empty(0, np.int64)
    first = np.empty(0, np.int64)
    # The number of draws enters the expected counts, so surplus draws are not counted.
    while len(first) < count:
        new_draws = draw(max(2 * count, len(draws)), generator).numpy()
        draws = np.concatenate([draws, new_draws])
        first = np.sort(np.unique(draws, return_index=True)[1])
    positions = first[:count]
    return torch.from_numpy(draws[positions]), int(positions[-1]) + 1 if count else 0


def _expected_count(p: torch.Tensor, count: int, tries: int) -> torch.Tensor:
    # 1 - (1 - p)^tries is the probability of at least one draw of a class. The functions `log1p`
    # and `expm1` keep the digits of a small p.
    expected = p * count if tries == count else -torch.expm1(tries * torch.log1p(-p))
    return expected.float()


@named_in_graphs(9, "partition_strategy")
def nce_loss(
    weights: object,
    biases: object,
    labels: object,
    inputs: object,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: object = None,
    remove_accidental_hits: bool = False,
    name: str = "nce_loss",
    *,
    partition_strategy: str | None = None,
) -> Tensor:
    """Return the noise-contrastive estimation loss of each example.

    Args:
        weights: One row per class. The gradient is `IndexedSlices` of true and sampled rows.
        biases: One number per class.
        labels: The true classes, of shape (batch, num_true).
        inputs: Tensor of shape (batch, row length).
        num_sampled: Number of sampled classes.
        num_classes: Number of classes.
        num_true: Number of true classes of each example.
        sampled_values: Result of a sampler; by default of `log_uniform_candidate_sampler`.
        remove_accidental_hits: True to ignore sampled classes that are true for an example.
        partition_strategy: Order of the rows in several tables, see `embedding_lookup`.
    """
    logits, targets = _SampledClasses(
        weights=weights, biases=biases, labels=labels, inputs=inputs, num_sampled=num_sampled,
        num_classes=num_classes, num_true=num_true, sampled_values=sampled_values,
        remove_accidental_hits=remove_accidental_hits, seed=None, name=name,
        partition_strategy=partition_strategy,
    ).compute()  # fmt: skip

    def loss(logit: Tensor, target: Tensor) -> Tensor:
        entropy = torch.nn.functional.binary_cross_entropy_with_logits
        return entropy(logit, target, reduction="none").sum(1)

    return call(loss, logits, targets, name=name)


@named_in_graphs(9, "partition_strategy")
def sampled_softmax_loss(
    weights: object,
    biases: object,
    labels: object,
    inputs: object,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: object = None,
    remove_accidental_hits: bool = True,
    seed: int | None = None,
    name: str = "sampled_softmax_loss",
    *,
    partition_strategy: str | None = None,
) -> Tensor:
    """Return the cross entropy of each example over the true and the sampled classes.

    `seed` is the seed of the sampler. Further arguments are as in `nce_loss`.
    """
    logits, targets = _SampledClasses(
        weights=weights, biases=biases, labels=labels, inputs=inputs, num_sampled=num_sampled,
        num_classes=num_classes, num_true=num_true, sampled_values=sampled_values,
        remove_accidental_hits=remove_accidental_hits, seed=seed, name=name,
        partition_strategy=partition_strategy,
    ).compute()  # fmt: skip

    def loss(logit: Tensor, target: Tensor) -> Tensor:
        return -(target * torch.log_softmax(logit, -1)).sum(-1)

    return call(loss, logits, targets, name=name)


@dataclass(frozen=True, kw_only=True)
class _SampledClasses:
    """Arguments of a loss over sampled classes; see `nce_loss`."""

    weights: object
    biases: object
    labels: object
    inputs: object
    num_sampled: int
    num_classes: int
    num_true: int
    sampled_values: Any
    remove_accidental_hits: bool
    seed: int | None
    name: str
    partition_strategy: str | None

    def compute(self) -> tuple[Tensor, Tensor]:
        """Return (logits, target probabilities) of the true and sampled classes, per example.

        The logarithm of a class's expected count is subtracted from the logit of the class.
        """
        labels = cast(self.labels, torch.int64)
        sampled_values = self.sampled_values
        if sampled_values is None:
            sampled_values = log_uniform_candidate_sampler(
                labels, self.num_true, self.num_sampled, True, self.num_classes, self.seed
            )
        sampled, *expected_counts = (stop_gradient(candidates) for candidates in sampled_values)
        ids = call(lambda x, y: torch.cat([x.reshape(-1), y]), labels, sampled)
        rows, shifts = (
            look_up(table, ids, self.partition_strategy) for table in (self.weights, self.biases)
        )
        operands = (tensor(self.inputs), rows, shifts, labels, sampled, *expected_counts)
        return call(self._compare, *operands, name=f"{self.name}/logits")

    def _compare(
        self, inputs: Tensor, rows: Tensor, shifts: Tensor, labels: Any, *sampled: Any
    ) -> tuple[Tensor, Tensor]:
        """Return (logits, target probabilities), with a row per example and a column per class.

        True classes come before sampled classes, also in `rows` (weights) and `shifts` (biases).
        `sampled` are the three values of `Candidates`.
        """
        sampled_classes, true_expected, sampled_expected = sampled
        labels = labels.reshape(-1, self.num_true)
        true_expected = true_expected.reshape(-1, self.num_true)
        count = labels.numel()
        true = (inputs.unsqueeze(1) * rows[:count].unflatten(0, labels.shape)).sum(-1)
        true = true + shifts[:count].reshape(labels.shape) - true_expected.log()
        noise = inputs @ rows[count:].T + shifts[count:]
        if self.remove_accidental_hits:
            hits = (labels.unsqueeze(-1) == sampled_classes).any(1)
            # As in TensorFlow, the lowest finite number: infinity would make NaN of 0 * infinity.
            noise = noise + hits * _LOWEST
        noise = noise - sampled_expected.log()
        targets = [torch.ones_like(true) / self.num_true, torch.zeros_like(noise)]
        return torch.cat([true, noise], 1), torch.cat(targets, 1).detach()
