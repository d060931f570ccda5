"""Step count of a checkpoint, inferred from powers of beta.

After k steps, `beta1_power` is the product of k + 1 factors beta1. Each product is rounded to the
dtype of the power, and flushed to 0 below the normal numbers, as in TensorFlow. So the bits of the
power determine k if beta is known, and beta if k is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_FIRST_BLOCK, _MAX_BLOCK = 1 << 8, 1 << 16
_MAX_STEPS = 1 << 27
# The most decimal digits of a beta.
_MAX_DIGITS = 5
# The most pairs of step count and betas in a note.
_MAX_EXPLANATIONS = 3
_COMMON_BETAS = {
    "beta1": (0.9, 0.5, 0.8, 0.95, 0.85, 0.6, 0.7, 0.99),
    "beta2": (0.999, 0.99, 0.98, 0.997, 0.95, 0.9, 0.9999, 0.995, 0.9995),
}
# All betas with two decimals, those from 0.9 on with three, and the common betas.
_SHORT_BETAS = sorted({*(n / 100 for n in range(1, 100)), *(n / 1000 for n in range(900, 1000)),
               *(beta for betas in _COMMON_BETAS.values() for beta in betas)})  # fmt: skip


@dataclass(frozen=True)
class Steps:
    """Step count and betas, inferred from powers of beta.

    Attributes:
        count: The number of steps, or None if unknown.
        betas: {name of argument: beta}; each beta gives the power to the bit.
        notes: Descriptions of contradictions.
        unclear: The names of betas for which several values are possible.
    """

    count: int | None = None
    betas: dict[str, Any] = field(default_factory=dict[str, Any])
    notes: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()


def power_blocks(beta: Any) -> Iterator[np.ndarray]:
    """Yield the powers beta, beta**2, ... in one-dimensional arrays of the dtype of `beta`.

    The first power is the power after 0 steps. Subnormal powers are 0, and the last array ends with
    0. With a beta of 1, the iterator is endless.
    """
    dtype = beta.dtype.type
    smallest = np.finfo(dtype).tiny
    last_power, size = dtype(1), _FIRST_BLOCK
    while last_power != 0:
        factors = np.full(size + 1, beta, dtype)
        factors[0] = last_power
        with np.errstate(under="ignore", over="ignore", invalid="ignore"):
            block = np.multiply.accumulate(factors)[1:]
        block[np.abs(block) < smallest] = 0
        yield block
        last_power, size = block[-1], min(4 * size, _MAX_BLOCK)


def power_after(beta: Any, steps: int) -> Any:
    """Return beta**(steps + 1), the power of `beta` after `steps` steps, in the dtype of `beta`."""
    for block in power_blocks(beta):
        if steps < len(block):
            return block[steps]
        steps -= len(block)
    return beta.dtype.type(0)


def steps_of(power: Any, beta: Any) -> int | None:
    """Return the step count k for which beta**(k + 1) equals `power` to the bit.

    The powers of `beta` are rounded as in `power_blocks`. Return None if there is no such count.
    Also return None if `power` or `beta` is not between 0 and 1.
    """
    if not 0 < power < 1 or not 0 < beta < 1:
        return None
    # No two normal powers are equal: `power * beta` is below `power` by at least half a unit in its
    # last place, and a tie is possible only at a power of 2, whose neighbor below is that near.
    offset = 0
    for block in power_blocks(beta):
        indices = np.flatnonzero(block == power)
        if len(indices):
            return offset + int(indices[0])
        offset += len(block)
        # Powers decrease, so all later powers are smaller, too.
        if block[-1] < power or offset > _MAX_STEPS:
            break
    return None


def beta_of(power: Any, steps: int) -> Any:
    """Return the shortest decimal beta whose power after `steps` steps equals `power`, or None."""
    if not 0 < power < 1 or steps < 0:
        return None
    dtype = power.dtype.type
    root = math.exp(math.log(float(power)) / (steps + 1))
    for digits in range(1, _MAX_DIGITS + 1):
        candidate = round(root, digits)
        if 0 < candidate < 1 and power_after(dtype(candidate), steps) == power:
            return candidate if dtype is np.float32 else dtype(candidate)
    return None


def steps_and_betas(powers: Mapping[str, object], counters: Mapping[str, int]) -> Steps:
    """Return the step count and the betas that give an optimizer's powers to the bit.

    A step count in `counters` is preferred, then a step count with common betas such as 0.9. If no
    count or several counts fit, the result has count None, and notes with the reason. If all powers
    are 0, the count is the first of `counters`, or None.

    Args:
        powers: {name of the beta: power}, such as {"beta1": 0.9}.
        counters: {name: step count} of variables in the file.
    """
    # Powers that underflowed to 0 imply nothing.
    if not any(power != 0 for power in powers.values()):
        return Steps(next(iter(counters.values()), None))
    for count in dict.fromkeys(counters.values()):
        betas = _betas_of(powers, count)
        if betas:
            return Steps(count, betas, _other_counters(count, counters))
    pairs = [(count, _betas_of(powers, count)) for count in _likely_steps(powers)]
    candidates = {count: betas for count, betas in pairs if betas}
    preferred = {
        count: betas
        for count, betas in candidates.items()
        if len(betas) > 1
        and all(beta in _COMMON_BETAS.get(name, ()) for name, beta in betas.items())
    }
    candidates = preferred if len(preferred) == 1 else candidates
    if len(candidates) == 1:
        count, betas = next(iter(candidates.items()))
        return Steps(count, betas, _other_counters(count, counters))
    if not candidates:
        power_list = ", ".join(f"{name}_power={power}" for name, power in powers.items())
        reason = "are no powers of usual betas after the same number of steps"
        return Steps(None, {}, (f"{power_list} {reason}",))
    return Steps(None, {}, _describe_several(candidates), tuple(next(iter(candidates.values()))))


def _likely_steps(powers: Mapping[str, Any]) -> Iterable[int]:
    """Return the sorted step counts after which a beta in `_SHORT_BETAS` has one of the powers."""
    step_counts: set[int] = set()
    for power in powers.values():
        if not 0 < power < 1:
            continue
        betas = np.array(_SHORT_BETAS, power.dtype)
        logs, log = np.log(betas, dtype=np.float64), math.log(power)
        # An estimate that only saves time: `power_after` decides by the bits.
        counts = np.rint(log / logs) - 1
        errors = np.abs((counts + 1) * logs - log)
        is_close = (errors <= (counts + 2) * np.finfo(power.dtype).eps / 2) & (counts < _MAX_STEPS)
        pairs = zip(betas[is_close], counts[is_close], strict=True)
        step_counts |= {int(n) for beta, n in pairs if power_after(beta, int(n)) == power}
    return sorted(step_counts)


def _betas_of(powers: Mapping[str, object], count: int) -> dict[str, object] | None:
    """Return the betas of nonzero powers after `count` steps; None if a power has no beta."""
    betas = {name: beta_of(power, count) for name, power in powers.items() if power != 0}
    return None if not betas or None in betas.values() else betas


def _other_counters(count: int, counters: Mapping[str, int]) -> tuple[str, ...]:
    """Return one line for each counter that differs from the step count of the powers."""
    return tuple(
        f"{name} is {counter}, but the powers of beta are those after {count} steps"
        for name, counter in counters.items()
        if counter != count
    )


def _describe_several(candidates: Mapping[int, Mapping[str, object]]) -> tuple[str, ...]:
    """Return a note about several pairs of step count and betas that explain the powers."""
    ways = [
        f"{' and '.join(f'{name}={beta}' for name, beta in betas.items())} after {count} steps"
        for count, betas in list(candidates.items())[:_MAX_EXPLANATIONS]
    ]
    return (f"the powers of beta are those of {', and of '.join(ways)}",)
