"""Random bits: what engines, kernels and the option know of them; see `thalweg.engines.philox`."""

from __future__ import annotations

GROUP = 8  # elements that one call serves
STEPS = 1 << 24  # after which the bits of a variable repeat; a scalar of float32 counts so far
SEEDS = 1 << 48
NARROW = frozenset(("float16", "bfloat16"))  # what is rounded so
SCALARS = ("draw_step", "draw_key_low", "draw_key_high")  # what kernels are given


def scalars_of(seed: int, step: float) -> dict[str, float]:
    """What kernels are given of a seed and the number of a step, counted from 0."""
    low, high = seed % STEPS, seed // STEPS
    own = float(step % STEPS), float(low), float(high)
    return dict(zip(SCALARS, own, strict=True))
