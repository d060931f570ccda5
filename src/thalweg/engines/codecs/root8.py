"""root8: numbers that are never negative, such as mean squares, by their roots.

The code is 255 times the root, divided by the largest root of the block. Formulas of FlashOptim
(arXiv 2602.23349).
"""

from typing import Any

from thalweg.engines.codecs.codec import Codec
from thalweg.formula import sqrt, where

STEP = 1 / 255  # 255 times it is 1 in float32, too


def scale_of(peak: Any) -> Any:
    """The largest root."""
    return sqrt(peak)


def encode(number: Any, scale: Any) -> Any:
    """What should not be negative, and is, has the code 0."""
    return sqrt(where(number > 0, number, 0.0)) * (255.0 / scale)


def decode(code: Any, scale: Any) -> Any:
    """The same backwards; exactly the square of the scale at the largest code."""
    root = code * STEP * scale
    return root * root


ROOT8 = Codec(
    "root8", block=32, signed=False, encode=encode, decode=decode, scale=scale_of, positive=True
)
