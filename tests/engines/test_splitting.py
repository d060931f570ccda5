"""split8: numbers whose upper part is a bfloat16, exhaustively; and refusals of it as a storage."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from thalweg import Rule, Slot, check_rule
from thalweg._engines.codecs.records import encode_tensor, lower_of, split_tensor
from thalweg._engines.codecs.split8 import SPLIT8, join_numbers, lower_beside, split_numbers
from thalweg.errors import RuleError

EVERY = np.arange(1 << 16, dtype=np.uint16)  # all bfloat16
SIZE = EVERY & 0x7FFF
IS_WHOLE = (SIZE == 0) | (SIZE >= 0x7F80)  # zeros, infinities and NaN, whatever the code


def floats(bits: Any) -> Any:
    return np.asarray(bits, np.uint32).view(np.float32)


def last_place(upper: Any) -> Any:
    """What a bfloat16's last place is worth, in float64."""
    exponent = np.maximum((upper >> 7) & 255, 1).astype(np.int64)
    return np.exp2((exponent - 127 - 7).astype(np.float64))


@pytest.mark.parametrize("code", range(-128, 128))
def test_all_numbers_and_codes_stay(code: int) -> None:
    codes = np.full(len(EVERY), code, np.int8).view(np.uint8)
    held = join_numbers(EVERY, codes)
    upper, again = split_numbers(held)
    plain = ~IS_WHOLE
    np.testing.assert_array_equal(upper[plain], EVERY[plain])
    np.testing.assert_array_equal(again[plain], codes[plain])
    bfloats = floats(EVERY.astype(np.uint32) << 16)
    np.testing.assert_array_equal(held[IS_WHOLE].view(np.uint32), bfloats[IS_WHOLE].view(np.uint32))
    assert not again[IS_WHOLE].any()
    is_nan = SIZE > 0x7F80
    np.testing.assert_array_equal(upper[IS_WHOLE & ~is_nan], EVERY[IS_WHOLE & ~is_nan])
    assert (upper[is_nan] == 0x7FC0).all()
    away = np.abs(held[plain].astype(np.float64) - bfloats[plain]) * 256
    assert (away <= abs(code) * last_place(EVERY[plain])).all()


def patterns() -> Any:
    """Random bits of float32, all borders between two bfloat16, and what is beside them."""
    drawn = np.random.default_rng(0).integers(0, 1 << 32, 1 << 20, dtype=np.uint32)
    borders = (EVERY.astype(np.uint32) << 16) | 0x8000
    near = [borders + np.uint32(d & 0xFFFFFFFF) for d in (-257, -129, -128, -127, -1, 0, 1, 127)]
    every = np.concatenate([drawn, *near])
    return floats(every[(every & 0x7FFFFFFF) < 0x7F7F7F80])  # beyond which are infinities


def test_what_is_lost_is_a_512th_of_a_last_place() -> None:
    given = patterns()
    upper, codes = split_numbers(given)
    held = join_numbers(upper, codes).astype(np.float64)
    size = np.abs(given).astype(np.float64)
    lost, place = np.abs(held - given), last_place(upper)
    is_zero = (upper & 0x7FFF) == 0  # which has no codes
    assert (lost[~is_zero] <= place[~is_zero] / 512).all()
    assert (size[is_zero] < 2.0**-134).all()
    distance = np.abs(floats(upper.astype(np.uint32) << 16).astype(np.float64) - held)
    assert (distance <= place / 2).all()


def test_a_parameter_is_the_nearest_bfloat16() -> None:
    given = patterns()
    upper = split_numbers(given)[0].astype(np.int64)
    bits = given.view(np.uint32).astype(np.int64)
    nearest = torch.from_numpy(given).to(torch.bfloat16).view(torch.int16).numpy()
    theirs = nearest.view(np.uint16).astype(np.int64)
    away = bits & 0xFFFF
    at_a_border = (away >= 0x7F80) & (away <= 0x8000)  # after a rounding to 24 bits: away from 0
    np.testing.assert_array_equal(upper[~at_a_border], theirs[~at_a_border])
    np.testing.assert_array_equal(upper[at_a_border], (bits[at_a_border] >> 16) + 1)


@pytest.mark.parametrize(
    ("number", "upper", "code"),
    [
        (np.nan, 0x7FC0, 0), (np.inf, 0x7F80, 0), (-np.inf, 0xFF80, 0), (0.0, 0, 0),
        (-0.0, 0x8000, 0), (1.0, 0x3F80, 0), (1.0 + 2.0**-15, 0x3F80, 1),
        (1.0 - 2.0**-16, 0x3F80, -1), (1.0 + 2.0**-16, 0x3F80, 1),
        (1.0 + 2.0**-8, 0x3F81, -128), (-1.0 - 2.0**-8, 0xBF81, -128),
        (3.4028234e38, 0x7F80, 0), (2.0**-149, 0, 0), (2.0**-133, 1, 0),
    ],
)  # fmt: skip
def test_single_numbers(number: float, upper: int, code: int) -> None:
    found = split_numbers(np.float32([number]))
    assert (int(found[0][0]), int(found[1].view(np.int8)[0])) == (upper, code)
    assert encode_tensor(SPLIT8, torch.tensor([number])).tolist() == [code & 255]


def test_random_bits_go_up_as_often_as_a_number_is_near() -> None:
    given = np.full(256, np.float32(1.0 + 2.0**-8 - 2.0**-15 * 0.75), np.float32)
    bits = np.arange(256, dtype=np.uint32) + np.uint32(0xAB00)  # of which the lower 8 count
    held = join_numbers(*split_numbers(given, bits))
    assert held.astype(np.float64).mean() == given[0].astype(np.float64)
    for plain in (np.nan, np.inf, 0.0, 1.0, 1.0 + 2.0**-15):
        one = np.full(256, plain, np.float32)
        np.testing.assert_array_equal(join_numbers(*split_numbers(one, bits)), one)


def test_codes_beside_what_torch_rounds() -> None:
    """A master's parameter is rounded to even, where half a place up is a 256th too low."""
    given = patterns()
    rounded = torch.from_numpy(given).to(torch.bfloat16)
    upper = rounded.view(torch.int16).numpy().view(np.uint16)
    codes = lower_beside(given, upper)
    np.testing.assert_array_equal(lower_of(torch.from_numpy(given)).numpy(), codes)
    ours, wanted = split_numbers(given)
    np.testing.assert_array_equal(codes[ours == upper], wanted[ours == upper])
    held = join_numbers(upper, codes).astype(np.float64)
    usual = np.abs(given) >= 2.0**-126
    assert (np.abs(held - given)[usual] <= last_place(upper)[usual] / 256 * 1.5).all()


def test_a_tensor_keeps_its_shape() -> None:
    numbers = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).t()
    upper, codes = split_tensor(numbers)
    assert (upper.shape, upper.dtype, codes.shape) == (numbers.shape, torch.bfloat16, (15,))
    held = join_numbers(upper.reshape(-1).view(torch.int16).numpy().view(np.uint16), codes.numpy())
    torch.testing.assert_close(torch.from_numpy(held).view(5, 3), numbers, rtol=2.0**-16, atol=0)


def heavy(var: Any, grad: Any, m: Any, *, learning_rate: Any) -> Any:
    return var - learning_rate * grad, m + grad


def test_rules_cannot_have_it_as_a_storage() -> None:
    rule = Rule(name="Heavy", update=heavy, slots=(Slot("m", storage="split8"),))
    with pytest.raises(RuleError, match="'split8', which is of weights='split' alone; expected"):
        check_rule(rule)
