"""MuonH: Muon on a sphere; each matrix keeps the initial norm (Hyperball, 2026)."""

# Pyright takes `torch` for the package beside this one.
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportArgumentType=false
from functools import lru_cache, partial

import torch

from thalweg.formula import Pass, Rule, Slot, Stage, wide
from thalweg.rules.modern.common import lerp
from thalweg.rules.modern.muon import EPSILON, HYPERS, SLOTS, orthogonalize
from thalweg.rules.modern.newton_schulz import check_dtype, triples
from thalweg.rules.modern.sphere import per_variable
from thalweg.rules.torch.common import as_read


def one_for_each_matrix(rows, columns):
    """Return the shape ()."""
    return ()


RADIUS = Slot("radius", initial=-1.0, shape=one_for_each_matrix, dtype=torch.float64)


def prepare(*, momentum):
    """Return the scalars of a step."""
    return {"mean_weight": 1 - as_read(momentum)}


def gather(var, grad, momentum_buffer, *, mean_weight):
    """Return the variable, and the mean of gradients, from which the step is made."""
    return var, lerp(momentum_buffer, grad, mean_weight)


def gather_ahead(var, grad, momentum_buffer, *, momentum, mean_weight):
    """Return the variable, and Nesterov's interpolation of gradient and mean of gradients."""
    return var, lerp(grad, lerp(momentum_buffer, grad, mean_weight), momentum)


def move(*, variable, step, radius, learning_rate, coefficients, epsilon, dtype):
    """Return {"variable": matrices after a step along the sphere, "radius": norm of each matrix}.

    In place of a negative radius, the norm of the matrix is used.
    """
    # No scale: a step is as long as its matrix.
    step = orthogonalize(
        step=step, coefficients=coefficients, epsilon=epsilon, adjust=None, dtype=dtype
    )["step"]
    factors = per_variable(
        variable=_sum_of_products(variable, variable),
        step=_sum_of_products(step, step),
        product=_sum_of_products(variable, step),
        radius=radius.view(-1, 1, 1),
        learning_rate=torch.as_tensor(learning_rate, dtype=variable.dtype, device=step.device),
    )
    moved = variable * factors["back"] - factors["along"] * step
    return {"variable": moved, "radius": factors["radius"].to(radius.dtype).view_as(radius)}


def _sum_of_products(first, second):
    """Return the sum of products of the elements of each matrix, (batch, 1, 1), in float64."""
    return (wide(first) * wide(second)).sum((1, 2), keepdim=True)


def update(var, grad, variable, step, momentum_buffer, *, mean_weight):
    """Return the updated variable and slots."""
    return variable, lerp(momentum_buffer, grad, mean_weight)


@lru_cache(None, typed=True)
def muonh(
    nesterov=False, coefficients="quintic", steps=5, epsilon=EPSILON, layout=None, dtype=None
):  # fmt: skip
    """Return MuonH's rule for these options, which are described in `muon`.

    Raises:
        ValueError: `coefficients`, `steps` or `dtype` is not accepted.
    """
    check_dtype(dtype)
    stage = partial(move, coefficients=triples(coefficients, steps), epsilon=epsilon, dtype=dtype)
    return Rule(
        name="MuonH",
        passes=(
            Pass(gather_ahead if nesterov else gather, makes=("variable", "step")),
            Stage(stage, layout=layout),
        ),
        update=update,
        prepare=prepare,
        hypers=HYPERS[:-1],
        slots=(*SLOTS, RADIUS),
        source="Hyperball, 2026; https://arxiv.org/abs/2606.16899",
        differs="Muon's norms grow; here the rate is an angle. What begins at 0 takes its steps.",
    )


MUONH = muonh()
