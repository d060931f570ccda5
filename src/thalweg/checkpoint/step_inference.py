"""Number of steps of a checkpoint from powers of beta: running products in their own dtype.

After k steps `beta1_power` is what multiplying beta1 by itself k times gives, each product rounded
and below the normal numbers 0, as TensorFlow computes it. So the bits of the value name k, if beta
is known, and beta, if k is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_FIRST, _BLOCK = 1 << 8, 1 << 16
_MOST = 1 << 27  # steps that are looked at
_DIGITS = 5  # of a beta that is looked for
_SHOWN = 3  # ways to explain the same powers
_USUAL = {
    "beta1": (0.9, 0.5, 0.8, 0.95, 0.85, 0.6, 0.7, 0.99),
    "beta2": (0.999, 0.99, 0.98, 0.997, 0.95, 0.9, 0.9999, 0.995, 0.9995),
}
_FEW = sorted({*(n / 100 for n in range(1, 100)), *(n / 1000 for n in range(900, 1000)),
               *(beta for betas in _USUAL.values() for beta in betas)})  # fmt: skip


@dataclass(frozen=True)
class Steps:
    """Number of steps and betas, found from powers.

    Attributes:
        count: The number of steps, or None.
        betas: The betas that give the powers to the bit, by the names of the arguments.
        notes: Descriptions of contradictions.
        unclear: The names of betas for which there are several values.
    """

    count: int | None = None
    betas: dict[str, Any] = field(default_factory=dict[str, Any])
    notes: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()


def power_blocks(beta: Any) -> Iterator[np.ndarray]:
    """Yield the powers after 0, 1, 2 ... steps, in blocks; `beta` is a NumPy scalar."""
    dtype = beta.dtype.type
    smallest = np.finfo(dtype).tiny
    last, size = dtype(1), _FIRST
    while last != 0:
        factors = np.full(size + 1, beta, dtype)
        factors[0] = last
        with np.errstate(under="ignore", over="ignore", invalid="ignore"):
            block = np.multiply.accumulate(factors)[1:]
        block[np.abs(block) < smallest] = 0
        yield block
        last, size = block[-1], min(4 * size, _BLOCK)


def power_after(beta: Any, steps: int) -> Any:
    """Return the power after so many steps."""
    for block in power_blocks(beta):
        if steps < len(block):
            return block[steps]
        steps -= len(block)
    return beta.dtype.type(0)


def steps_of(power: Any, beta: Any) -> int | None:
    """Return the number of steps after which the power of `beta` has exactly this value, or None.

    Returns None, too, for a value of many steps: at 0, where small powers end, with a beta of 1,
    and where a product rounds to its factor.
    """
    if not 0 < power < 1 or not 0 < beta < 1:
        return None
    passed = 0
    for block in power_blocks(beta):
        found = np.flatnonzero(block == power)
        if len(found):
            return passed + int(found[0]) if len(found) == 1 else None
        passed += len(block)
        if block[-1] < power or passed > _MOST:
            break
    return None


def beta_of(power: Any, steps: int) -> Any:
    """Return the shortest decimal whose power has this value after so many steps, or None."""
    if not 0 < power < 1 or steps < 0:
        return None
    dtype = power.dtype.type
    root = math.exp(math.log(float(power)) / (steps + 1))
    for digits in range(1, _DIGITS + 1):
        near = round(root, digits)
        if 0 < near < 1 and power_after(dtype(near), steps) == power:
            return near if dtype is np.float32 else dtype(near)
    return None


def steps_and_betas(powers: Mapping[str, object], counters: Mapping[str, int]) -> Steps:
    """Return the steps and betas that the powers of an optimizer imply.

    Args:
        powers: The powers by the names of their betas: {"beta1": ..., "beta2": ...}.
        counters: Numbers of steps that the file has elsewhere, by name.
    """
    if not any(power != 0 for power in powers.values()):  # none, or none that still tells
        return Steps(next(iter(counters.values()), None))
    for count in dict.fromkeys(counters.values()):
        betas = _betas_of(powers, count)
        if betas:
            return Steps(count, betas, _other_counters(count, counters))
    found = {count: betas for count in _likely_steps(powers) if (betas := _betas_of(powers, count))}
    plain = {count: betas for count, betas in found.items() if len(betas) > 1 and _are_usual(betas)}
    found = plain if len(plain) == 1 else found
    if len(found) == 1:
        count, betas = next(iter(found.items()))
        return Steps(count, betas, _other_counters(count, counters))
    if not found:
        return Steps(None, {}, _describe_unexplained(powers))
    return Steps(None, {}, _describe_several(found), tuple(next(iter(found.values()))))


def _likely_steps(powers: Mapping[str, Any]) -> Iterable[int]:
    """Numbers of steps at which a beta of few digits has one of these powers."""
    found: set[int] = set()
    for power in powers.values():
        if not 0 < power < 1:
            continue
        betas = np.array(_FEW, power.dtype)
        logs, log = np.log(betas, dtype=np.float64), math.log(power)
        counts = np.rint(log / logs) - 1
        off = np.abs((counts + 1) * logs - log)
        near = (off <= (counts + 2) * np.finfo(power.dtype).eps / 2) & (counts < _MOST)
        pairs = zip(betas[near], counts[near], strict=True)
        found |= {int(count) for beta, count in pairs if power_after(beta, int(count)) == power}
    return sorted(found)


def _are_usual(betas: Mapping[str, object]) -> bool:
    return all(beta in _USUAL.get(name, ()) for name, beta in betas.items())


def _betas_of(powers: Mapping[str, object], count: int) -> dict[str, object] | None:
    """The betas behind powers that are not 0 after so many steps; None if one has none."""
    found = {name: beta_of(power, count) for name, power in powers.items() if power != 0}
    return None if not found or None in found.values() else found


def _other_counters(count: int, counters: Mapping[str, int]) -> tuple[str, ...]:
    """Counters that count something else, in words."""
    return tuple(
        f"{name} is {other}, but the powers of beta are those after {count} steps"
        for name, other in counters.items()
        if other != count
    )


def _describe_several(found: Mapping[int, Mapping[str, object]]) -> tuple[str, ...]:
    ways = [
        f"{' and '.join(f'{name}={beta}' for name, beta in betas.items())} after {count} steps"
        for count, betas in list(found.items())[:_SHOWN]
    ]
    return (f"the powers of beta are those of {', and of '.join(ways)}",)


def _describe_unexplained(powers: Mapping[str, object]) -> tuple[str, ...]:
    shown = ", ".join(f"{name}_power={power}" for name, power in powers.items())
    return (f"{shown} are no powers of usual betas after the same number of steps",)
