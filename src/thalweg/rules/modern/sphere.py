"""Steps on a sphere (Hyperball, 2026); each variable keeps the initial norm."""

from thalweg.formula import Slot, narrow, sqrt, where, wide

RADIUS = Slot("radius", initial=-1.0, scalar=True)  # of the sphere; not measured yet


def per_variable(*, variable, step, product, radius, learning_rate):
    """Return scalars of the update `variable * back - along * step`, which keeps the norm.

    The dict has the keys "along", "back" and "radius" (the norm to keep).

    Args:
        variable: The sum of squares of the variable's elements.
        step: The sum of squares of the step's elements.
        product: The sum of the products of the variable's and the step's elements.
        radius: The norm to keep. A negative number selects the variable's present norm.
        learning_rate: The length of the step divided by the radius.
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
