"""Losses over a sample of many classes: noise-contrastive estimation and sampled softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
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
    "log_uniform_candidate_sampler",
    "nce_loss",
    "sampled_softmax_loss",
    "uniform_candidate_sampler",
]

_LOWEST = float(np.finfo(np.float32).min)


class Candidates(NamedTuple):
    """Sampled classes, and how often each class is expected among them.

    Attributes:
        sampled_candidates: int64, of shape (num_sampled,).
        true_expected_count: Of the true classes, float32, of their shape.
        sampled_expected_count: Of the sampled classes, float32.
    """

    sampled_candidates: Tensor
    true_expected_count: Tensor
    sampled_expected_count: Tensor


Draw = Callable[[int, torch.Generator | None], torch.Tensor]
Probability = Callable[[torch.Tensor], torch.Tensor]


def log_uniform_candidate_sampler(
    true_classes: object,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    seed: int | None = None,
    name: str | None = None,
) -> Candidates:
    """Classes below `range_max`, of which class k has the probability
    log((k + 2) / (k + 1)) / log(range_max + 1): for classes that are sorted by how frequent they
    are.

    Args:
        true_classes: Integers of shape (batch, num_true).
        num_true: How many there are for each example.
        num_sampled: How many classes are sampled, for the whole batch.
        unique: Whether they differ from each other.
        range_max: The number of classes.
        seed: Optional.
        name: Optional.

    Raises:
        InvalidArgumentError: There are not that many unique classes.
    """
    span = math.log1p(range_max)

    def draw(count: int, generator: torch.Generator | None) -> torch.Tensor:
        numbers = torch.rand(count, dtype=torch.float64, device="cpu", generator=generator)
        return torch.expm1(numbers * span).long() % range_max

    def probability(classes: torch.Tensor) -> torch.Tensor:
        k = classes.double()
        return torch.log((k + 2) / (k + 1)) / span

    title = name or "LogUniformCandidateSampler"
    return _sample_classes(
        draw, probability, true_classes, num_sampled, unique, range_max, seed, title
    )


def uniform_candidate_sampler(
    true_classes: object,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    seed: int | None = None,
    name: str | None = None,
) -> Candidates:
    """Classes below `range_max` that are all as probable; otherwise as
    `log_uniform_candidate_sampler`.
    """

    def draw(count: int, generator: torch.Generator | None) -> torch.Tensor:
        return torch.randint(
            range_max, (count,), dtype=torch.int64, device="cpu", generator=generator
        )

    def probability(classes: torch.Tensor) -> torch.Tensor:
        return torch.full_like(classes, 1 / range_max, dtype=torch.float64)

    title = name or "UniformCandidateSampler"
    return _sample_classes(
        draw, probability, true_classes, num_sampled, unique, range_max, seed, title
    )


def _sample_classes(
    draw: Draw,
    probability: Probability,
    true_classes: object,
    count: int,
    unique: bool,
    range_max: int,
    seed: int | None,
    name: str,
) -> Candidates:
    if unique and count > range_max:
        raise InvalidArgumentError(f"{count} unique classes cannot be sampled from {range_max}.")
    true_classes, generator = tensor(true_classes), _graph.numbers_of(seed)

    def sample(wanted: torch.Tensor) -> list[torch.Tensor]:
        found, tries = (_draw_unique if unique else _draw_any)(draw, count, generator())
        found = found.to(wanted.device)
        return [found, *(_expected_count(probability(x), count, tries) for x in (wanted, found))]

    if not isinstance(true_classes, _graph.SymbolicTensor):
        return Candidates(*sample(true_classes))
    outputs = [
        _graph.Output(torch.int64, (count,), ()),
        _graph.Output(torch.float32, true_classes.shape, ()),
        _graph.Output(torch.float32, (count,), ()),
    ]
    return Candidates(*_graph.operation(sample, [true_classes], name, kind="pure", outputs=outputs))


def _draw_any(
    draw: Draw, count: int, generator: torch.Generator | None
) -> tuple[torch.Tensor, int]:
    return draw(count, generator), count


def _draw_unique(
    draw: Draw, count: int, generator: torch.Generator | None
) -> tuple[torch.Tensor, int]:
    """The first `count` different classes, and how many were drawn to find them."""
    drawn = np.empty(0, np.int64)
    first = np.empty(0, np.int64)
    while len(first) < count:
        more = draw(max(2 * count, len(drawn)), generator).numpy()
        drawn = np.concatenate([drawn, more])
        first = np.sort(np.unique(drawn, return_index=True)[1])
    places = first[:count]
    return torch.from_numpy(drawn[places]), int(places[-1]) + 1 if count else 0


def _expected_count(p: torch.Tensor, count: int, tries: int) -> torch.Tensor:
    found = p * count if tries == count else -torch.expm1(tries * torch.log1p(-p))
    return found.float()


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
        weights: A row for each class. The gradient is slices: of the true and the sampled rows.
        biases: A number for each class.
        labels: The true classes, of shape (batch, num_true).
        inputs: Of shape (batch, row).
        num_sampled: How many classes are sampled.
        num_classes: How many there are.
        num_true: How many are true for each example.
        sampled_values: What a sampler gives; by default `log_uniform_candidate_sampler`.
        remove_accidental_hits: Whether a sampled class that is true for an example does not count.
        name: Optional.
        partition_strategy: Place of the rows in several tables, as of `embedding_lookup`.
    """
    logits, wanted = _sampled_logits(
        weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values,
        remove_accidental_hits, None, name, partition_strategy,
    )  # fmt: skip

    def loss(given: Tensor, target: Tensor) -> Tensor:
        entropy = torch.nn.functional.binary_cross_entropy_with_logits
        return entropy(given, target, reduction="none").sum(1)

    return call(loss, logits, wanted, name=name)


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
    """Return the cross entropy of each example over its true and the sampled classes.

    `seed` is that of the sampler; the other arguments are those of `nce_loss`.
    """
    logits, wanted = _sampled_logits(
        weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values,
        remove_accidental_hits, seed, name, partition_strategy,
    )  # fmt: skip

    def loss(given: Tensor, target: Tensor) -> Tensor:
        return -(target * torch.log_softmax(given, -1)).sum(-1)

    return call(loss, logits, wanted, name=name)


def _sampled_logits(
    weights: object,
    biases: object,
    labels: object,
    inputs: object,
    num_sampled: int,
    num_classes: int,
    num_true: int,
    sampled_values: Any,
    remove_accidental_hits: bool,
    seed: int | None,
    name: str,
    strategy: str | None,
) -> tuple[Tensor, Tensor]:
    """The logits of the true and the sampled classes of each example, less the logarithm of how
    often each is expected; and the probabilities that they should have.
    """
    labels = cast(labels, torch.int64)
    if sampled_values is None:
        sampled_values = log_uniform_candidate_sampler(
            labels, num_true, num_sampled, True, num_classes, seed
        )
    sampled, true_count, sampled_count = (stop_gradient(each) for each in sampled_values)
    ids = call(lambda own, others: torch.cat([own.reshape(-1), others]), labels, sampled)
    rows, shifts = look_up(weights, ids, strategy), look_up(biases, ids, strategy)

    def compare(
        inputs: Tensor, rows: Tensor, shifts: Tensor, labels: Any, others: Any, own: Any, rest: Any
    ) -> tuple[Tensor, Tensor]:
        labels, own = labels.reshape(-1, num_true), own.reshape(-1, num_true)
        count = labels.numel()
        true = (inputs.unsqueeze(1) * rows[:count].unflatten(0, labels.shape)).sum(-1)
        true = true + shifts[:count].reshape(labels.shape) - own.log()
        noise = inputs @ rows[count:].T + shifts[count:]
        if remove_accidental_hits:
            hits = (labels.unsqueeze(-1) == others).any(1)
            noise = noise + hits * _LOWEST
        noise = noise - rest.log()
        wanted = torch.cat([torch.ones_like(true) / num_true, torch.zeros_like(noise)], 1)
        return torch.cat([true, noise], 1), wanted.detach()

    parts = (tensor(inputs), rows, shifts, labels, sampled, true_count, sampled_count)
    return call(compare, *parts, name=f"{name}/logits")
