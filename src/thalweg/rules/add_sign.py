"""Steps that grow where gradient and mean agree: TensorFlow's ApplyAddSign and ApplyPowerSign."""

from thalweg.formula import Hyper, Rule, Slot, exp, sign


def update_add(var, grad, m, *, learning_rate, alpha, sign_decay, beta):
    """Return the updated variable and slots; ApplyAddSign."""
    m = m * beta + grad * (1 - beta)
    return var - learning_rate * (alpha + sign_decay * (sign(grad) * sign(m))) * grad, m


def update_power(var, grad, m, *, learning_rate, logbase, sign_decay, beta):
    """Return the updated variable and slots; ApplyPowerSign; the last bit of exp may differ."""
    m = m * beta + grad * (1 - beta)
    return var - learning_rate * exp(logbase * sign_decay * (sign(grad) * sign(m))) * grad, m


RATE = Hyper("learning_rate", 0.1, "step size")
SHARED = (
    Hyper("sign_decay", 1.0, "scales how much agreement counts"),
    Hyper("beta", 0.9, "share of the mean that is kept"),
)

ADD_SIGN = Rule(
    name="AddSign",
    update=update_add,
    hypers=(RATE, Hyper("alpha", 1.0, "the step without agreement"), *SHARED),
    slots=(Slot("m", momentum=1),),
    source="Bello et al. 2017; kernel ApplyAddSign",
)

POWER_SIGN = Rule(
    name="PowerSign",
    update=update_power,
    hypers=(RATE, Hyper("logbase", 1.0, "logarithm of the base of the power"), *SHARED),
    slots=(Slot("m", momentum=1),),
    source="Bello et al. 2017; kernel ApplyPowerSign",
)
