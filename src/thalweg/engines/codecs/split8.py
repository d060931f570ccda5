"""split8: what a bfloat16 lacks of a number, in 256ths of the bfloat16's last place.

A number and its correction have 24 bits, of which the sign and the exponent are the bfloat16's: 15
or 16 of its own digits, where a bfloat16 has 8. A code is the nearest integer from -127 to 127; an
element has no scale, for the bfloat16 beside it says how much its last place is worth.
"""

from typing import Any

from thalweg.engines.codecs.codec import Codec
from thalweg.formula import maximum, minimum

PLACES = 15  # from a number's exponent to that of a code's last place


def encode(number: Any, inverse: Any) -> Any:
    """A correction, times what a place is divided by."""
    return maximum(minimum(number * inverse, 127.0), -127.0)


def decode(code: Any, place: Any) -> Any:
    """A code, times its last place."""
    return code * place


SPLIT8 = Codec("split8", block=256, signed=True, encode=encode, decode=decode, is_beside=True)
