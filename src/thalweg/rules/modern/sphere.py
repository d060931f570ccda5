"""Steps on a sphere (Hyperball, 2026): variables keep the norm that they begin with."""

from thalweg.formula import Slot, narrow, sqrt, where, wide

RADIUS = Slot("radius", initial=-1.0, scalar=True)  # of the sphere; not measured yet


def per_variable(*, variable, step, product, radius, learning_rate):
    """Return the factors of step and variable that keep the norm, and the radius.

    Args:
        variable, step, product: Sums of the variable's and of the step's squares, and of both's
            products.
        radius: The variable's norm before its first step.
        learning_rate: How long the step is, as a share of the radius.
    """
    radius = wide(narrow(where(radius < 0, sqrt(variable), radius), learning_rate))
    along_factor = learning_rate * radius / sqrt(where(step > 0, step, 1.0))
    end_squares = variable - 2 * along_factor * product + along_factor * along_factor * step
    moves = (radius > 0) & (step > 0) & (end_squares > 0)
    back_factor = where(moves, radius / sqrt(where(moves, end_squares, 1.0)), 1.0)
    scalars = {
        "along": where(moves, along_factor * back_factor, learning_rate),
        "back": back_factor,
        "radius": radius,
    }
    return {name: narrow(scalar, learning_rate) for name, scalar in scalars.items()}
