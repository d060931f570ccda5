"""split8: numbers whose upper part is a bfloat16, exhaustively; and refusals of it as a storage."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from thalweg import Rule, Slot, check_rule
from thalweg._engines.codecs import split8
from thalweg._engines.codecs.records import encode_tensor, lower_of, split_tensor
from thalweg._engines.codecs.split8 import SPLIT8
from thalweg.errors import RuleError

BFLOATS = np.arange(1 << 16, dtype=np.uint16)  # all bfloat16
SIZE = BFLOATS & 0x7FFF
IS_SPECIAL = (SIZE == 0) | (SIZE >= 0x7F80)  # zeros, infinities and NaN, whatever the code


def bfloat_tensor(upper: Any) -> torch.Tensor:
    return torch.from_numpy(upper.view(np.int16)).view(torch.bfloat16)


def join_numbers(upper: Any, codes: Any) -> Any:
    return split8.join_numbers(bfloat_tensor(upper), torch.from_numpy(codes)).numpy()


def split_numbers(numbers: Any, bits: Any = None) -> tuple[Any, Any]:
    draws = None if bits is None else torch.from_numpy(bits.astype(np.int32))
    upper, codes = split8.split_numbers(torch.from_numpy(numbers), draws)
    return upper.view(torch.int16).numpy().view(np.uint16), codes.numpy()


def floats(bits: Any) -> Any:
    return np.asarray(bits, np.uint32).view(np.float32)


def last_place(upper: Any) -> Any:
    """Return the unit in the last place of a bfloat16, in float64."""
    exponent = np.maximum((upper >> 7) & 255, 1).astype(np.int64)
    return np.exp2((exponent - 127 - 7).astype(np.float64))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("code", range(-128, 128))
def test_all_numbers_and_codes_round_trip(code: int) -> None:
    codes = np.full(len(BFLOATS), code, np.int8).view(np.uint8)
    joined = join_numbers(BFLOATS, codes)
    upper, split_codes = split_numbers(joined)
    is_finite = ~IS_SPECIAL
    np.testing.assert_array_equal(upper[is_finite], BFLOATS[is_finite])
    np.testing.assert_array_equal(split_codes[is_finite], codes[is_finite])
    bfloats = floats(BFLOATS.astype(np.uint32) << 16)
    np.testing.assert_array_equal(
        joined[IS_SPECIAL].view(np.uint32), bfloats[IS_SPECIAL].view(np.uint32)
    )
    assert not split_codes[IS_SPECIAL].any()
    is_nan = SIZE > 0x7F80
    np.testing.assert_array_equal(upper[IS_SPECIAL & ~is_nan], BFLOATS[IS_SPECIAL & ~is_nan])
    assert (upper[is_nan] == 0x7FC0).all()
    distances = np.abs(joined[is_finite].astype(np.float64) - bfloats[is_finite]) * 256
    assert (distances <= abs(code) * last_place(BFLOATS[is_finite])).all()


def patterns() -> Any:
    """Random bits of float32, all borders between two bfloat16, and what is beside them."""
    random_words = np.random.default_rng(0).integers(0, 1 << 32, 1 << 20, dtype=np.uint32)
    borders = (BFLOATS.astype(np.uint32) << 16) | 0x8000
    edges = [borders + np.uint32(d & 0xFFFFFFFF) for d in (-257, -129, -128, -127, -1, 0, 1, 127)]
    words = np.concatenate([random_words, *edges])
    return floats(words[(words & 0x7FFFFFFF) < 0x7F7F7F80])  # beyond which are infinities


def test_splitting_error_is_a_512th_of_a_last_place() -> None:
    numbers = patterns()
    upper, codes = split_numbers(numbers)
    joined = join_numbers(upper, codes).astype(np.float64)
    size = np.abs(numbers).astype(np.float64)
    errors, place = np.abs(joined - numbers), last_place(upper)
    is_zero = (upper & 0x7FFF) == 0  # which has no codes
    assert (errors[~is_zero] <= place[~is_zero] / 512).all()
    assert (size[is_zero] < 2.0**-134).all()
    distance = np.abs(floats(upper.astype(np.uint32) << 16).astype(np.float64) - joined)
    assert (distance <= place / 2).all()


def test_a_parameter_is_the_nearest_bfloat16() -> None:
    numbers = patterns()
    upper = split_numbers(numbers)[0].astype(np.int64)
    bits = numbers.view(np.uint32).astype(np.int64)
    nearest = torch.from_numpy(numbers).to(torch.bfloat16).view(torch.int16).numpy()
    torch_bits = nearest.view(np.uint16).astype(np.int64)
    low = bits & 0xFFFF
    at_a_border = (low >= 0x7F80) & (low <= 0x8000)  # after a rounding to 24 bits: away from 0
    np.testing.assert_array_equal(upper[~at_a_border], torch_bits[~at_a_border])
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
def test_split_of_single_numbers_is_as_specified(number: float, upper: int, code: int) -> None:
    parts = split_numbers(np.array([number], np.float32))
    assert (int(parts[0][0]), int(parts[1].view(np.int8)[0])) == (upper, code)
    assert encode_tensor(SPLIT8, torch.tensor([number])).tolist() == [code & 255]


def test_random_bits_round_up_in_proportion() -> None:
    numbers = np.full(256, np.float32(1.0 + 2.0**-8 - 2.0**-15 * 0.75), np.float32)
    bits = np.arange(256, dtype=np.uint32) + np.uint32(0xAB00)  # of which the lower 8 count
    joined = join_numbers(*split_numbers(numbers, bits))
    assert joined.astype(np.float64).mean() == numbers[0].astype(np.float64)
    for number in (np.nan, np.inf, 0.0, 1.0, 1.0 + 2.0**-15):
        repeated = np.full(256, number, np.float32)
        np.testing.assert_array_equal(join_numbers(*split_numbers(repeated, bits)), repeated)


def test_codes_of_torch_rounded_parameters_are_clamped() -> None:
    """A master's parameter is rounded to even, where half a place up is a 256th too low."""
    numbers = patterns()
    torch_rounded = torch.from_numpy(numbers).to(torch.bfloat16)
    upper = torch_rounded.view(torch.int16).numpy().view(np.uint16)
    codes = split8.lower_beside(torch.from_numpy(numbers), torch_rounded).numpy()
    np.testing.assert_array_equal(lower_of(torch.from_numpy(numbers)).numpy(), codes)
    upper_parts, expected = split_numbers(numbers)
    np.testing.assert_array_equal(codes[upper_parts == upper], expected[upper_parts == upper])
    joined = join_numbers(upper, codes).astype(np.float64)
    is_normal = np.abs(numbers) >= 2.0**-126
    assert (np.abs(joined - numbers)[is_normal] <= last_place(upper)[is_normal] / 256 * 1.5).all()


def test_a_tensor_keeps_its_shape() -> None:
    numbers = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).t()
    upper, codes = split_tensor(numbers)
    assert (upper.shape, upper.dtype, codes.shape) == (numbers.shape, torch.bfloat16, (15,))
    joined = join_numbers(
        upper.reshape(-1).view(torch.int16).numpy().view(np.uint16), codes.numpy()
    )
    torch.testing.assert_close(torch.from_numpy(joined).view(5, 3), numbers, rtol=2.0**-16, atol=0)


def heavy(var: Any, grad: Any, m: Any, *, learning_rate: Any) -> Any:
    return var - learning_rate * grad, m + grad


def test_split8_is_not_a_slot_storage() -> None:
    rule = Rule(name="Heavy", update=heavy, slots=(Slot("m", storage="split8"),))
    with pytest.raises(RuleError, match="'split8', which is of weights='split' alone; expected"):
        check_rule(rule)
