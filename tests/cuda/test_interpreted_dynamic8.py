"""Codes of `dynamic8` from tables, in Triton's interpreter: those of the codec's formulas."""

# Names of types are from modules that may be missing.
# pyright: reportInvalidTypeForm=false
from __future__ import annotations

import numpy as np
import pytest
import torch

from ptx_emulator import multiply_add
from thalweg._engines.codecs import DYNAMIC8, DYNAMIC8_POSITIVE
from thalweg._engines.codecs.dither import UNIT, round_codes
from thalweg._engines.numpy_functions import numpy_formula

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
functions = pytest.importorskip("thalweg._engines.cuda.dynamic8_functions")
tables, code, code_positive, decode, decode_positive = (
    getattr(functions, f"{name}")
    for name in (
        "dynamic8_tables", "code_dynamic8", "code_dynamic8_positive",
        "decode_dynamic8", "decode_dynamic8_positive",
    )
)  # fmt: skip

CODECS = pytest.mark.parametrize("codec", [DYNAMIC8, DYNAMIC8_POSITIVE], ids=lambda c: c.name)
SIZE = 1 << 18


@pytest.fixture(autouse=True)
def _quiet():
    with np.errstate(all="ignore"):
        yield


@triton.jit
def encode_numbers(
    x, scales, dithers, codes, COUNT: tl.constexpr, POSITIVE: tl.constexpr, FLUSH: tl.constexpr
):
    at = tl.arange(0, COUNT)
    t0, t1, t2, t3, t4, t5 = tables(0, POSITIVE)
    number, peak, dither = tl.load(x + at), tl.load(scales + at), tl.load(dithers + at)
    if POSITIVE:
        result = code_positive(number, peak, dither, t0, t1, t2, t3, t4, t5, FLUSH)
    else:
        result = code(number, peak, dither, t0, t1, t2, t3, t4, t5)
    tl.store(codes + at, result)


@triton.jit
def decode_codes(codes, scales, numbers, COUNT: tl.constexpr, POSITIVE: tl.constexpr):
    at = tl.arange(0, COUNT)
    ends = tables(0, POSITIVE)[2]
    stored, scale = tl.load(codes + at), tl.load(scales + at)
    if POSITIVE:
        tl.store(numbers + at, decode_positive(stored, scale, ends))
    else:
        tl.store(numbers + at, decode(stored, scale, ends))


def exact_multiply_add(a, b, c):
    """Return a * b + c, rounded once; `a` is a tensor of Triton's interpreter."""
    arrays = [x.handle.data if hasattr(x, "handle") else getattr(x, "value", x) for x in (a, b, c)]
    result = multiply_add(*np.broadcast_arrays(*map(np.float32, arrays)))
    return tl.core.tensor(type(a.handle)(result, tl.float32), a.type)


def expected_codes(codec, x, scales, dithers, flush):
    reals = numpy_formula(codec.encode, np.float32)(x, scales)[0]
    codes = round_codes(codec, torch.from_numpy(reals), torch.from_numpy(dithers)).int().numpy()
    is_flushed = flush & (np.abs(x).astype(np.float64) < scales.astype(np.float64) * 2.0**-126)
    return reals, np.where(is_flushed, 0, codes)


def sample_numbers(codec, rng):
    """Return magnitudes and scales: next to codes and between them, and of all exponents."""
    codes = np.arange(256, dtype=np.float32) - 128 * codec.signed
    numbers = np.abs(numpy_formula(codec.decode, np.float32)(codes, np.float32(1))[0])
    numbers = np.sort(numbers)
    near = np.concatenate([numbers, (numbers[1:] + numbers[:-1]) / 2, numbers * 1.0002, [5.5e-7]])
    near = (near.astype(np.float32).view(np.int32)[:, None] + np.arange(-8, 9)).view(np.float32)
    near = np.resize(near[(near >= 0) & (near <= 1)], SIZE // 4)
    usual = rng.integers(96 << 23, (127 << 23) + 1, SIZE // 4).astype(np.int32).view(np.float32)
    any_scale = rng.integers((7 << 23) + 1, 255 << 23, SIZE // 2).astype(np.int32)
    any_scale = any_scale.view(np.float32)
    shares = rng.integers(96 << 23, 127 << 23, SIZE // 2).astype(np.int32).view(np.float32)
    shares[: SIZE // 8] = rng.integers(0, 64 << 23, SIZE // 8).astype(np.int32).view(np.float32)
    x = np.concatenate([near, usual, shares * any_scale])
    x[-100:] = any_scale[-100:]
    return x, np.concatenate([np.ones(SIZE // 2, np.float32), any_scale])


@CODECS
@pytest.mark.parametrize("flush", [False, True], ids=["keep", "flush"])
def test_codes_are_those_of_the_formula(codec, flush, monkeypatch):
    monkeypatch.setattr(functions, "_multiply_add", exact_multiply_add)
    rng = np.random.default_rng(11)
    x, scales = sample_numbers(codec, rng)
    if codec.signed:
        x *= rng.choice(np.array([1, -1], np.float32), SIZE)
    if flush:
        x[np.abs(x) < np.finfo(np.float32).tiny] = 0
    reals, _ = expected_codes(codec, x, scales, np.zeros(SIZE, np.float32), flush)
    # The dithers at which the code changes, and others.
    magnitudes = np.abs(reals).astype(np.float64)
    magnitudes = np.where(codec.signed, magnitudes * np.minimum(magnitudes, 1), magnitudes)
    ranks = np.floor((1 - magnitudes % 1) / UNIT - 0.5) + rng.integers(-1, 3, SIZE)
    dithers = ((np.clip(ranks, 0, 2**14 - 1) + 0.5) * UNIT).astype(np.float32)
    dithers[::9] = 0.5
    _, expected = expected_codes(codec, x, scales, dithers, flush)
    codes = torch.zeros(SIZE, dtype=torch.int32)
    arrays = [torch.from_numpy(array) for array in (x, scales.view(np.int32), dithers)]
    encode_numbers[(1,)](*arrays, codes, SIZE, codec.positive, flush)
    is_wrong = codes.numpy() != expected
    assert not is_wrong.any(), (x[is_wrong][:3], scales[is_wrong][:3], codes.numpy()[is_wrong][:3])
    assert len(np.unique(expected)) > 240


@CODECS
def test_blocks_without_a_scale_have_codes_of_zero(codec):
    x = torch.tensor([0.0, 1.0, 1e-40, torch.inf, torch.nan, 3e38, 1e-37, 2.0**-120] * 4)
    peaks = torch.tensor([0.0, 2.0**-120, torch.inf, torch.nan]).repeat_interleave(8)
    codes = torch.ones(32, dtype=torch.int32)
    dithers = torch.full((32,), 1 - UNIT / 2)
    encode_numbers[(1,)](x, peaks.view(torch.int32), dithers, codes, 32, codec.positive, False)
    assert not codes.any()


@CODECS
def test_numbers_are_those_of_the_formula(codec):
    rng = np.random.default_rng(12)
    codes = np.tile(np.arange(256, dtype=np.float32) - 128 * codec.signed, 256)
    scales = rng.integers(0, 1 << 31, 1 << 16).astype(np.int32).view(np.float32)
    scales[:256] = 1
    numbers = torch.zeros(1 << 16)
    inputs = torch.from_numpy(codes), torch.from_numpy(scales)
    decode_codes[(1,)](*inputs, numbers, 1 << 16, codec.positive)
    expected = numpy_formula(codec.decode, np.float32)(codes, scales)[0]
    is_same = (numbers.numpy().view(np.int32) == expected.view(np.int32)) | np.isnan(expected)
    assert is_same.all(), codes[~is_same][:5]
