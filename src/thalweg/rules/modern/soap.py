"""SOAP: Adam in the eigenbasis of the factors of Shampoo (Vyas et al. 2024) or KL-Shampoo.

The first step only computes factors and bases, and moves no variable, as in the authors' code.
"""

from functools import lru_cache, partial

from thalweg.formula import Hyper, Pass, Rule, Slot, Stage, sqrt
from thalweg.rules.modern.common import check_count, hypers, lerp, mean_square
from thalweg.rules.modern.eigenbasis import (
    add_product,
    first_basis,
    next_basis,
    reorder,
    side,
    turn,
    turn_back,
    whiten,
)  # fmt: skip
from thalweg.rules.torch.common import as_read

SHARE = Hyper("shampoo_beta", 0.95, "share of the factors that is kept")


def prepare(*, learning_rate, beta1, beta2, weight_decay, shampoo_beta, t):
    """Return {name: scalar of step t}. In step 1, means and variables do not change."""
    count, rate = as_read(t) - 1, as_read(learning_rate)
    if count == 0:
        return {"mean_weight": 0.0, "square_weight": 0.0, "square_share": 1.0, "step_size": 0.0,
                "shrink": 1.0, "factor_weight": 1 - as_read(shampoo_beta)}  # fmt: skip
    root = (1 - as_read(beta2) ** count) ** 0.5
    return {
        "mean_weight": 1 - as_read(beta1),
        "square_weight": 1 - as_read(beta2),
        "square_share": as_read(beta2),
        "step_size": rate * root / (1 - as_read(beta1) ** count),
        "shrink": 1 - rate * as_read(weight_decay),
        "factor_weight": 1 - as_read(shampoo_beta),
    }


def gather(var, grad, exp_avg, exp_avg_sq, *, mean_weight):
    """Return the gradient, the new mean of gradients, and the unchanged mean squares."""
    return grad, lerp(exp_avg, grad, mean_weight), exp_avg_sq


def divide(
    var, grad, turned, mean, square, exp_avg, exp_avg_sq, *, square_share, square_weight, epsilon
):
    """Return Adam's direction in the basis."""
    return mean / (sqrt(mean_square(square, turned, square_share, square_weight)) + epsilon)


def update(
    var, grad, turned, mean, square, step, exp_avg, exp_avg_sq, *, step_size, shrink, mean_weight,
    square_share, square_weight,
):  # fmt: skip
    """Return the updated variable and slots; decay comes last."""
    square = mean_square(square, turned, square_share, square_weight)
    return (var - step_size * step) * shrink, lerp(exp_avg, grad, mean_weight), square


def out_of_basis(*, step, row_basis, column_basis):
    """Return the direction rotated back from the basis."""
    return {"step": turn_back(step, row_basis, column_basis)}


def into_basis(
    *, turned, mean, square, row_factor, column_factor, row_basis, column_basis, factor_weight,
    epsilon, t, frequency, whitens,
):  # fmt: skip
    """Rotate the gradient `turned` and `mean` into the bases; return {argument's name: new tensor}.

    First, every `frequency` steps, compute new bases, and reorder the mean squares `square` if the
    eigenvectors change places. Then add the gradient to the factors. No argument is written.
    """
    grad, weight, whitenings = turned, factor_weight, (None, None)
    if t > 2 and (t - 2) % frequency == 0:  # after the update of that step
        row_basis, rows = next_basis(row_factor, row_basis)
        column_basis, columns = next_basis(column_factor, column_basis)
        square = reorder(square, rows, columns)
    if whitens and t > 1:
        whitenings = (whiten(column_factor, column_basis, epsilon),
                   whiten(row_factor, row_basis, epsilon))  # fmt: skip
    row_factor = add_product(row_factor, grad, whitenings[0], weight)
    column_factor = add_product(column_factor, grad.mT, whitenings[1], weight)
    if t == 1:
        row_basis, column_basis = first_basis(row_factor), first_basis(column_factor)
    rotated = {"turned": turn(grad, row_basis, column_basis), "square": square,
            "mean": turn(mean, row_basis, column_basis)}  # fmt: skip
    return {**rotated, "row_factor": row_factor, "column_factor": column_factor,
            "row_basis": row_basis, "column_basis": column_basis}  # fmt: skip


@lru_cache(None, typed=True)
def soap(frequency=10, largest=10000, whitens=False, layout=None):
    """Return the rule of SOAP, or of KL-SOAP if `whitens`.

    Args:
        frequency: The number of steps after which the eigenbases change, a positive integer.
        largest: A positive integer. Sides of a matrix that are longer have no factor and no basis.
        whitens: True uses the factors of KL-Shampoo.
        layout: The `MatrixLayout` of the matrices in a variable, each with separate bases. None
            means a single matrix, and raises an error for variables of three dimensions.

    Raises:
        ValueError: `frequency` or `largest` is not a positive integer.
    """
    check_count("precondition_frequency", frequency)
    check_count("max_precondition_dim", largest)

    rows, columns = (
        partial(side, largest=largest, of_columns=is_column) for is_column in (False, True)
    )
    shapes = {"row_factor": rows, "column_factor": columns, "row_basis": rows,
              "column_basis": columns}  # fmt: skip
    source = "https://arxiv.org/abs/2509.03378" if whitens else "https://arxiv.org/abs/2409.11321"
    return Rule(
        name="KLSOAP" if whitens else "SOAP",
        passes=(
            Pass(gather, makes=("turned", "mean", "square")),
            Stage(partial(into_basis, frequency=frequency, whitens=whitens), layout=layout),
            Pass(divide, makes=("step",)),
            Stage(out_of_basis, layout=layout),
        ),
        update=update,
        prepare=prepare,
        hypers=(*hypers(learning_rate=0.003, beta1=0.95, beta2=0.95, weight_decay=0.01), SHARE),
        slots=(
            Slot("exp_avg", momentum=1),
            Slot("exp_avg_sq", positive=True),
            *(Slot(name, shape=shape) for name, shape in shapes.items()),
        ),
        source=f"{'Lin et al. 2025' if whitens else 'Vyas et al. 2024'}; {source}",
        differs="torch.optim has none. Other packages may merge dimensions; a matrix here has one"
        " dimension, and all others.",
    )


SOAP = soap()
KLSOAP = soap(whitens=True)
