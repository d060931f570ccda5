"""Slots in 8 bits and split weights on a GPU, in Triton's interpreter: bits of the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import low_precision_trainings
from fake_cuda_graph import captured
from low_precision_trainings import plain
from no_sync_device import counting_and_waiting_for_nothing, waiting_for_nothing
from quantized_rules import encode_slots, encoded_case
from rulebook import (
    FIRST,
    FLUSH,
    KEEP,
    Case,
    Problem,
    Row,
    assert_same,
    case,
    label,
    slow_unless,
    take,
)
from thalweg import optim
from thalweg._engines.codecs import CODECS, OF_SLOTS
from thalweg._engines.split_weight_rule import split_rule
from thalweg.optim import tensorflow

CASES = [each for each in FIRST if each.rule.element_slots]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


# Kernels


def assert_bits(own, problem, selection=FLUSH, **given):
    """All that steps write is what the reference writes."""
    names = ("cuda", "reference")
    done = [take(own, problem.copy(), selection._replace(name=x), **given) for x in names]
    assert_same(*(plain(each.written()) for each in done))


def encoded(own, sizes, dtype=torch.float32, special=0.01):
    """A problem in the middle of a training, among whose numbers are some of all kinds."""
    made = Problem.make(own.row, sizes, [dtype] * len(sizes), 3, special)
    made.slots = [[slot.float() for slot in slots] for slots in made.slots]
    return encode_slots(own, made)


def is_replayed(name, own, dtype):
    rule = "Adam" if dtype is DTYPES[0] else "Momentum"
    return own.rule.name == rule and (dtype is DTYPES[0] or name in ("softsign8", "linear8"))


@pytest.mark.parametrize(
    ("name", "own", "dtype"),
    [
        slow_unless(is_replayed(name, own, dtype), name, own, dtype)
        for name in OF_SLOTS
        for own in CASES
        for dtype in DTYPES
    ],
    ids=label,
)
def test_rules(name, own, dtype):
    """Of Adam's slots one may have blocks of 32, and the other of 256."""
    own = encoded_case(own, name)
    assert_bits(own, encoded(own, [4096 + 300, 33], dtype))


@pytest.mark.parametrize("selection", [KEEP, FLUSH], ids=["keep", "flush"])
@pytest.mark.parametrize("name", OF_SLOTS)
def test_records_of_any_bytes(name, selection):
    """Such as scales without exponents, and codes beyond the last element."""
    codec = CODECS[name]
    own = encoded_case(case("Adagrad" if codec.positive else "Momentum"), name)
    problem = encoded(own, [8 * codec.block - 5], special=0.0)
    drawn = np.random.default_rng(1).integers(0, 256, problem.slots[0][0].numel(), np.uint8)
    rows = torch.from_numpy(drawn).view(8, codec.record_bytes)
    scales = torch.tensor([2.0**-120, 1e-37, 1e-40, 0.0, np.nan, np.inf, 3e38, -1.0])
    rows[:, :4] = scales.view(8, 1).view(torch.uint8)
    problem.slots[0][0] = rows.reshape(-1)
    assert_bits(own, problem, selection, steps=2)


@pytest.mark.parametrize("selection", [KEEP, FLUSH], ids=["keep", "flush"])
def test_split_weights(selection):
    """All bfloat16 that are no NaN, with some code each."""
    whole = case("Momentum")
    own = Case(Row(split_rule(whole.rule), whole.row.slots), "default", {})
    count = 4096 + 37
    drawn = np.random.default_rng(2)
    bits = torch.from_numpy(drawn.integers(0, 1 << 16, count, np.uint16).view(np.int16))
    var = bits.view(torch.bfloat16)
    var[:8] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-40, 3.39e38, -1e-45])
    codes = torch.from_numpy(drawn.integers(0, 256, count, np.uint8))
    speed = torch.randn(count, generator=torch.Generator().manual_seed(4))
    grad = (speed * var.float() / 64).to(torch.bfloat16)
    assert_bits(own, Problem([var], [[speed, codes]], [grad]), selection, steps=2)


# Optimizers

SHAPES = [(4096 + 257,), (9, 31)]


def trained(engine, make, steps, *how, **options):
    return low_precision_trainings.trained(engine, make, steps, *how, shapes=SHAPES, **options)


SPLIT = {"weights": "split"}
DRAWN = {"round": "stochastic", "seed": 3}
BYTES = {"state_storage": "8bit"}
TRAININGS = [
    (optim.AdamW, {**BYTES, "dtype": torch.float32, "clip_grad_norm": 0.5, "ema_decay": 0.9}),
    (optim.AdamW, {**BYTES, **DRAWN}),
    (optim.AdamW, {**BYTES, "masters": True}),
    (optim.AdamW, {**SPLIT, **BYTES}),
    (optim.AdamW, {**SPLIT, **BYTES, **DRAWN}),
    (optim.AdamW, {**SPLIT, **DRAWN, "state_dtype": torch.bfloat16}),
    (optim.Lion, {**SPLIT, "clip_grad_norm": 0.5}),
    (tensorflow.Adam, {**SPLIT, **DRAWN}),
    (tensorflow.Adam, {**BYTES, "dtype": torch.float16}),
    # Their measures read encoded slots.
    (optim.LAMB, {**BYTES, "dtype": torch.float32}),
    (optim.StableAdamW, {"state_storage": "dynamic8", "dtype": torch.bfloat16}),
    (optim.SGD, {"state_storage": "linear8", "momentum": 0.9, "trust_ratio": True}),
]


@pytest.mark.parametrize(("make", "options"), TRAININGS, ids=str)
def test_trainings(make, options):
    assert_same(trained("cuda", make, 2, **options), trained("reference", make, 2, **options))


AROUND = [
    {**BYTES, "dtype": torch.float32},
    {**SPLIT, **BYTES, **DRAWN},
]


@pytest.mark.parametrize("options", AROUND, ids=str)
def test_steps_that_ask_for_nothing(options):
    wanted = trained("cuda", optim.AdamW, 3, **options)
    trained("cuda", optim.AdamW, 3, counting_and_waiting_for_nothing, **options)
    assert_same(trained("cuda", optim.AdamW, 3, capturable=True, **options), wanted)
    there = {"capturable": True, **options}
    trained("cuda", optim.AdamW, 3, lambda optimizer: waiting_for_nothing(), **there)


@pytest.mark.parametrize("options", AROUND, ids=str)
def test_what_a_device_leaves_out(options):
    given = {"overflows": (False, True, False), "fused_unscale": True, **options}
    found = trained("cuda", optim.AdamW, 3, **given)
    assert_same(found, trained("reference", optim.AdamW, 3, **given))


def test_a_graph():
    options = {**SPLIT, **BYTES, **DRAWN, "capturable": True, "shapes": SHAPES[:1]}
    eager, other = (low_precision_trainings.made_by(optim.AdamW, **options) for _ in range(2))
    assert_same(*low_precision_trainings.replayed(captured, eager, other))
