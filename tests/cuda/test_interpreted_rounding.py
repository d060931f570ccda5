"""Random bits on a GPU, in Triton's interpreter: those of the reference, wherever an element is."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

import low_precision_trainings
from fake_cuda_graph import captured
from no_sync_device import counting_and_waiting_for_nothing, waiting_for_nothing
from rulebook import FLUSH, KEEP, Engines, Problem, assert_same, case, label, slow_unless
from thalweg import optim
from thalweg._engines.protocol import StepRequest
from thalweg._engines.random_bits import scalars_of
from thalweg.optim import tensorflow

SEED = 7**15
SHAPES = [(), (9, 31), (4096 + 1029,)]
HALVES = [torch.bfloat16, torch.float16]


# Kernels

DISTANT = (1 << 35) - 1029  # in whose chunk the number of a group outgrows 32 bits
# Number and first element of each variable; chunks of those of a shard begin anywhere.
ALIGNED = [(0, 0), ((1 << 32) - 1, 8 * 12345), (2, DISTANT - 3)]
ANYWHERE = [(0, 5), (3, 4099), (1, DISTANT + 2)]


def kernels_take(engine, rule, dtypes, places, selection, steps=(5, (1 << 24) - 1)):
    """Variable, slots, and gradients among which are all kinds of numbers."""
    var_dtype, kind = dtypes
    problem = Problem.make(rule.row, SHAPES, [var_dtype] * 3, 3, special=0.2)
    problem.slots = [[slot.to(kind) for slot in slots] for slots in problem.slots]
    request = StepRequest(
        rule.rule, (), problem.variables, problem.gradients, problem.slots, ["a", "b", "c"],
        selection._replace(name=engine), places=places,
    )  # fmt: skip
    engines = Engines()
    for step in steps:
        scalars = rule.scalars(np.float32) | scalars_of(SEED, step)
        engines.take(request, lambda dtypes, step_scalars=scalars: {np.float32: step_scalars})
    return problem.written()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("places", [ALIGNED, ANYWHERE], ids=["aligned", "anywhere"])
@pytest.mark.parametrize(
    ("name", "dtypes", "selection"),
    [
        ("Adam", (torch.bfloat16, torch.bfloat16), FLUSH),
        ("Momentum", (torch.float16, torch.float16), KEEP),
        ("Momentum", (torch.float16, torch.float16), FLUSH),
        ("Momentum", (torch.float32, torch.float16), KEEP),
        ("Momentum", (torch.bfloat16, torch.float32), FLUSH),
    ],
    ids=label,
)
def test_stochastic_kernels_equal_the_reference(name, dtypes, selection, places):
    args = case(name), dtypes, places, selection
    assert_same(kernels_take("cuda", *args), kernels_take("reference", *args))


# Optimizers


NOISY = {"round": "stochastic", "seed": SEED}


def trained(engine, make, *optimizer_args, shapes=SHAPES, **options):
    return low_precision_trainings.trained(
        engine, make, *optimizer_args, shapes=shapes, **{**NOISY, **options}
    )


QUICK = ("AdamW", "Lion", "tensorflow AdamW", "Muon")
MAKERS = {
    "AdamW": optim.AdamW,
    "Lion": optim.Lion,
    "SGD": partial(optim.SGD, momentum=0.9),
    "NAdam": optim.NAdam,
    "Adafactor": optim.Adafactor,
    "Muon": optim.Muon,
    "AdEMAMix": optim.AdEMAMix,
    "tensorflow Adam": tensorflow.Adam,
    "tensorflow AdamW": partial(tensorflow.AdamW, weight_decay=0.01),
    "tensorflow Ftrl": tensorflow.Ftrl,
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [slow_unless(name in QUICK and x is HALVES[0], name, x) for name in MAKERS for x in HALVES],
    ids=label,
)
def test_stochastic_optimizers_equal_the_reference(name, dtype):
    args = MAKERS[name], 2
    options = {"dtype": dtype, "shapes": [(24, 16)] if name in ("Muon", "Adafactor") else SHAPES}
    actual = trained("cuda", *args, **options)
    assert_same(actual, trained("reference", *args, **options))


def test_stochastic_results_differ_from_nearest():
    def nearest(params, lr, **optimizer_args):
        return optim.AdamW(params, lr)

    drawn_values = trained("cuda", optim.AdamW, shapes=SHAPES[1:2])
    nearest_values = trained("cuda", nearest, shapes=SHAPES[1:2])
    pairs = [pair for pair in zip(drawn_values, nearest_values, strict=True) if pair[0].dim()]
    assert not any(torch.equal(*pair) for pair in pairs)


OPTIONS = [
    {"masters": True, "state_dtype": torch.bfloat16},
    {"state_dtype": torch.float32},
    {"ema_decay": 0.9, "clip_grad_norm": 0.5},
    {"lookahead": 2},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_rounding_with_other_options_equals_the_reference(options):
    actual = trained("cuda", optim.AdamW, shapes=SHAPES[:2], **options)
    assert_same(actual, trained("reference", optim.AdamW, shapes=SHAPES[:2], **options))


@pytest.mark.parametrize("make", [optim.AdamW, tensorflow.Adam], ids=["torch", "TensorFlow"])
@pytest.mark.parametrize("dtype", HALVES, ids=label)
def test_device_counted_steps_draw_reference_bits(make, dtype):
    options = {"dtype": dtype, "shapes": SHAPES[:2]}
    expected = trained("cuda", make, **options)
    assert_same(trained("cuda", make, capturable=True, **options), expected)
    capturable_options = {"capturable": True, **options}
    trained("cuda", make, context=lambda optimizer: waiting_for_nothing(), **capturable_options)


def test_replayed_step_does_not_synchronize():
    trained("cuda", optim.AdamW, 3, counting_and_waiting_for_nothing, shapes=SHAPES[:2])


@pytest.mark.parametrize("make", [optim.AdamW, tensorflow.Adam], ids=["torch", "TensorFlow"])
def test_steps_skipped_by_the_device_draw_nothing(make):
    overflows = (False, True, False, True, True, False)
    options = {"overflows": overflows, "fused_unscale": True, "shapes": SHAPES[:2]}
    actual = trained("cuda", make, len(overflows), **options)
    assert_same(actual, trained("reference", make, len(overflows), **options))


def test_graph_draws_new_bits_in_each_replay():
    options = {**NOISY, "shapes": SHAPES[1:2], "capturable": True}
    eager, graphed = (low_precision_trainings.made_by(optim.AdamW, **options) for _ in range(2))
    assert_same(*low_precision_trainings.replayed(captured, eager, graphed))
