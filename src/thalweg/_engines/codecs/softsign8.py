"""softsign8: numbers of both signs, with finer codes for small ones.

A number x in a block with the largest magnitude s has the code 254 x / (s + |x|), which is 127
times the softsign 2 y / (1 + |y|) of y = x / s. The formulas are from FlashOptim (arXiv
2602.23349), with two slow divisions merged into one.
"""

# Formulas have no types.
# pyright: basic
from thalweg._engines.codecs.codec import Codec
from thalweg.formula import absolute


def encode(value, scale):
    """Return the code as a real number; halves are added, since the full sum may overflow."""
    half = value * 0.5
    return half / (scale * 0.5 + absolute(half)) * 254.0


def decode(code, scale):
    """Return the number of a code; the code 127 gives exactly the scale."""
    return code / (254.0 - absolute(code)) * scale


SOFTSIGN8 = Codec(
    "softsign8", block=32, signed=True, encode=encode, decode=decode, for_positive="root8"
)
