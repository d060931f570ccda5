"""Gradient transforms as formulas, applied inside the update's pass, in this order."""

from thalweg.formula import maximum, minimum


def unscale(grad, *, unscaling):
    """The reciprocal of a loss scale goes first."""
    return grad * unscaling


def clip_by_value(grad, *, clipvalue):
    """tf.clip_by_value(grad, -clipvalue, clipvalue); NaN stays NaN."""
    return maximum(minimum(grad, clipvalue), -clipvalue)


def clip_by_norm(grad, *, clipnorm, clip_divisor):
    """tf.clip_by_norm; `clip_divisor` is the larger of the gradient's own norm and `clipnorm`."""
    return grad * clipnorm / clip_divisor


def clip_by_global_norm(grad, *, clip_scale):
    """tf.clip_by_global_norm, with the factor that all gradients have."""
    return grad * clip_scale


def clip_by_common_norm(grad, *, clip_scale, clip_unit):
    """Scale a gradient by a factor that may be subnormal, given as the product of two numbers."""
    return grad * clip_scale * clip_unit


def scale_by_trust(grad, *, trust_factor):
    """LARC: each variable has a factor of its own."""
    return grad * trust_factor
