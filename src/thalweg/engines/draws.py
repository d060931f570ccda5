"""Random bits: what engines, kernels and the option know of them; see `thalweg.engines.philox`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

GROUP = 8  # elements that one call serves
STEPS = 1 << 24  # after which the bits of a variable repeat; a scalar of float32 counts so far
SEEDS = 1 << 48
NARROW = frozenset(("float16", "bfloat16"))  # what is rounded so
SCALARS = ("draw_step", "draw_key_low", "draw_key_high")  # what kernels are given


def scalars_of(seed: int, step: Any) -> dict[str, Any]:
    """What kernels are given of a seed and the number of a step, counted from 0.

    That number may be a tensor of a device, where it stays.
    """
    own = step % STEPS if isinstance(step, Tensor) else float(step % STEPS)
    own = own, float(seed % STEPS), float(seed // STEPS)
    return dict(zip(SCALARS, own, strict=True))
