"""Dense steps: Adam against torch's fused Adam, every rule against memory, and clipping."""

from __future__ import annotations

from collections.abc import Mapping

from figure import Figure, compared, measure_ratio

from thalweg._cli.bench import peers, registry, roofline, shapes, workload
from thalweg._cli.bench.registry import BenchmarkedRule
from thalweg._cli.bench.timing import Contender, measure
from thalweg._cli.bench.workload import Workload


def _with_roofline(entry: BenchmarkedRule, problem: Workload) -> list[Contender]:
    """Return a step of a rule, and one addition over the tensors that the rule reads and writes."""
    addition = roofline.roofline(entry.slots, problem.variables, problem.gradients)
    step = workload.thalweg_step(entry, problem)
    return [Contender("thalweg", step), Contender("roofline", addition)]


def adam() -> list[Figure]:
    """Measure Adam through the public call, in units of torch's fused Adam in the same rounds."""
    entry = registry.entry("Adam")
    figures = []
    for name, target in (("gpt2", 0.97), ("resnet50", 0.90), ("small2000", 0.15)):
        problem = workload.make_tensors(shapes.load(name))
        (fused,) = peers.make_contenders(entry, problem, ("torch-fused",))
        step, addition = _with_roofline(entry, problem)
        contenders = [step, fused, addition]
        figures.append(measure_ratio(f"adam_{name}", contenders, target, rounds=11, block=0.2))
    return figures


def measure_shares(entries: Mapping[str, BenchmarkedRule], prefix: str) -> list[Figure]:
    """Measure rules on resnet50: the share of the bandwidth of one add over their streams.

    Args:
        entries: The rules by name.
        prefix: The beginning of the names of figures.
    """
    problem = workload.make_tensors(shapes.resnet50())
    figures = []
    for name, entry in entries.items():
        timings = measure(_with_roofline(entry, problem), rounds=9)
        figures.append(compared(f"{prefix}{name}", timings, "roofline", "thalweg", 0.88, ">="))
    return figures


def rules() -> list[Figure]:
    """Measure every rule of `thalweg.keras`."""
    return measure_shares(registry.ENTRIES, "roofline_")


def clipping() -> list[Figure]:
    """Measure Adam with global_clipnorm on resnet50, in units of plain Adam."""
    entry, problem = registry.entry("Adam"), workload.make_tensors(shapes.resnet50())
    clipped = workload.thalweg_step(entry, problem, {"global_clipnorm": 1.0})
    unclipped = workload.thalweg_step(entry, problem)
    contenders = [Contender("clipped", clipped), Contender("plain", unclipped)]
    return [measure_ratio("global_clipnorm", contenders, 1.30)]
