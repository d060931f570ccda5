"""What becomes of gradients as formulas, applied inside the update's pass: clipping, scaling."""

from thalweg.formula import maximum, minimum


def clip_by_value(grad, *, clipvalue):
    """tf.clip_by_value(grad, -clipvalue, clipvalue); NaN stays NaN."""
    return maximum(minimum(grad, clipvalue), -clipvalue)


def clip_by_norm(grad, *, clipnorm, clip_divisor):
    """tf.clip_by_norm; `clip_divisor` is the larger of the gradient's own norm and `clipnorm`."""
    return grad * clipnorm / clip_divisor


def clip_by_global_norm(grad, *, clip_scale):
    """tf.clip_by_global_norm; `clip_scale` is NaN where the global norm is not finite."""
    return grad * clip_scale


def processed(grad, *, unscaling, clip_scale, trust_factor):
    """OpenSeq2Seq's order: the loss scale goes, then clipping, then LARC; 1 leaves a part out."""
    return grad * unscaling * clip_scale * trust_factor
