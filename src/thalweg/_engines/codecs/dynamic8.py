"""dynamic8: codes in seven decades (factors of ten) below the largest of 256 magnitudes.

Decade i has 2**i numbers, at the middles of equal parts between a tenth of its end and the end; for
nonnegative numbers (`dynamic8_positive`) it has twice as many. This is the map of bitsandbytes
0.50.2, whose codes are indices of a sorted table. Here a share is a magnitude divided by the scale
of its block, from 0 to 1, and a rank is the index of a share in that table.
"""

# Formulas have no types.
# pyright: basic
from thalweg._engines.codecs.codec import Codec
from thalweg.formula import absolute, minimum, where

# The first number of the lowest decade. In `dynamic8` the number 1 has the code 128.
FIRST = 0.55e-6
FIRST_POSITIVE = 0.325e-6


def border(tenth, count):
    """Return the lower border of the decade that ends at `tenth` and has `count` numbers."""
    return tenth * (0.1 + 0.18 / count)


def decade(ratio, count):
    """Return the end of the decade that contains a ratio: a power of ten from 1e-6 to 1.

    The decade that ends at 1 has `count` numbers.
    """
    low = where(ratio < border(1e-4, count / 16), 1e-5, 1e-4)
    low = where(ratio < border(1e-5, count / 32), 1e-6, low)
    high = where(ratio < border(1.0, count), 1e-1, 1.0)
    high = where(ratio < border(1e-1, count / 2), 1e-2, high)
    high = where(ratio < border(1e-2, count / 4), 1e-3, high)
    return where(ratio < border(1e-3, count / 8), low, high)


def end_of(count, upper_count):
    """Return the end, a power of ten, of the decade that has `count` numbers.

    The decade that ends at 1 has `upper_count` numbers.
    """
    low = where(count < upper_count / 32, 1e-6, where(count < upper_count / 16, 1e-5, 1e-4))
    high = where(count < upper_count / 4, 1e-3, where(count < upper_count / 2, 1e-2, 1e-1))
    return where(count < upper_count / 8, low, where(count < upper_count, high, 1.0))


def count_of(end, upper_count):
    """Return how many numbers a decade has.

    Args:
        end: The end of the decade, a power of ten.
        upper_count: The count of the decade that ends at 1.
    """
    low = where(end < 5e-6, upper_count / 64, where(end < 5e-5, upper_count / 32, upper_count / 16))
    high = where(end < 5e-3, upper_count / 8, where(end < 5e-2, upper_count / 4, upper_count / 2))
    return where(end < 5e-4, low, where(end < 0.5, high, upper_count))


def within(ratio, end, count):
    """Return the fractional index of a ratio in its decade, which has `count` numbers.

    The index is 0 at the first number of the decade, `count - 1` at its last number, and `count` at
    the first number of the next decade.
    """
    # The gap to the next decade is 3 times as wide as the gaps of this decade, and 3/5 as wide as
    # the gaps of the next. The gap before 1 is half as wide.
    position = (ratio / end - 0.1) * count / 0.9 - 0.5
    gap_position = position - (count - 1.0)
    gap_rank = count - 1.0 + where(end > 0.5, gap_position * 2.0, gap_position * (1 / 3))
    return where(gap_position > 0, gap_rank, minimum(position, position * (5 / 3)))


def number_at(position, end, count):
    """Return the share at an index of a decade, the inverse of `within` without gaps."""
    return (0.1 + (position + 0.5) * 0.9 / count) * end


def power_below(rank):
    """Return the largest power of 2 that is not above a rank from 1 to 255."""
    low = where(rank < 2, 1.0, where(rank < 4, 2.0, where(rank < 8, 4.0, 8.0)))
    high = where(rank < 32, 16.0, where(rank < 64, 32.0, where(rank < 128, 64.0, 128.0)))
    return where(rank < 16, low, high)


def encode(value, scale):
    """Return the fractional code of a number: its rank in the table, with the number's sign."""
    ratio = absolute(value / scale)
    end = decade(ratio, 64.0)
    count = count_of(end, 64.0)
    rank = where(ratio < FIRST, ratio * (1 / FIRST), count + within(ratio, end, count))
    return where(value < 0, -minimum(rank, 127.0), rank)


def decode(code, scale):
    """Return the number of a code; 128, which is read as -128, is the scale."""
    rank = absolute(code)
    count = power_below(rank)
    ratio = number_at(rank - count, end_of(count, 64.0), count)
    ratio = where(code < 0, -ratio, ratio)
    return where(rank < 1, 0.0, where(rank > 127.5, 1.0, ratio)) * scale


def encode_positive(value, scale):
    """Return the fractional code of a nonnegative number: its rank in the table."""
    ratio = value / scale
    end = decade(ratio, 128.0)
    count = count_of(end, 128.0)
    rank = minimum(count - 1.0 + within(ratio, end, count), 255.0)
    return where(ratio < FIRST_POSITIVE, ratio * (1 / FIRST_POSITIVE), rank)


def decode_positive(code, scale):
    count = power_below(code + 1.0)
    ratio = number_at(code + 1.0 - count, end_of(count, 128.0), count)
    return where(code < 1, 0.0, where(code > 254.5, 1.0, ratio)) * scale


DYNAMIC8 = Codec(
    "dynamic8",
    block=256,
    signed=True,
    encode=encode,
    decode=decode,
    for_positive="dynamic8_positive",
)
DYNAMIC8_POSITIVE = Codec(
    "dynamic8_positive",
    block=256,
    signed=False,
    encode=encode_positive,
    decode=decode_positive,
    positive=True,
    least=7,  # 1.6e-5 of the largest number; see `dither`
)
