"""Conversion between split weights and masters, at every tie of two bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from bit_comparison import assert_same
from thalweg import checkpoint, optim
from thalweg._engines import engine
from thalweg._engines.codecs.split8 import CORRECTION, join_numbers

CODES_OF_16_BITS = np.arange(1 << 16, dtype=np.uint16)
NORMAL_NUMBERS = CODES_OF_16_BITS[
    ((CODES_OF_16_BITS & 0x7FFF) != 0) & ((CODES_OF_16_BITS & 0x7F80) != 0x7F80)
]  # finite numbers but zeros
NONFINITE = CODES_OF_16_BITS[(CODES_OF_16_BITS & 0x7FFF) >= 0x7F80]  # infinities and NaN
Engine = Literal["auto", "reference"]


def bfloats(bits: Any) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).clone())


def step_by_zero(param: Tensor, optimizer: Any) -> None:
    param.grad = torch.zeros_like(param)
    optimizer.step()


def split_of(bits: Any, codes: Any) -> tuple[torch.nn.Parameter, Any, Tensor]:
    """Return split weights with their optimizer and what they are in float32."""
    param = bfloats(bits)
    optimizer = optim.SGD([param], lr=1e-3, weights="split")
    step_by_zero(param, optimizer)
    optimizer.state[param][CORRECTION].copy_(torch.from_numpy(codes))
    return param, optimizer, join_numbers(bfloats(bits).detach(), torch.from_numpy(codes))


def masters_of(master: Tensor) -> tuple[torch.nn.Parameter, Any]:
    """Return masters as a step leaves them."""
    param = torch.nn.Parameter(master.bfloat16())
    optimizer = optim.SGD([param], lr=1e-3, masters=True)
    step_by_zero(param, optimizer)
    optimizer.state[param]["master"].copy_(master)
    return param, optimizer


def by_full_precision(source: Any, target: Any, _: Path) -> None:
    target[1].load_state_dict(optim.full_precision(source[1], masters=True), convert=True)


def by_convert(source: Any, target: Any, _: Path) -> None:
    target[1].load_state_dict(source[1].state_dict(), convert=True)


def by_file(source: Any, target: Any, folder: Path) -> None:
    checkpoint.save(folder / "file", optimizer=source[1], variables={"p": source[0]})
    variables = {"p": target[0]}
    checkpoint.restore(folder / "file", optimizer=target[1], variables=variables, convert=True)


PATHS = [by_full_precision, by_convert, by_file]
ENGINES: list[Engine] = ["auto", "reference"]
CODES = {
    "ties": lambda bits: np.full(len(bits), 0x80, np.uint8),
    "below ties": lambda bits: np.full(len(bits), 0x7F, np.uint8),
    "random": lambda bits: np.random.default_rng(0).integers(0, 256, len(bits), dtype=np.uint8),
}


def convert(source: Any, option: dict[str, Any], path: Any, folder: Path) -> tuple[Any, Any]:
    param = torch.nn.Parameter(source[0].detach().clone())
    target = param, optim.SGD([param], lr=1e-3, **option)
    path(source, target, folder)
    return target


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("name", ENGINES)
def test_masters_have_all_bits_of_split_weights(
    name: Engine, codes: str, path: Callable[..., None], tmp_path: Path
) -> None:
    with engine(name):
        *source, weights = split_of(NORMAL_NUMBERS, CODES[codes](NORMAL_NUMBERS))
        param, optimizer = convert(source, {"masters": True}, path, tmp_path)
        assert_same([optimizer.state[param]["master"]], [weights])
        for _ in range(3):
            step_by_zero(param, optimizer)
            assert_same([optimizer.state[param]["master"]], [weights])
            assert_same([param], [weights.bfloat16()])


@pytest.mark.parametrize("path", PATHS[1:])
@pytest.mark.parametrize("codes", CODES)
def test_split_weights_come_back_from_masters(
    codes: str, path: Callable[..., None], tmp_path: Path
) -> None:
    *source, weights = split_of(NORMAL_NUMBERS, CODES[codes](NORMAL_NUMBERS))
    masters = convert(source, {"masters": True}, by_convert, tmp_path)
    param, optimizer = convert(masters, {"weights": "split"}, path, tmp_path)
    assert_same([optim.full_precision(optimizer, masters=True)["state"][0]["master"]], [weights])
    assert_same([optimizer.state[param][CORRECTION]], [source[1].state[source[0]][CORRECTION]])


@pytest.mark.parametrize("path", PATHS[1:])
def test_masters_at_ties_differ_by_1_256_ulp(path: Callable[..., None], tmp_path: Path) -> None:
    """No code represents a tie above an even bfloat16; all other values are exact."""
    master = torch.from_numpy(((NORMAL_NUMBERS.astype(np.uint32) << 16) | 0x8000).view(np.float32))
    master = master[master.abs() < torch.finfo(torch.bfloat16).max]
    target = convert(masters_of(master), {"weights": "split"}, path, tmp_path)
    masters = optim.full_precision(target[1], masters=True)["state"][0]["master"]
    is_even = (master.view(torch.int32) & 0x10000) == 0
    differences = master.view(torch.int32) - masters.view(torch.int32)
    assert_same([differences], [torch.where(is_even, 0x100, 0).int()])


@pytest.mark.parametrize("name", ENGINES)
def test_infinities_and_nan_are_kept(name: Engine, tmp_path: Path) -> None:
    with engine(name):
        *source, weights = split_of(NONFINITE, np.zeros(len(NONFINITE), np.uint8))
        param, optimizer = convert(source, {"masters": True}, by_convert, tmp_path)
        for _ in range(2):
            step_by_zero(param, optimizer)
            torch.testing.assert_close(
                optimizer.state[param]["master"], weights, rtol=0, atol=0, equal_nan=True
            )


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("sign", [1, -1])
def test_user_written_params_are_used_except_equally_near_ties(name: Engine, sign: int) -> None:
    """A tie has two nearest neighbours; other written values, and the other zero, are used."""
    tie = torch.tensor([1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, 0.0]) * sign
    first = tie[:2].view(torch.int32) >> 16
    for offset, is_tie in ((-1, False), (0, True), (1, True), (2, False)):
        with engine(name):
            param, optimizer = masters_of(tie)
            bits = torch.cat([first + offset, torch.tensor([0x8000 if sign > 0 else 0])])
            new_values = bits.to(torch.int16).view(torch.bfloat16)
            param.data.copy_(new_values)
            step_by_zero(param, optimizer)
            master = optimizer.state[param]["master"]
            expected = tie[:2] if is_tie else new_values[:2].float()
            assert_same([master[:2]], [expected])
            assert torch.signbit(master[2]) == (sign > 0)
