"""root8: nonnegative numbers, such as mean squares, encoded by their square roots.

The code is 255 times the root, divided by the largest root of the block. The formulas are from
FlashOptim (arXiv 2602.23349). All numbers of a block with a negative number become NaN.
"""

# Formulas have no types.
# pyright: basic
from thalweg._engines.codecs.codec import Codec
from thalweg.formula import sqrt

STEP = 1 / 255  # 255 times it is 1 in float32, too


def root(value):
    """Return the square root, which an update has often computed already, so that it is free."""
    return sqrt(value)


def encode(value, scale):
    """Return the root in steps of a 255th of the scale."""
    return value * (255.0 / scale)


def decode(code, scale):
    """Return the number of a code; the code 255 gives exactly the square of the scale."""
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
