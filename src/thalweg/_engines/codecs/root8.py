"""root8: numbers that are never negative, such as mean squares, by their roots.

The code is 255 times the root, divided by the largest root of the block. Formulas of FlashOptim
(arXiv 2602.23349). A block with a negative number is NaN, as its root is.
"""

# Formulas have no types.
# pyright: basic
from thalweg._engines.codecs.codec import Codec
from thalweg.formula import sqrt

STEP = 1 / 255  # 255 times it is 1 in float32, too


def root(number):
    """What is shared out among codes. Updates often have it already, and then nobody waits."""
    return sqrt(number)


def encode(value, scale):
    """The share of the largest root, in steps."""
    return value * (255.0 / scale)


def decode(code, scale):
    """The same backwards; exactly the square of the scale at the largest code."""
    value = code * STEP * scale
    return value * value


ROOT8 = Codec(
    "root8",
    block=32,
    signed=False,
    encode=encode,
    decode=decode,
    prepare=root,
    positive=True,
    least=3,  # 1/85 of the largest root; see `dither`
)
