"""Muon: a mean of gradients with all singular values set to 1 (Jordan 2024)."""

from functools import lru_cache, partial

from thalweg.formula import Hyper, Pass, Rule, Slot, Stage, moved
from thalweg.rules.modern.common import lerp
from thalweg.rules.modern.newton_schulz import check_dtype, orthogonal, scale_of, triples
from thalweg.rules.torch.common import as_read

HYPERS = (
    Hyper("learning_rate", 0.001, "step size; torch's lr"),
    Hyper("momentum", 0.95, "share of the mean that is kept"),
    Hyper("weight_decay", 0.1, "share of the variable that it loses, times the rate"),
)
SLOTS = (Slot("momentum_buffer", momentum=1),)
EPSILON = 1e-7  # lower bound of norms


def prepare(*, learning_rate, momentum, weight_decay):
    """Return the scalars of a step."""
    return {
        "mean_weight": 1 - as_read(momentum),
        "shrink": 1 - as_read(learning_rate) * as_read(weight_decay),
    }


def mean(var, grad, momentum_buffer, *, mean_weight):
    """Return the mean of gradients, from which the step is made."""
    return lerp(momentum_buffer, grad, mean_weight)


def mean_ahead(var, grad, momentum_buffer, *, momentum, mean_weight):
    """Return Nesterov's interpolation of the gradient and the mean of gradients."""
    return lerp(grad, lerp(momentum_buffer, grad, mean_weight), momentum)


def update(var, grad, step, momentum_buffer, *, learning_rate, shrink, mean_weight):
    """Return the updated variable and slots."""
    return moved(var * shrink, -(learning_rate * step)), lerp(momentum_buffer, grad, mean_weight)


def orthogonalize(*, step, coefficients, epsilon, adjust, dtype):
    """Return the orthogonalized step times the factor of its shape."""
    scale = scale_of(adjust, *step.shape[1:])
    return {"step": orthogonal(step, coefficients, epsilon, dtype, scale)}


@lru_cache(None, typed=True)
def muon(
    nesterov=True, coefficients="original", steps=5, epsilon=EPSILON, adjust=None, layout=None,
    dtype=None,
):  # fmt: skip
    """Return Muon's rule for these options.

    Args:
        nesterov: True for Nesterov momentum, False for ordinary momentum.
        coefficients, steps, epsilon, dtype: As for `newton_schulz.triples` and `orthogonal`.
        adjust: How a step's length depends on the matrix shape; see `scale_of`.
        layout: The `MatrixLayout` of the matrices in a variable. None means a single matrix.

    Raises:
        ValueError: `coefficients`, `steps`, `adjust` or `dtype` is not accepted.
    """
    scale_of(adjust, 1, 1)
    check_dtype(dtype)
    stage = partial(
        orthogonalize, coefficients=triples(coefficients, steps), epsilon=epsilon, adjust=adjust,
        dtype=dtype,
    )  # fmt: skip
    return Rule(
        name="Muon",
        passes=(
            Pass(mean_ahead if nesterov else mean, makes=("step",)),
            Stage(stage, layout=layout),
        ),
        update=update,
        prepare=prepare,
        hypers=HYPERS,
        slots=SLOTS,
        source="Jordan 2024, https://kellerjordan.github.io/posts/muon; torch.optim.Muon",
        differs="torch's iterates in bfloat16 on every device, ours in float32 on the CPU.",
    )


MUON = muon()
