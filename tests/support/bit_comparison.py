"""Comparison of tensors to the bit, with messages that name the first difference."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Test, rule and seed of the problem that the rulebook made last.
_last_problem = "", ""


def note_problem(rule: str, seed: int) -> None:
    """Add a rule and a seed to messages of failures in the running test."""
    global _last_problem
    _last_problem = _current_test(), f"{rule}, seed {seed}"


def _current_test() -> str:
    return os.environ.get("PYTEST_CURRENT_TEST", "")


def raw(tensor: Tensor) -> torch.Tensor:
    """Return the bit patterns as one row of integers."""
    flat = tensor.detach().reshape(-1)
    flat = torch.view_as_real(flat.resolve_conj()).reshape(-1) if flat.is_complex() else flat
    return flat.resolve_neg().view(INTEGERS[flat.element_size()])


def bits(tensor: Tensor) -> torch.Tensor:
    """Return the bit patterns, every NaN as one."""
    contiguous = tensor.detach().clone(memory_format=torch.contiguous_format)
    if contiguous.is_floating_point():
        contiguous.masked_fill_(contiguous != contiguous, torch.nan)
    if contiguous.is_complex():
        return bits(torch.view_as_real(contiguous.resolve_conj()))
    return contiguous.view(INTEGERS[contiguous.element_size()])


def assert_same(
    got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], note: str = ""
) -> None:
    """Compare bits; fail with the first difference: test, index, hex, ulps and seed."""
    assert len(got) == len(expected), f"{note} {len(got)} tensors, not {len(expected)}"
    for number, (a, b) in enumerate(zip(got, expected, strict=True)):
        assert a.dtype == b.dtype, f"{note} tensor {number}"
        assert a.shape == b.shape, f"{note} tensor {number}"
        if torch.equal(raw(a), raw(b)):
            continue
        if not torch.equal(bits(a), bits(b)):
            made_in, problem = _last_problem
            source = f"{note} ({problem})" if problem and made_in == _current_test() else note
            pytest.fail(f"{source} tensor {number} {_describe_difference(a, b)}")


def _describe_difference(got: torch.Tensor, expected: torch.Tensor) -> str:
    """Return the number of differences, and of the first its index, values, hex and ulps."""
    title = f"({got.dtype}, {tuple(got.shape)})"
    if got.is_complex():
        got, expected = (torch.view_as_real(x.detach().resolve_conj()) for x in (got, expected))
    x, y = bits(got).reshape(-1), bits(expected).reshape(-1)
    count, index = int((x != y).sum()), int((x != y).nonzero()[0])
    size = 2 * got.element_size()
    mask, p, q = (1 << 4 * size) - 1, int(x[index]), int(y[index])
    # Negative numbers count downwards from -0, which is next to 0.
    ulps = abs(p - q if (p < 0) == (q < 0) else (p & mask >> 1) + (q & mask >> 1))
    distance = f", {ulps} ulp apart" if got.is_floating_point() else ""
    first = (got.reshape(-1)[index].item(), expected.reshape(-1)[index].item())
    return (
        f"{title}: {count} of {len(x)} differ, first at {index}: {first[0]} ({p & mask:0{size}x})"
        f" is not {first[1]} ({q & mask:0{size}x}){distance}"
    )
