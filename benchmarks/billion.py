"""An AdamW step over a billion parameters in 7.25 bytes each, gradients included.

    python benchmarks/billion.py [--millions 1000] [--steps 2] [--bytes 7500]

Weights are of bfloat16 with `weights="split"`, states in 8 bits, gradients of bfloat16: 2 + 1 for a
weight, 2 for its gradient, and 2 * 1.125 for both averages. Prints bytes, seconds and the largest
memory of the process; ends with 1 if that is more than the MB of `--bytes`.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time

import torch

from thalweg import optim

ROWS = 1 << 20  # elements of a parameter: tensors of a usual size


def main() -> int:
    """Take the steps and print bytes, seconds and memory; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--millions", type=int, default=1000, help="parameters (1000)")
    parser.add_argument("--steps", type=int, default=2, help="after a first one (2)")
    parser.add_argument("--bytes", type=int, default=7500, help="MB that are enough (7500)")
    arguments = parser.parse_args()
    count = -(-arguments.millions * 10**6 // ROWS)
    base_memory = _peak()
    params = [torch.nn.Parameter(_drawn(0.02)) for _ in range(count)]
    for param in params:
        param.grad = _drawn(0.001)
    optimizer = optim.AdamW(params, lr=1e-4, weights="split", state_storage="8bit")
    spent = [_seconds(optimizer) for _ in range(1 + arguments.steps)]
    total = sum(param.numel() for param in params)
    states = [x.nbytes for state in optimizer.state.values() for x in state.values() if x.dim()]
    param_bytes = sum(
        param.nbytes + param.grad.nbytes for param in params if param.grad is not None
    )
    peak = _peak()
    print(f"parameters        {total:,}")
    print(f"bytes of each     {(param_bytes + sum(states)) / total:.3f}")
    print(f"of its state      {sum(states) / total:.3f}")
    print(f"first step        {spent[0]:.2f} s")
    print(f"steps after it    {min(spent[1:], default=float('nan')):.2f} s")
    print(
        f"largest memory    {peak / 1e6:,.0f} MB, {base_memory / 1e6:,.0f} of it Python and torch"
    )
    return int(peak - base_memory > arguments.bytes * 10**6)


def _drawn(scale: float) -> torch.Tensor:
    return torch.randn(1024, ROWS // 1024).mul_(scale).to(torch.bfloat16)


def _seconds(optimizer: optim.AdamW) -> float:
    start = time.perf_counter()
    optimizer.step()
    return time.perf_counter() - start


def _peak() -> int:
    """Return the peak memory of the process in bytes."""
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024


if __name__ == "__main__":
    sys.exit(main())
