"""Slots in 8 bits and split weights on a GPU, in Triton's interpreter: bits of the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import low_precision_trainings
from fake_cuda_graph import captured
from low_precision_trainings import plain
from no_sync_device import counting_and_waiting_for_nothing, waiting_for_nothing
from quantized_rules import encode_slots, encoded_case, shard_of
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

CASES = [candidate for candidate in FIRST if candidate.rule.element_slots]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


# Kernels


def assert_bits(base, problem, selection=FLUSH, **options):
    names = ("cuda", "reference")
    results = [take(base, problem.copy(), selection._replace(name=x), **options) for x in names]
    assert_same(*(plain(problem_copy.written()) for problem_copy in results))


def encoded(base, sizes, dtype=torch.float32, special=0.01):
    """A problem in the middle of a training, among whose numbers are some of all kinds."""
    encoded_problem = Problem.make(base.row, sizes, [dtype] * len(sizes), 3, special)
    encoded_problem.slots = [[slot.float() for slot in slots] for slots in encoded_problem.slots]
    return encode_slots(base, encoded_problem)


def is_replayed(name, base, dtype):
    rule = "Adam" if dtype is DTYPES[0] else "Momentum"
    return base.rule.name == rule and (dtype is DTYPES[0] or name in ("softsign8", "linear8"))


@pytest.mark.parametrize(
    ("name", "base", "dtype"),
    [
        slow_unless(is_replayed(name, base_case, dtype), name, base_case, dtype)
        for name in OF_SLOTS
        for base_case in CASES
        for dtype in DTYPES
    ],
    ids=label,
)
def test_encoded_rules_equal_the_reference(name, base, dtype):
    """Of Adam's slots one may have blocks of 32, and the other of 256."""
    base = encoded_case(base, name)
    assert_bits(base, encoded(base, [4096 + 300, 33], dtype))


@pytest.mark.parametrize("selection", [KEEP, FLUSH], ids=["keep", "flush"])
@pytest.mark.parametrize("name", OF_SLOTS)
def test_arbitrary_records_equal_the_reference(name, selection):
    codec = CODECS[name]
    base = encoded_case(case("Adagrad" if codec.positive else "Momentum"), name)
    problem = encoded(base, [8 * codec.block - 5], special=0.0)
    codes = np.random.default_rng(1).integers(0, 256, problem.slots[0][0].numel(), np.uint8)
    rows = torch.from_numpy(codes).view(8, codec.record_bytes)
    scales = torch.tensor([2.0**-120, 1e-37, 1e-40, 0.0, np.nan, np.inf, 3e38, -1.0])
    rows[:, :4] = scales.view(8, 1).view(torch.uint8)
    problem.slots[0][0] = rows.reshape(-1)
    assert_bits(base, problem, selection, steps=2)


@pytest.mark.parametrize("rule", ["Adagrad", "Momentum"])
def test_a_shard_has_the_bits_of_the_full_variable(rule):
    base = encoded_case(case(rule), "root8" if rule == "Adagrad" else "dynamic8")
    full = encoded(base, [256 * 9], special=0.0)
    positions = torch.arange(256 * 3, 256 * 9)
    shard = shard_of(base, full, positions)
    selection = KEEP._replace(name="cuda")
    take(base, full, selection, draw_step=7.0)
    places = [(None, 256 * 3)]
    stepped = take(base, shard.copy(), selection, places=places, draw_step=7.0)
    assert_same(stepped.written(), shard_of(base, full, positions).written())
    beginning = take(base, shard.copy(), selection, draw_step=7.0)
    assert not all(map(torch.equal, beginning.written(), stepped.written()))


@pytest.mark.parametrize("selection", [KEEP, FLUSH], ids=["keep", "flush"])
def test_split_weights_equal_the_reference(selection):
    momentum = case("Momentum")
    split_case = Case(Row(split_rule(momentum.rule), momentum.row.slots), "default", {})
    count = 4096 + 37
    rng = np.random.default_rng(2)
    bits = torch.from_numpy(rng.integers(0, 1 << 16, count, np.uint16).view(np.int16))
    var = bits.view(torch.bfloat16)
    var[:8] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-40, 3.39e38, -1e-45])
    codes = torch.from_numpy(rng.integers(0, 256, count, np.uint8))
    speed = torch.randn(count, generator=torch.Generator().manual_seed(4))
    grad = (speed * var.float() / 64).to(torch.bfloat16)
    assert_bits(split_case, Problem([var], [[speed, codes]], [grad]), selection, steps=2)


# Optimizers

SHAPES = [(4096 + 257,), (9, 31)]


def trained(engine, make, steps, *args, **options):
    return low_precision_trainings.trained(engine, make, steps, *args, shapes=SHAPES, **options)


SPLIT = {"weights": "split"}
NOISY = {"round": "stochastic", "seed": 3}
BYTES = {"state_storage": "8bit"}
TRAININGS = [
    (optim.AdamW, {**BYTES, "dtype": torch.float32, "clip_grad_norm": 0.5, "ema_decay": 0.9}),
    (optim.AdamW, {**BYTES, **NOISY}),
    (optim.AdamW, {**BYTES, "masters": True}),
    (optim.AdamW, {**SPLIT, **BYTES}),
    (optim.AdamW, {**SPLIT, **BYTES, **NOISY}),
    (optim.AdamW, {**SPLIT, **NOISY, "state_dtype": torch.bfloat16}),
    (optim.Lion, {**SPLIT, "clip_grad_norm": 0.5}),
    (tensorflow.Adam, {**SPLIT, **NOISY}),
    (tensorflow.Adam, {**BYTES, "dtype": torch.float16}),
    # Their measures read encoded slots.
    (optim.LAMB, {**BYTES, "dtype": torch.float32}),
    (optim.StableAdamW, {"state_storage": "dynamic8", "dtype": torch.bfloat16}),
    (optim.SGD, {"state_storage": "linear8", "momentum": 0.9, "trust_ratio": True}),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("make", "options"), TRAININGS, ids=str)
def test_encoded_trainings_equal_the_reference(make, options):
    assert_same(trained("cuda", make, 2, **options), trained("reference", make, 2, **options))


MATRIX_TRAININGS = [
    (optim.Muon, {**BYTES, "dtype": torch.float32}),
    (optim.Muon, SPLIT),
    (optim.Muon, {**SPLIT, **BYTES, "trust_ratio": True}),
    (optim.SOAP, {**SPLIT, **BYTES, **NOISY}),
]


@pytest.mark.parametrize(("make", "options"), MATRIX_TRAININGS, ids=str)
def test_encoded_matrix_trainings_equal_the_reference(make, options):
    options = {**options, "shapes": [(64, 72), (5, 7)]}
    results = [
        low_precision_trainings.trained(name, make, 2, **options) for name in ("cuda", "reference")
    ]
    assert_same(*results)


OPTIONS = [
    {**BYTES, "dtype": torch.float32},
    {**SPLIT, **BYTES, **NOISY},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_capturable_steps_do_not_synchronize(options):
    expected = trained("cuda", optim.AdamW, 3, **options)
    trained("cuda", optim.AdamW, 3, counting_and_waiting_for_nothing, **options)
    assert_same(trained("cuda", optim.AdamW, 3, capturable=True, **options), expected)
    capturable_options = {"capturable": True, **options}
    trained("cuda", optim.AdamW, 3, lambda optimizer: waiting_for_nothing(), **capturable_options)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_device_skipped_steps_change_nothing(options):
    step_options = {"overflows": (False, True, False), "fused_unscale": True, **options}
    actual = trained("cuda", optim.AdamW, 3, **step_options)
    assert_same(actual, trained("reference", optim.AdamW, 3, **step_options))


def test_graph_replays_equal_eager_steps():
    options = {**SPLIT, **BYTES, **NOISY, "capturable": True, "shapes": SHAPES[:1]}
    eager, graphed = (low_precision_trainings.made_by(optim.AdamW, **options) for _ in range(2))
    assert_same(*low_precision_trainings.replayed(captured, eager, graphed))
