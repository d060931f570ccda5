"""Steps on a sphere (Hyperball, 2026): variables keep their norms, and a rate is an angle."""

from thalweg.formula import narrow, sqrt, where


def per_variable(*, variable, step, product, learning_rate):
    """The norm that the step leads to follows from three sums; a zero takes the step as it is.

    Args:
        variable, step, product: Sums of the variable's and of the step's squares, and of both's
            products.
        learning_rate: How long the step is, as a share of the variable's norm.
    """
    along = learning_rate * sqrt(variable) / sqrt(where(step > 0, step, 1.0))
    after = variable - 2 * along * product + along * along * step
    moves = (variable > 0) & (step > 0) & (after > 0)
    back = sqrt(variable) / sqrt(where(moves, after, 1.0))
    along, back = where(moves, along * back, learning_rate), where(moves, back, 1.0)
    return {"along": narrow(along, learning_rate), "back": narrow(back, learning_rate)}
