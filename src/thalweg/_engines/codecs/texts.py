"""Names, constants and functions of codecs in the texts of kernels, for all engines."""

from __future__ import annotations

from collections.abc import Iterable

from thalweg._engines.codecs.codec import Codec
from thalweg._engines.codegen import Field, FormulaWriter
from thalweg._engines.formula_parser import trace_formula
from thalweg._engines.formula_source import FUNCTION_PREFIX

PARTS = ("decode", "prepare", "encode")  # the formulas of a codec


def define_codecs(
    writer: FormulaWriter, codecs: Iterable[Codec], roles: Iterable[str] = PARTS
) -> dict[str, str]:
    """Return {function name without prefix: source} for the formulas of codecs.

    Args:
        writer: Writes the source.
        roles: The names of the formulas to write, a subset of `PARTS`.
    """
    names = {f"{role}_{codec.name}": getattr(codec, role) for codec in codecs for role in roles}
    return {name: writer.define_function(name, trace_formula(x)) for name, x in names.items()}


def codec_fields(codec: Codec) -> dict[str, Field]:
    """Return {template placeholder: value} for a codec.

    Returns:
        block: The count of numbers that share a scale, a power of 2.
        shift: The base-2 logarithm of `block`.
        record: The bytes of a block: its scale and its codes.
        header: The bytes of the scale.
        kind: The type of a code, "int8" or "uint8".
        round_to: The name of the function that rounds a real number to a code.
        limits: The last argument of `round_to`, with a comma before it; "" if there is none.
        decode, prepare, encode: The names of the codec's functions.
    """
    return {
        "block": codec.block,
        "shift": codec.block.bit_length() - 1,
        "record": codec.record_bytes,
        "header": codec.header_bytes,
        "kind": "int8" if codec.signed else "uint8",
        "round_to": "positive_code" if codec.positive else "signed_code",
        "limits": f", {codec.least}" if codec.positive else "",
        **{role: f"{FUNCTION_PREFIX}{role}_{codec.name}" for role in PARTS},
    }
