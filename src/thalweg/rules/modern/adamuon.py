"""AdaMuon: orthogonalized signs of Muon's mean, divided by a running root (Si et al. 2025)."""

from dataclasses import replace
from functools import lru_cache, partial

from thalweg.formula import Hyper, Pass, Rule, Slot, Stage, moved, sign, sqrt
from thalweg.rules.modern.common import lerp, mean_square
from thalweg.rules.modern.muon import EPSILON as NORM_BOUND
from thalweg.rules.modern.muon import HYPERS, SLOTS, prepare
from thalweg.rules.modern.newton_schulz import check_dtype, norms_of, orthogonal, triples

RMS = 0.2  # root mean square of a step, as in the authors' code
LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = HYPERS
BOTH = "share of the mean and of the mean squares that is kept"


def signs(var, grad, momentum_buffer, v_buffer, *, mean_weight):
    """Return the signs of the mean of gradients."""
    return sign(lerp(momentum_buffer, grad, mean_weight))


def signs_ahead(var, grad, momentum_buffer, v_buffer, *, momentum, mean_weight):
    """Return the signs of Nesterov's interpolation of the gradient and the mean of gradients."""
    return sign(lerp(grad, lerp(momentum_buffer, grad, mean_weight), momentum))


def divide(var, grad, direction, momentum_buffer, v_buffer, *, momentum, mean_weight, epsilon):
    """Return the orthogonalized signs divided by the root of their mean squares."""
    return direction / (sqrt(mean_square(v_buffer, direction, momentum, mean_weight)) + epsilon)


def update(
    var, grad, direction, step, momentum_buffer, v_buffer, *, learning_rate, shrink, momentum,
    mean_weight,
):  # fmt: skip
    """Return the updated variable and slots."""
    square = mean_square(v_buffer, direction, momentum, mean_weight)
    new_mean = lerp(momentum_buffer, grad, mean_weight)
    return moved(var * shrink, -(learning_rate * step)), new_mean, square


def orthogonalize(*, direction, coefficients, dtype):
    """Return the orthogonalized signs."""
    return {"direction": orthogonal(direction, coefficients, NORM_BOUND, dtype)}


def rescale(*, step, epsilon):
    """Return the step with a root mean square of 0.2."""
    norm = RMS * (step.shape[1] * step.shape[2]) ** 0.5
    return {"step": step * (norm / (norms_of(step) + epsilon))}


@lru_cache(None, typed=True)
def adamuon(nesterov=True, coefficients="original", steps=5, layout=None, dtype=None):
    """Return AdaMuon's rule for these options, which are described in `muon`.

    Raises:
        ValueError: `coefficients`, `steps` or `dtype` is not accepted.
    """
    check_dtype(dtype)
    stage = partial(orthogonalize, coefficients=triples(coefficients, steps), dtype=dtype)
    return Rule(
        name="AdaMuon",
        passes=(
            Pass(signs_ahead if nesterov else signs, makes=("direction",)),
            Stage(stage, layout=layout),
            Pass(divide, makes=("step",)),
            Stage(rescale, layout=layout),
        ),
        update=update,
        prepare=prepare,
        hypers=(
            replace(LEARNING_RATE, default=0.02),
            replace(MOMENTUM, doc=BOTH),
            replace(WEIGHT_DECAY, default=0.01),
            Hyper("epsilon", 1e-8, "added to roots and norms; torch's eps"),
        ),
        slots=(*SLOTS, Slot("v_buffer", positive=True)),
        source="Si et al. 2025; https://arxiv.org/abs/2507.11005",
        differs="torch.optim has none. The authors' code iterates and keeps squares in bfloat16.",
    )


ADAMUON = adamuon()
