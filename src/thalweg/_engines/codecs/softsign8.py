"""softsign8: numbers of both signs, small ones finer than large ones.

A number x beside a largest magnitude s has the code 254 x / (s + |x|), which is 127 times the
softsign 2 y / (1 + |y|) of y = x / s. Formulas of FlashOptim (arXiv 2602.23349), with their
divisions taken into one, for which processors wait.
"""

# Formulas have no types.
# pyright: basic
from thalweg._engines.codecs.codec import Codec
from thalweg.formula import absolute


def encode(number, scale):
    """Halves, whose sum is no infinity."""
    half = number * 0.5
    return half / (scale * 0.5 + absolute(half)) * 254.0


def decode(code, scale):
    """The same backwards; exactly the scale at the largest code."""
    return code / (254.0 - absolute(code)) * scale


SOFTSIGN8 = Codec("softsign8", block=32, signed=True, encode=encode, decode=decode)
