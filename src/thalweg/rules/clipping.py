"""Formulas that transform gradients in the kernel of an update, in the order of this file."""

from thalweg.formula import maximum, minimum


def unscale(grad, *, unscaling):
    """Return the gradient times the reciprocal of the loss scale."""
    return grad * unscaling


def clip_by_value(grad, *, clipvalue):
    """Return the gradient clamped to [-clipvalue, clipvalue], as tf.clip_by_value; NaN stays."""
    return maximum(minimum(grad, clipvalue), -clipvalue)


def clip_by_norm(grad, *, clipnorm, clip_divisor):
    """Return the clipped gradient, as tf.clip_by_norm; `clip_divisor` is max(norm, clipnorm)."""
    return grad * clipnorm / clip_divisor


def clip_by_global_norm(grad, *, clip_scale):
    """Return the gradient times the common factor of tf.clip_by_global_norm."""
    return grad * clip_scale


def clip_by_common_norm(grad, *, clip_scale, clip_unit):
    """Scale a gradient by a factor that may be subnormal, given as the product of two numbers."""
    return grad * clip_scale * clip_unit


def scale_by_trust(grad, *, trust_factor):
    """Return the gradient times its variable's trust factor (LARC)."""
    return grad * trust_factor
