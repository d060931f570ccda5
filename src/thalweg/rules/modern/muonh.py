"""MuonH: Muon on a sphere: variables keep the norm that they begin with (Hyperball, 2026)."""

from functools import lru_cache, partial

from thalweg.formula import Pass, Rule, Stage, variable_squares
from thalweg.rules.modern.common import check_count, lerp
from thalweg.rules.modern.muon import EPSILON, HYPERS, SLOTS, mean, mean_ahead, orthogonalize
from thalweg.rules.modern.newton_schulz import check_dtype, triples
from thalweg.rules.modern.sphere import RADIUS, per_variable
from thalweg.rules.torch.common import as_read


def prepare(*, momentum):
    """Return the scalars of a step."""
    return {"mean_weight": 1 - as_read(momentum)}


def step_squares(var, grad, step, momentum_buffer):
    """Return a term of a sum: its root is the length of the step."""
    return step * step


def step_products(var, grad, step, momentum_buffer):
    """Return a term of a sum: how far the step goes along the variable."""
    return var * step


def update(var, grad, step, momentum_buffer, *, along, back, mean_weight):
    """Return the updated variable and slots."""
    return var * back - along * step, lerp(momentum_buffer, grad, mean_weight)


@lru_cache(None, typed=True)
def muonh(
    nesterov=False, coefficients="quintic", steps=5, epsilon=EPSILON, heads=None, dtype=None
):  # fmt: skip
    """Return the rule with these options.

    Raises:
        ValueError: Coefficients, steps or the type of products are not known, or `heads` is no
            number of them.
    """
    check_dtype(dtype)
    check_count("heads", 1 if heads is None else heads)
    # No scale: steps are as long as variables.
    stage = partial(
        orthogonalize, coefficients=triples(coefficients, steps), epsilon=epsilon, adjust=None,
        dtype=dtype,
    )  # fmt: skip
    return Rule(
        name="MuonH",
        passes=(Pass(mean_ahead if nesterov else mean, makes=("step",)), Stage(stage, heads=heads)),
        update=update,
        prepare=prepare,
        measures={"variable": variable_squares, "step": step_squares, "product": step_products},
        per_variable=per_variable,
        hypers=HYPERS[:-1],
        slots=(RADIUS, *SLOTS),
        source="Hyperball, 2026; https://arxiv.org/abs/2606.16899",
        differs="Muon's norms grow; here the rate is an angle. What begins at 0 takes its steps.",
    )


MUONH = muonh()
