"""TensorFlow 1's optimizers: every rule against memory, and the memory of gradients when gated."""

from __future__ import annotations

import torch
from dense import measure_shares
from figure import Figure
from torch import Tensor, nn

from thalweg._cli.bench import memory, registry
from thalweg.v1 import train

# Its time is that of pow; that of norms over other streams; that of AdamV1, whose formula it is.
UNMEASURED_RULES = {"FtrlPowerV1", "LARS", "NesterovLARS", "NovoGrad", "LazyAdam"}
ENTRIES = {
    "GradientDescent": registry.entry("v1:GradientDescentOptimizer"),
    **{name: entry for name, entry in registry.V1.items() if name not in UNMEASURED_RULES},
}
LAYERS, WIDTH, BATCH = 12, 1024, 1
MOST_VARIABLES = 1.1


def rules() -> list[Figure]:
    """Measure `apply_gradients` of every rule of `thalweg.v1.train` and its `contrib.opt`."""
    return measure_shares(ENTRIES, "v1_roofline_")


def gating() -> list[Figure]:
    """Measure the peak memory of `minimize` on a 12-layer MLP in units of its largest variable.

    Counted is what torch's CPU allocator holds at most during a step beyond what it held before
    it, by the profiler's record of each allocation: gradients, and what little the forward pass
    keeps of a batch of one row. Slots exist by then.
    """
    gates = {"GATE_NONE": train.Optimizer.GATE_NONE, "GATE_GRAPH": train.Optimizer.GATE_GRAPH}
    peak_bytes = {name: _most_held(gate) for name, gate in gates.items()}
    largest = WIDTH * WIDTH * torch.float32.itemsize
    note = ", ".join(
        f"{name} {count / 2**20:.4g} MiB = {count / largest:.3g} x"
        for name, count in peak_bytes.items()
    )
    note += f"; {LAYERS} layers, the largest variable {largest / 2**20:.3g} MiB"
    return [
        Figure("gate_none_memory", peak_bytes["GATE_NONE"] / largest, MOST_VARIABLES, note=note)
    ]


def _most_held(gate: int) -> int:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    model, inputs = nn.Sequential(*layers), torch.randn(BATCH, WIDTH)
    variables = list(model.parameters())
    optimizer = train.AdamOptimizer(1e-4)

    def loss() -> Tensor:
        return model(inputs).square().mean()

    def step() -> None:
        optimizer.minimize(loss, var_list=variables, gate_gradients=gate)

    for _ in range(3):
        step()
    return memory.torch_peak(step)
