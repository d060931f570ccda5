"""linear8: 127 equal steps from 0 to the largest magnitude of a block of 256."""

# Formulas have no types.
# pyright: basic
from thalweg._engines.codecs.codec import Codec

STEP = 1 / 127  # 127 times it is 1 in float32, too


def encode(value, scale):
    """Return the number in steps of a 127th of the scale."""
    return value * (127.0 / scale)


def decode(code, scale):
    """Return the number of a code; the code 127 gives exactly the scale."""
    return code * STEP * scale


LINEAR8 = Codec(
    "linear8", block=256, signed=True, encode=encode, decode=decode, for_positive="root8"
)
