"""Dense steps: Adam against torch's fused Adam, every rule against memory, and clipping."""

from __future__ import annotations

from figure import Figure, compared

from thalweg._cli.bench import peers, registry, roofline, shapes, workload
from thalweg._cli.bench.timing import Contender, measure


def adam() -> list[Figure]:
    """Measure Adam through the public call, in units of torch's fused Adam in the same rounds."""
    entry = registry.entry("Adam")
    figures = []
    for name, target in (("gpt2", 0.97), ("resnet50", 0.90), ("small2000", 0.15)):
        problem = workload.make_tensors(shapes.load(name))
        (fused,) = peers.make_contenders(entry, problem, ("torch-fused",))
        timings = measure(
            [
                Contender("thalweg", workload.thalweg_step(entry, problem)),
                fused,
                Contender(
                    "roofline", roofline.roofline(entry.slots, problem.variables, problem.gradients)
                ),
            ],
            rounds=11, block=0.2,
        )  # fmt: skip
        figures.append(compared(f"adam_{name}", timings, "thalweg", fused.name, target))
    return figures


def rules() -> list[Figure]:
    """Measure every rule on resnet50: the share of the bandwidth of one add over its streams."""
    problem = workload.make_tensors(shapes.resnet50())
    figures = []
    for name, entry in registry.ENTRIES.items():
        timings = measure(
            [
                Contender("thalweg", workload.thalweg_step(entry, problem)),
                Contender(
                    "roofline", roofline.roofline(entry.slots, problem.variables, problem.gradients)
                ),
            ],
            rounds=9, block=0.1,
        )  # fmt: skip
        figures.append(compared(f"roofline_{name}", timings, "roofline", "thalweg", 0.88, ">="))
    return figures


def clipping() -> list[Figure]:
    """Measure Adam with global_clipnorm on resnet50, in units of plain Adam."""
    entry, problem = registry.entry("Adam"), workload.make_tensors(shapes.resnet50())
    clipped = workload.thalweg_step(entry, problem, {"global_clipnorm": 1.0})
    timings = measure(
        [
            Contender("clipped", clipped),
            Contender("plain", workload.thalweg_step(entry, problem)),
        ],
        rounds=9, block=0.1,
    )  # fmt: skip
    return [compared("global_clipnorm", timings, "clipped", "plain", 1.30)]
