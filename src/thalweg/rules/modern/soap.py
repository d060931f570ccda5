"""SOAP: Adam in the eigenbasis of Shampoo's factors (Vyas et al. 2024).

The first gradient makes the factors and their basis, and moves nothing, as in the authors' code. A
side longer than `largest` keeps its own basis.
"""

from functools import cache

import torch

from thalweg.formula import Hyper, Pass, Rule, Slot, Stage, sqrt
from thalweg.rules.modern.arithmetic import hypers, lerp, mean_square
from thalweg.rules.torch.arithmetic import as_read

_TINY = 1e-30  # added to a factor's diagonal before its first eigenvectors
SHARE = Hyper("shampoo_beta", 0.95, "share of the factors that is kept")


def prepare(*, learning_rate, beta1, beta2, weight_decay, t):
    """Once a step; means have seen one gradient less than there were steps."""
    count, rate = as_read(t) - 1, as_read(learning_rate)
    moves = count > 0
    root = (1 - as_read(beta2) ** count) ** 0.5
    return {
        "mean_weight": 1 - as_read(beta1) if moves else 0.0,
        "square_weight": 1 - as_read(beta2) if moves else 0.0,
        "square_share": as_read(beta2) if moves else 1.0,
        "step_size": rate * root / (1 - as_read(beta1) ** count) if moves else 0.0,
        "shrink": 1 - rate * as_read(weight_decay) if moves else 1.0,
    }


def gather(var, grad, exp_avg, exp_avg_sq, *, mean_weight):
    """What goes into the basis, and the mean squares in it, whose order may change."""
    return grad, lerp(exp_avg, grad, mean_weight), exp_avg_sq


def divide(
    var, grad, turned, step, square, exp_avg, exp_avg_sq, *, square_share, square_weight, epsilon
):
    """Adam's direction, in the basis."""
    return step / (sqrt(mean_square(square, turned, square_share, square_weight)) + epsilon)


def update(
    var, grad, turned, step, square, direction, exp_avg, exp_avg_sq, *, step_size, shrink,
    mean_weight, square_share, square_weight,
):  # fmt: skip
    """Once per element; decay comes last."""
    var = (var - step_size * direction) * shrink
    square = mean_square(square, turned, square_share, square_weight)
    return var, lerp(exp_avg, grad, mean_weight), square


def turn(matrices, rows, columns):
    """Matrices in the basis of these eigenvectors, an empty one of which stands for none."""
    made = rows.mT @ matrices if rows.numel() else matrices
    return made @ columns if columns.numel() else made


def turn_back(matrices, rows, columns):
    """The same from the basis."""
    made = rows @ matrices if rows.numel() else matrices
    return made @ columns.mT if columns.numel() else made


def first_basis(factor):
    """The eigenvectors of a factor, those of large values first."""
    if not factor.numel():
        return factor
    eye = torch.eye(factor.shape[1], dtype=factor.dtype, device=factor.device)
    return torch.linalg.eigh(factor + _TINY * eye).eigenvectors.flip(2)


def next_basis(factor, basis):
    """The basis after one more power of the factor, and the order of its vectors before."""
    if not factor.numel():
        return basis, None
    powered = factor @ basis
    order = (basis * powered).sum(1).argsort(dim=1, descending=True)
    index = order.unsqueeze(1).expand_as(powered)
    return torch.linalg.qr(powered.gather(2, index)).Q, order


def ordered(square, rows, columns):
    """Mean squares in another order of rows and columns."""
    if rows is not None:
        square = square.gather(1, rows.unsqueeze(2).expand_as(square))
    if columns is not None:
        square = square.gather(2, columns.unsqueeze(1).expand_as(square))
    return square


def side(largest, of_columns):
    """The shape of a factor, which a longer side does not have."""

    def shape(rows, columns):
        size = columns if of_columns else rows
        return (size, size) if size <= largest else (0, 0)

    return shape


@cache
def soap(frequency=10, largest=10000):
    """The rule whose basis changes every so many steps, with sides up to `largest`.

    Raises:
        ValueError: One is no positive integer.
    """
    for name, value in (("precondition_frequency", frequency), ("max_precondition_dim", largest)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a positive integer, not {value!r}.")

    def into_basis(
        *, turned, step, square, row_factor, column_factor, row_basis, column_basis, shampoo_beta, t
    ):
        weight = 1 - shampoo_beta
        if t == 1:
            row_basis = first_basis(
                weight * (turned @ turned.mT) if row_factor.numel() else row_factor
            )
            column_basis = first_basis(
                weight * (turned.mT @ turned) if column_factor.numel() else column_factor
            )
        elif t > 2 and (t - 2) % frequency == 0:
            row_basis, row_order = next_basis(row_factor, row_basis)
            column_basis, column_order = next_basis(column_factor, column_basis)
            square = ordered(square, row_order, column_order)
        if row_factor.numel():
            row_factor = row_factor + weight * (turned @ turned.mT - row_factor)
        if column_factor.numel():
            column_factor = column_factor + weight * (turned.mT @ turned - column_factor)
        return {
            "turned": turn(turned, row_basis, column_basis),
            "step": turn(step, row_basis, column_basis),
            "square": square,
            "row_factor": row_factor,
            "column_factor": column_factor,
            "row_basis": row_basis,
            "column_basis": column_basis,
        }

    def out_of_basis(*, direction, row_basis, column_basis):
        return {"direction": turn_back(direction, row_basis, column_basis)}

    rows, columns = side(largest, False), side(largest, True)
    return Rule(
        name="SOAP",
        passes=(
            Pass(gather, makes=("turned", "step", "square")),
            Stage(into_basis),
            Pass(divide, makes=("direction",)),
            Stage(out_of_basis),
        ),
        update=update,
        prepare=prepare,
        hypers=(*hypers(learning_rate=0.003, beta1=0.95, beta2=0.95, weight_decay=0.01), SHARE),
        slots=(
            Slot("exp_avg"),
            Slot("exp_avg_sq"),
            Slot("row_factor", shape=rows),
            Slot("column_factor", shape=columns),
            Slot("row_basis", shape=rows),
            Slot("column_basis", shape=columns),
        ),
        source="Vyas et al. 2024; https://arxiv.org/abs/2409.11321; pytorch_optimizer.SOAP",
        differs="torch.optim has none. Others merge dimensions; here matrices are of all but one.",
    )


SOAP = soap()
