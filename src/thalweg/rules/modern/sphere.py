"""Steps on a sphere (Hyperball, 2026): variables keep the norm that they begin with."""

from thalweg.formula import Slot, narrow, sqrt, where, wide

RADIUS = Slot("radius", initial=-1.0, scalar=True)  # of the sphere; not measured yet


def per_variable(*, variable, step, product, radius, learning_rate):
    """The norm that a step leads to follows from three sums; without a radius it is as it comes.

    Args:
        variable, step, product: Sums of the variable's and of the step's squares, and of both's
            products.
        radius: The variable's norm before its first step.
        learning_rate: How long the step is, as a share of the radius.
    """
    radius = wide(narrow(where(radius < 0, sqrt(variable), radius), learning_rate))
    along = learning_rate * radius / sqrt(where(step > 0, step, 1.0))
    after = variable - 2 * along * product + along * along * step
    moves = (radius > 0) & (step > 0) & (after > 0)
    back = where(moves, radius / sqrt(where(moves, after, 1.0)), 1.0)
    found = {"along": where(moves, along * back, learning_rate), "back": back, "radius": radius}
    return {name: narrow(each, learning_rate) for name, each in found.items()}
