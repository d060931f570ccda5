"""Adam with Nesterov's look-ahead and no momentum schedule: the NadamOptimizer of tf.contrib.opt.

Keras' Nadam (`nadam.py`) has a schedule, and corrects the bias of gradient and mean separately.
"""

from dataclasses import replace

from thalweg.formula import moved, sqrt
from thalweg.rules.adam_v1 import ADAM_V1
from thalweg.rules.nadam import update_untouched


def update(var, grad, m, v, *, alpha, beta1, beta2, epsilon):
    """Return the updated variable and slots; ApplyAdam with use_nesterov."""
    m = m + (grad - m) * (1 - beta1)
    v = v + (grad * grad - v) * (1 - beta2)
    ahead = grad * (1 - beta1) + beta1 * m
    return moved(var, -((ahead * alpha) / (sqrt(v) + epsilon))), m, v


def update_sparse(var, grad, m, v, *, alpha, beta1, beta2, epsilon):
    """Return the updated variable and slots of a touched row."""
    new = grad * (1 - beta1)
    m = m * beta1 + new
    v = v * beta2 + (grad * grad) * (1 - beta2)
    return var - (alpha * (new + beta1 * m)) / (sqrt(v) + epsilon), m, v


NESTEROV_ADAM = replace(
    ADAM_V1,
    name="NesterovAdam",
    update=update,
    update_sparse=update_sparse,
    update_untouched=update_untouched,
    source="Dozat 2015; tf.contrib.opt.NadamOptimizer of TensorFlow 1.15; kernel ApplyAdam",
    differs="torch.optim.NAdam has a momentum schedule, as Keras' Nadam has.",
)
