"""RMSprop with momentum: TensorFlow's Apply(Centered)RMSProp kernels, epsilon inside the root."""

from dataclasses import replace

from thalweg.formula import Hyper, Rule, Slot, moved, sqrt
from thalweg.rules.rmsprop import RMSPROP


def update(var, grad, rms, mom, *, learning_rate, rho, momentum, epsilon):
    """Return the updated variable and slots; ApplyRMSProp."""
    rms = rms + (grad * grad - rms) * (1 - rho)
    mom = mom * momentum + (grad * learning_rate) / sqrt(rms + epsilon)
    return moved(var, -mom), rms, mom


def update_sparse(var, grad, rms, mom, *, learning_rate, rho, momentum, epsilon):
    """Return variable and slots of a touched row; SparseApplyRMSProp, rsqrt as 1 / sqrt."""
    rms = rms * rho + grad * grad * (1 - rho)
    mom = mom * momentum + 1 / sqrt(rms + epsilon) * learning_rate * grad
    return var - mom, rms, mom


def update_centered(var, grad, rms, mom, mg, *, learning_rate, rho, momentum, epsilon):
    """Return the updated variable and slots; ApplyCenteredRMSProp."""
    rms = rms + (grad * grad - rms) * (1 - rho)
    mg = mg + (grad - mg) * (1 - rho)
    mom = mom * momentum + (grad * learning_rate) / sqrt((rms - mg * mg) + epsilon)
    return moved(var, -mom), rms, mom, mg


def update_centered_sparse(var, grad, rms, mom, mg, *, learning_rate, rho, momentum, epsilon):
    """Return the updated variable and slots of a touched row; SparseApplyCenteredRMSProp."""
    rms = rms * rho + grad * grad * (1 - rho)
    mg = mg * rho + grad * (1 - rho)
    mom = mom * momentum + 1 / sqrt((rms + epsilon) - mg * mg) * learning_rate * grad
    return var - mom, rms, mom, mg


HYPERS = (
    *RMSPROP.hypers[:-1],
    Hyper("momentum", 0.0, "share of the velocity that is kept"),
    Hyper("epsilon", 1e-7, "added inside the root; exact in the variable's dtype"),
)

MOMENTUM_RMSPROP = Rule(
    name="MomentumRMSprop",
    update=update,
    update_sparse=update_sparse,
    hypers=HYPERS,
    slots=(Slot("rms", positive=True), Slot("momentum")),
    differs="torch.optim.RMSprop adds epsilon outside the root and keeps lr out of the momentum.",
    source="tf.keras.optimizers.RMSprop(momentum=...); kernel ApplyRMSProp",
)

CENTERED_MOMENTUM_RMSPROP = replace(
    MOMENTUM_RMSPROP,
    name="CenteredMomentumRMSprop",
    update=update_centered,
    update_sparse=update_centered_sparse,
    slots=(*MOMENTUM_RMSPROP.slots, Slot("mg", momentum=1)),
    source="tf.keras.optimizers.RMSprop(momentum=..., centered=True); kernel ApplyCenteredRMSProp",
)
