"""Newton-Schulz iteration, which moves singular values near 1 by matrix products alone.

The coefficients are published with Muon (Jordan 2024), by @YouJiacheng in modded-nanogpt
("quintic"), and with Polar Express (Amsel et al. 2025, arXiv 2505.16932).
"""

# Pyright takes `torch` for the package beside this one.
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor

from thalweg._base.showing import show_value

Triple = tuple[float, float, float]
COEFFICIENTS: dict[str, tuple[Triple, ...]] = {
    "original": ((3.4445, -4.7750, 2.0315),),
    "quintic": (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
    "polar_express": (
        (8.237312490495555, -23.157747414558198, 16.680568411445915),
        (4.082441999064835, -2.893047735332586, 0.5252849256975648),
        (3.9263479922546582, -2.8547468034765298, 0.5318022422894988),
        (3.2982187133085143, -2.424541981026706, 0.48632008358844075),
        (2.2970369434552573, -1.63662558125903, 0.4002628455953627),
        (1.8763805351440397, -1.2347896577722228, 0.35891887501668385),
        (1.8564423485617974, -1.2132449880935525, 0.3568003487825883),
        (1.8749994008682747, -1.2499988017229169, 0.3749994008546422),
    ),
}
ADJUST = ("original", "match_rms_adamw", "rms_to_rms")  # how steps grow with matrices
DTYPES = ("float32", "bfloat16")  # of products


# Bytes of the matrices and products that one core iterates at once: about half of an L2 cache. A
# call of 16-bit products takes as long as many small matrices, so more of them are faster.
_CACHE, _CACHE_OF_16_BITS = 1 << 20, 1 << 23
_FLOAT32_MAX = torch.finfo(torch.float32).max


def _is_triple(value: object) -> bool:
    """Return True if a value is three numbers of float32."""
    if not isinstance(value, tuple) or len(value) != 3:  # pyright: ignore
        return False
    triple = cast("tuple[Any, ...]", value)
    return all(
        isinstance(coefficient, int | float) and abs(coefficient) <= _FLOAT32_MAX
        for coefficient in triple
    )


@lru_cache(None, typed=True)
def triples(coefficients: str | Triple | tuple[Triple, ...], steps: int) -> tuple[Triple, ...]:
    """Return the coefficients of an iteration: a tuple of `steps` triples.

    `coefficients` is a name in `COEFFICIENTS`, a triple, or a tuple of triples. A tuple is cut to
    `steps` triples, or its last triple is repeated.

    Raises:
        ValueError: The name is unknown, there are no triples, or `steps` is not in [1, 99].
    """
    polynomials: Sequence[Triple]
    if isinstance(coefficients, str):
        if coefficients not in COEFFICIENTS:
            names = ", ".join(map(repr, COEFFICIENTS))
            raise ValueError(f"ns_coefficients is {show_value(coefficients)}; known are {names}.")
        polynomials = COEFFICIENTS[coefficients]
    else:
        argument: Any = coefficients
        is_sequence = isinstance(argument, tuple) and all(
            isinstance(entry, tuple) for entry in argument
        )
        polynomials = argument if argument and is_sequence else (argument,)
        if not all(map(_is_triple, polynomials)):
            raise ValueError(
                f"ns_coefficients must be three numbers each, not {show_value(coefficients)}."
            )
    if type(steps) is not int or not 0 < steps < 100:
        raise ValueError(f"ns_steps must be a whole number from 1 to 99, not {show_value(steps)}.")
    exact = [(float(a), float(b), float(c)) for a, b, c in polynomials]
    return tuple(exact[min(index, len(exact) - 1)] for index in range(steps))


def check_dtype(dtype: str | None) -> None:
    """Raise ValueError unless the dtype of matrix products is None or in `DTYPES`."""
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(
            f"ns_dtype is {show_value(dtype)}; it may be None, 'float32' or 'bfloat16'."
        )


def norms_of(matrices: Tensor) -> Tensor:
    """Return the Frobenius norm of each matrix, of shape (batch, 1, 1)."""
    return torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True)


def orthogonal(
    matrices: Tensor,
    coefficients: Sequence[Triple],
    epsilon: float,
    dtype: str | None = None,
    multiplier: float = 1.0,
) -> Tensor:
    """Return a new tensor of matrices with singular values near `multiplier`.

    Singular vectors stay. A zero matrix stays zero.

    Args:
        matrices: Shape (batch, rows, columns).
        coefficients: The coefficients of each step's polynomial.
        epsilon: A matrix is first divided by its norm. `epsilon` is the least divisor.
        dtype: The dtype of matrix products. "float32" means the dtype of `matrices`. None means
            "float32" on the CPU and "bfloat16" on other devices, as in the published code.
        multiplier: Factor of the result.
    """
    in_bfloat16 = matrices.device.type != "cpu" if dtype is None else dtype == "bfloat16"
    kind = torch.bfloat16 if in_bfloat16 else matrices.dtype
    # Each piece is iterated to its end before the next one, so that it stays in the cache.
    result = torch.empty_like(matrices, memory_format=torch.contiguous_format)
    size = _matrices_per_piece(matrices, kind)
    buffers = _Buffers(matrices[:size], kind)
    for piece, target in zip(matrices.split(size), result.split(size), strict=True):
        iterate = piece.to(kind, copy=True)
        iterate.div_(norms_of(iterate).clamp(min=epsilon))
        buffers.iterate(iterate, coefficients, target)
        if multiplier != 1.0:
            target.mul_(multiplier)
    return result


def _matrices_per_piece(matrices: Tensor, kind: torch.dtype) -> int:
    """Return how many matrices to iterate at once: on the CPU as many as fit in the L2 cache.

    Other devices iterate all matrices at once.
    """
    count, rows, columns = matrices.shape
    if matrices.device.type != "cpu":
        return max(count, 1)
    bytes_of_one = 2 * min(rows, columns) * (rows + columns) * kind.itemsize
    cache = _CACHE if kind.itemsize > 2 else _CACHE_OF_16_BITS
    limit = max(1, cache // max(bytes_of_one, 1))
    pieces = max(1, -(-count // limit))
    return max(1, -(-count // pieces))


class _Buffers:
    """Temporary memory for the iteration of a group of matrices.

    Args:
        matrices: The first group. No later group has more matrices.
        kind: The dtype of products.
    """

    def __init__(self, matrices: Tensor, kind: torch.dtype) -> None:
        count, rows, columns = matrices.shape
        side = min(rows, columns)
        self._spare = matrices.new_empty(matrices.shape, dtype=kind)
        self._squares = [matrices.new_empty(count, side, side, dtype=kind) for _ in range(2)]
        self._is_tall = rows > columns

    def iterate(self, iterate: Tensor, coefficients: Sequence[Triple], result: Tensor) -> None:
        """Iterate once per triple, and write the matrices to `result`; overwrite `iterate`."""
        spare = self._spare[: len(iterate)]
        square, mixed = (buffer[: len(iterate)] for buffer in self._squares)
        # Without a conversion, the last product is the result.
        outputs = [spare, iterate] * len(coefficients)
        if result.dtype == iterate.dtype:
            outputs[len(coefficients) - 1] = result
        for output, (first, second, third) in zip(outputs, coefficients, strict=False):
            transposed = iterate.mT
            # A tall matrix is multiplied from the right: nothing is copied to transpose it.
            factors = (transposed, iterate) if self._is_tall else (iterate, transposed)
            torch.bmm(*factors, out=square)
            torch.baddbmm(square, square, square, beta=second, alpha=third, out=mixed)
            factors = (iterate, mixed) if self._is_tall else (mixed, iterate)
            iterate = torch.baddbmm(iterate, *factors, beta=first, out=output)
        if iterate is not result:
            result.copy_(iterate)


def scale_of(adjust: str | None, rows: int, columns: int) -> float:
    """Return the factor of the step of a matrix of shape (rows, columns).

    Raises:
        ValueError: `adjust` is neither in `ADJUST` nor None, which means "original".
    """
    if adjust is None or adjust == "original":
        return max(1.0, rows / columns) ** 0.5
    if adjust == "match_rms_adamw":
        return 0.2 * max(rows, columns) ** 0.5
    if adjust == "rms_to_rms":
        return (rows / columns) ** 0.5
    raise ValueError(
        f"adjust_lr_fn is {show_value(adjust)}; known are {', '.join(map(repr, ADJUST))}."
    )
