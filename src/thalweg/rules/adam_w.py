"""Adam with decoupled weight decay, as tf.contrib.opt computes it: decay first.

`weight_decay` may differ by variable; 0 leaves a variable out.
"""

from dataclasses import replace

from thalweg.formula import moved, sqrt
from thalweg.rules.adam_v1 import ADAM_V1
from thalweg.rules.weight_decay import WEIGHT_DECAY_HYPER, decayed


def update(var, grad, m, v, *, alpha, beta1, beta2, epsilon, weight_decay):
    """Return the updated variable and slots; the decay and ApplyAdam."""
    var = decayed(var, weight_decay)
    m = m + (grad - m) * (1 - beta1)
    v = v + (grad * grad - v) * (1 - beta2)
    return moved(var, -((m * alpha) / (sqrt(v) + epsilon))), m, v


def update_sparse(var, grad, m, v, *, alpha, beta1, beta2, epsilon, weight_decay):
    """Return the updated variable and slots of a touched row; untouched rows move, as in Adam."""
    var = decayed(var, weight_decay)
    m = m * beta1 + grad * (1 - beta1)
    v = v * beta2 + (grad * grad) * (1 - beta2)
    return var - (alpha * m) / (sqrt(v) + epsilon), m, v


ADAM_W = replace(
    ADAM_V1,
    name="AdamW",
    update=update,
    update_sparse=update_sparse,
    hypers=(*ADAM_V1.hypers, WEIGHT_DECAY_HYPER),
    source="Loshchilov & Hutter 2019; tf.contrib.opt.AdamWOptimizer; kernel ApplyAdam",
    differs=(
        "torch.optim.AdamW multiplies the decay by the learning rate and adds epsilon after bias"
        " correction."
    ),
)
