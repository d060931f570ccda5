"""AMSGrad: Adam with the largest mean square so far, TensorFlow's ApplyAdamWithAmsgrad kernel."""

from dataclasses import replace

from thalweg.formula import Slot, maximum, moved, sqrt, where
from thalweg.rules.adam import ADAM


def update(var, grad, m, v, vhat, *, alpha, beta1, beta2, epsilon):
    """Return the updated variable and slots; ApplyAdamWithAmsgrad; the maximum ignores NaN."""
    m = m + (grad - m) * (1 - beta1)
    v = v + (grad * grad - v) * (1 - beta2)
    vhat = where(v > vhat, v, vhat)
    return moved(var, -((m * alpha) / (sqrt(vhat) + epsilon))), m, v, vhat


def update_sparse(var, grad, m, v, vhat, *, alpha_sparse, beta1, beta2, epsilon):
    """Return the updated variable and slots of a touched row; Adam._resource_apply_sparse."""
    m = m * beta1 + grad * (1 - beta1)
    v = v * beta2 + (grad * grad) * (1 - beta2)
    vhat = maximum(vhat, v)
    return var - (alpha_sparse * m) / (sqrt(vhat) + epsilon), m, v, vhat


def update_untouched(var, m, v, vhat, *, alpha_sparse, beta1, beta2, epsilon):
    """Return the updated variable and slots of untouched rows, which decay and move too."""
    m = m * beta1
    v = v * beta2
    vhat = maximum(vhat, v)
    return var - (alpha_sparse * m) / (sqrt(vhat) + epsilon), m, v, vhat


AMSGRAD = replace(
    ADAM,
    name="AMSGrad",
    update=update,
    update_sparse=update_sparse,
    update_untouched=update_untouched,
    slots=(*ADAM.slots, Slot("vhat", positive=True)),
    source="Reddi et al. 2018; tf.keras.optimizers.Adam(amsgrad=True); kernel ApplyAdamWithAmsgrad",
    differs="As Adam: torch.optim.Adam(amsgrad=True) adds epsilon after bias correction.",
)
