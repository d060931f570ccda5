"""NorMuon: Muon with each row of a step divided by a running RMS (Li et al. 2025)."""

from dataclasses import replace
from functools import lru_cache, partial

from thalweg._base.showing import show_value
from thalweg.formula import Hyper, Pass, Rule, Slot, Stage
from thalweg.rules.modern.muon import EPSILON, HYPERS, SLOTS, mean, mean_ahead, update
from thalweg.rules.modern.muon import prepare as prepare_muon
from thalweg.rules.modern.newton_schulz import check_dtype, norms_of, orthogonal, scale_of, triples
from thalweg.rules.torch.common import as_read

_TINY = 1e-10  # added to roots and norms
LENGTHS = ("preserve_norm", "match_rms")  # how long a step is: as Muon's, or as AdamW's
BETA2 = Hyper("beta2", 0.95, "share of the rows' mean squares that is kept")


def prepare(*, learning_rate, momentum, weight_decay, beta2):
    """Return the scalars of a step."""
    scalars = prepare_muon(
        learning_rate=learning_rate, momentum=momentum, weight_decay=weight_decay
    )
    return {**scalars, "row_weight": 1 - as_read(beta2)}


def one_for_each_row(rows, columns):
    """Return the shape (rows, 1)."""
    return rows, 1


def normalize(
    *, step, second_momentum_buffer, row_weight, coefficients, epsilon, adjust, length, dtype
):  # fmt: skip
    """Return {"step": new step, "second_momentum_buffer": running mean square of each row}.

    Rows of the orthogonalized step are divided by their running RMS. The new step has an RMS of 0.2
    if `length` is "match_rms", else the norm from before the division, scaled by `adjust`.
    """
    orthogonalized = orthogonal(step, coefficients, epsilon, dtype)
    squares = orthogonalized.square().mean(dim=2, keepdim=True)
    second = second_momentum_buffer + (squares - second_momentum_buffer) * row_weight
    normalized = orthogonalized / (second.sqrt() + _TINY)
    if length == "match_rms":  # the paper's
        target_norm = 0.2 * (step.shape[1] * step.shape[2]) ** 0.5
    else:
        target_norm = norms_of(orthogonalized) * scale_of(adjust, *step.shape[1:])
    scaled_step = normalized * (target_norm / (norms_of(normalized) + _TINY))
    return {"step": scaled_step, "second_momentum_buffer": second}


@lru_cache(None, typed=True)
def normuon(
    nesterov=True, coefficients="original", steps=5, epsilon=EPSILON, adjust=None,
    length="preserve_norm", layout=None, dtype=None,
):  # fmt: skip
    """Return NorMuon's rule. `length` is in `LENGTHS`; other options are described in `muon`.

    Raises:
        ValueError: `coefficients`, `steps`, `adjust`, `length` or `dtype` is not accepted.
    """
    scale_of(adjust, 1, 1)
    check_dtype(dtype)
    if length not in LENGTHS:
        names = ", ".join(map(repr, LENGTHS))
        raise ValueError(f"update_scale is {show_value(length)}; known are {names}.")

    stage = partial(
        normalize, coefficients=triples(coefficients, steps), epsilon=epsilon, adjust=adjust,
        length=length, dtype=dtype,
    )  # fmt: skip
    return Rule(
        name="NorMuon",
        passes=(
            Pass(mean_ahead if nesterov else mean, makes=("step",)),
            Stage(stage, layout=layout),
        ),
        update=update,
        prepare=prepare,
        hypers=(replace(HYPERS[0], default=0.02), *HYPERS[1:], BETA2),
        slots=(*SLOTS, Slot("second_momentum_buffer", shape=one_for_each_row)),
        source="Li et al. 2025; https://arxiv.org/abs/2510.05491",
        differs="torch.optim has none; steps are as long as its Muon's, as in the authors' code.",
    )


NORMUON = normuon()
