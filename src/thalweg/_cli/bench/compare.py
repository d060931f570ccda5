"""Comparison of a rule on a set of shapes with its peers and the machine, as rows of figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
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
OURS = ("thalweg", "torch")  # whose step is measured


@dataclass(frozen=True)
class BenchmarkRow:
    """Figures of a contender for a rule.

    Attributes:
        rule: The rule's name.
        contender: thalweg, a peer, or the roofline.
        ms: Milliseconds of a step.
        ratio: The time in units of torch's fused Adam in the same rounds; below 1 is faster.
        gbps: GB/s, counting each stream the rule needs once.
        of_roofline: Share of the roofline that is reached; 1 is the machine's limit.
        extra_bytes: The most memory that a step takes beyond the memory in use between steps.
        state_bytes: Bytes of the state, per parameter; None of peers beside torch.
        disturbance: The number of cores that other processes used meanwhile.
        verdict: "quiet", or why the figures cannot be trusted: see `Timings.verdict`.
        rounds_ms: The median step of each round, in milliseconds.
        quiet_rounds: The number of rounds that were not disturbed.
        spread: The width of the middle half of the ratios, as a share of their median.
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

    def as_json(self) -> dict[str, Any]:
        """Return a dictionary of plain values."""
        return asdict(self)


def needed_bytes(shapes: ShapeSet, entry: BenchmarkedRule, wanted: Sequence[str]) -> int:
    """About the most memory that `compare` takes."""
    slots = entry.slots
    own = 2 + slots * 2 + 2  # variables, gradients; slots of ours and the roofline; anchor
    in_torch = sum(name.startswith("torch-") for name in wanted)
    temporaries = 2 if {"torch-foreach", "torch-forloop"} & set(wanted) else 0
    others = len(wanted) - in_torch
    return shapes.bytes * (own + in_torch * slots + temporaries + others * (3 + slots))


def compare(
    rule: str,
    entry: BenchmarkedRule,
    shapes: ShapeSet,
    wanted: Sequence[str],
    *,
    rounds: int = 7,
    options: Mapping[str, object] | None = None,
    progress: Callable[[int, int, Timings], object] | None = None,
    doing: Callable[[str], object] = lambda now: None,
) -> list[BenchmarkRow]:
    """Measure a rule on these shapes.

    Args:
        rule: Its name, for the rows.
        entry: What it is.
        shapes: The variables.
        wanted: Peers, of `peers.PEERS`.
        rounds: Interleaved rounds.
        options: Further arguments of our optimizer.
        progress: Called after each round, as `timing.measure` does.
        doing: Called with what comes next, between what is timed.
    """
    doing("making the variables")
    made, own = workload.make_tensors(shapes), workload.make_optimizer(entry, options)
    contenders = [
        Contender(entry.label, workload.step_of(own, made)),
        *peers.make_contenders(entry, made, tuple(wanted)),
        Contender(ROOFLINE, roofline.roofline(entry.slots, made.variables, made.gradients)),
    ]
    anchor = "torch-fused"
    if rule != "Adam" or anchor not in wanted:
        anchor = ANCHOR
        adam = peers.torch_step(registry.entry("Adam"), made, "fused")
        if adam is None:
            raise RuntimeError("This torch has no fused Adam to compare with.")
        contenders.append(Contender(ANCHOR, adam))
    timings = measure(contenders, rounds=rounds, progress=progress, doing=doing)
    doing("measuring the memory that a step takes")
    once = roofline.count_streams(entry.slots)
    streams = {each.name: once + entry.norms for each in contenders} | {ROOFLINE: once}
    spreads = {each.name: timings.spread(each.name, anchor) for each in contenders}
    return [
        BenchmarkRow(
            rule=rule,
            contender=each.name,
            ms=1e3 * timings.median(each.name),
            ratio=timings.ratio(each.name, anchor),
            gbps=shapes.bytes * streams[each.name] / timings.median(each.name) / 1e9,
            of_roofline=timings.ratio(ROOFLINE, each.name) * streams[each.name] / once,
            extra_bytes=memory.extra_bytes(each.step),
            state_bytes=_state_bytes(own if each.name in OURS else each.step, shapes),
            disturbance=timings.disturbance,
            verdict=_worse_verdict(timings.verdict, spreads[each.name]),
            rounds_ms=tuple(1e3 * seconds for seconds in timings.seconds[each.name]),
            quiet_rounds=len(timings.quiet()),
            spread=spreads[each.name],
        )
        for each in contenders
        if each.name != ANCHOR
    ]


def _state_bytes(kept_by: object, shapes: ShapeSet) -> float | None:
    """Bytes for each parameter that an optimizer keeps, or torch's, whose step it is."""
    theirs = getattr(kept_by, "__self__", None)
    if isinstance(theirs, torch.optim.Optimizer):
        own = [each for state in theirs.state.values() for each in state.values()]
    elif hasattr(kept_by, "variables"):
        own = variables_of(kept_by)
    else:
        return None
    return sum(each.nbytes for each in own if isinstance(each, Tensor)) / shapes.parameters


def _worse_verdict(verdict: Verdict, spread: float) -> Verdict:
    return "unsteady" if verdict == "quiet" and spread > SPREAD else verdict
