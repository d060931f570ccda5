"""Timing of a rule, of other libraries (peers) and of a memory-bound kernel (the roofline)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thalweg._cli.bench import memory, peers, registry, roofline, workload
from thalweg._cli.bench.registry import BenchmarkedRule
from thalweg._cli.bench.shapes import ShapeSet
from thalweg._cli.bench.timing import SPREAD, Contender, Timings, Verdict, measure
from thalweg._cli.registry import variables_of

ANCHOR = "anchor"
ROOFLINE = "roofline"
# Contenders whose optimizers run in this process, so that their states can be counted.
TIMED_HERE = ("thalweg", "torch")


@dataclass(frozen=True)
class BenchmarkRow:
    """Measurements of one contender: thalweg, a peer or the roofline.

    Attributes:
        rule: The rule's name.
        contender: thalweg, a peer, or the roofline.
        ms: Milliseconds of a step.
        ratio: The time divided by the time of torch's fused Adam in the same rounds.
        gbps: GB/s; each tensor that the rule reads or writes counts once.
        of_roofline: Bandwidth divided by the roofline's; 1 is the machine's limit.
        extra_bytes: The most memory that a step takes beyond the memory in use between steps.
        state_bytes: Bytes of optimizer state per parameter; None for peers other than torch.
        disturbance: The number of cores that other processes used during the rounds.
        verdict: "quiet", or why the figures cannot be trusted: see `Timings.verdict`.
        rounds_ms: The median step of each round, in milliseconds.
        quiet_rounds: The number of rounds that were not disturbed.
        spread: The interquartile range of the ratios, divided by the median.
    """

    rule: str
    contender: str
    ms: float
    ratio: float
    gbps: float
    of_roofline: float
    extra_bytes: int
    state_bytes: float | None
    disturbance: float
    verdict: Verdict
    rounds_ms: tuple[float, ...]
    quiet_rounds: int = 0
    spread: float = 0.0


def needed_bytes(shapes: ShapeSet, entry: BenchmarkedRule, peer_names: Sequence[str]) -> int:
    """Estimate the peak memory of `compare` in bytes."""
    slots = entry.slots
    # Variables and gradients; slots of thalweg's optimizer and of the roofline; anchor.
    fixed_streams = 2 + slots * 2 + 2
    in_torch = sum(name.startswith("torch-") for name in peer_names)
    temporaries = 2 if {"torch-foreach", "torch-forloop"} & set(peer_names) else 0
    other_peers = len(peer_names) - in_torch
    return shapes.bytes * (
        fixed_streams + in_torch * slots + temporaries + other_peers * (3 + slots)
    )


def compare(
    rule: str,
    entry: BenchmarkedRule,
    shapes: ShapeSet,
    peer_names: Sequence[str],
    *,
    rounds: int = 7,
    options: Mapping[str, object] | None = None,
    progress: Callable[[int, int, Timings], object] | None = None,
    doing: Callable[[str], object] = lambda now: None,
) -> list[BenchmarkRow]:
    """Time a rule and its peers on a set of shapes; return one row per contender.

    Args:
        rule: The rule's name in the rows.
        entry: The rule, with names in other libraries.
        peer_names: The peers to time, named as in `peers.PEERS`.
        rounds: The number of interleaved rounds.
        options: Additional constructor arguments of thalweg's optimizer.
        progress: `progress(quiet_rounds, rounds, timings)` is called before each round.
        doing: `doing(text)` is called before each timed block with a description of the block.
    """
    doing("making the variables")
    problem, optimizer = workload.make_tensors(shapes), workload.make_optimizer(entry, options)
    own_contender = Contender(entry.label, workload.step_of(optimizer, problem))
    contenders = [own_contender, *peers.make_contenders(entry, problem, tuple(peer_names))]
    step = roofline.roofline(entry.slots, problem.variables, problem.gradients)
    contenders.append(Contender(ROOFLINE, step))
    anchor = "torch-fused"
    if rule != "Adam" or anchor not in peer_names:
        anchor = ANCHOR
        contenders.append(_fused_adam(problem))
    timings = measure(contenders, rounds=rounds, progress=progress, doing=doing)
    # After the timing: profilers slow steps down.
    doing("measuring the memory that a step takes")
    owners = {c.name: optimizer if c.name in TIMED_HERE else c.step for c in contenders}
    return [
        _make_row(rule, entry, shapes, timings, anchor, contender, owners[contender.name])
        for contender in contenders
        if contender.name != ANCHOR
    ]


def _make_row(
    rule: str,
    entry: BenchmarkedRule,
    shapes: ShapeSet,
    timings: Timings,
    anchor: str,
    contender: Contender,
    owner: object,
) -> BenchmarkRow:
    """Run a contender's step to measure its memory; return the contender's row.

    Ratios are to the times of the contender called `anchor`. `owner` is the contender's optimizer,
    whose state is counted, or a function, whose state is unknown.
    """
    name = contender.name
    base_streams = roofline.count_streams(entry.slots)
    streams = base_streams if name == ROOFLINE else base_streams + entry.norms
    spread, median = timings.spread(name, anchor), timings.median(name)
    verdict = timings.verdict
    return BenchmarkRow(
        rule=rule,
        contender=name,
        ms=1e3 * median,
        ratio=timings.ratio(name, anchor),
        gbps=shapes.bytes * streams / median / 1e9,
        of_roofline=timings.ratio(ROOFLINE, name) * streams / base_streams,
        extra_bytes=memory.extra_bytes(contender.step),
        state_bytes=_state_bytes(owner, shapes),
        disturbance=timings.disturbance,
        verdict="unsteady" if verdict == "quiet" and spread > SPREAD else verdict,
        rounds_ms=tuple(1e3 * seconds for seconds in timings.seconds[name]),
        quiet_rounds=len(timings.quiet()),
        spread=spread,
    )


def _fused_adam(problem: Any) -> Contender:
    """Return torch's fused Adam, the contender whose times are the unit of ratios."""
    adam = peers.torch_step(registry.entry("Adam"), problem, "fused")
    if adam is None:
        raise RuntimeError("This torch has no fused Adam to compare with.")
    return Contender(ANCHOR, adam)


def _state_bytes(owner: object, shapes: ShapeSet) -> float | None:
    """Return bytes of optimizer state per parameter; None if `owner` has no readable state."""
    torch_optimizer = getattr(owner, "__self__", None)
    if isinstance(torch_optimizer, torch.optim.Optimizer):
        state_tensors = [
            tensor for state in torch_optimizer.state.values() for tensor in state.values()
        ]
    elif hasattr(owner, "variables"):
        state_tensors = variables_of(owner)
    else:
        return None
    return (
        sum(tensor.nbytes for tensor in state_tensors if isinstance(tensor, Tensor))
        / shapes.parameters
    )
