"""Nadam, as the Python code of Keras computes it.

`momentum_cache`, the running product of the momentum schedule, belongs to the optimizer and not to
a variable. It starts at 1, has the dtype of the first variable, and is stored once per step. The
caller passes to `prepare` the step `t`, from 1, and the cache before the step, both as scalars of a
compute dtype. `prepare` is called once for each dtype of variables. The caller stores the
"momentum_cache" that the call for the cache's dtype returns.
"""

from thalweg.formula import Hyper, Rule, Slot, moved, number_like, power, sqrt


def schedule(beta1, decay, t):
    """Return the momentum mu_t; the base 0.96 is a float32 for all dtypes in TensorFlow."""
    half, base = number_like(0.5, t), number_like(0.9599999785423279, t)
    return beta1 * (1 - half * power(base, decay * t))


def prepare(*, beta1, beta2_power, decay, t, momentum_cache):
    """Return {name: scalar of step t} for `update`, on the host, with the new "momentum_cache"."""
    mu, mu_next = schedule(beta1, decay, t), schedule(beta1, decay, t + 1)
    product = momentum_cache * mu
    return {
        "momentum_cache": product,
        "mu_next": mu_next,
        "one_minus_mu": 1 - mu,
        "one_minus_product": 1 - product,
        "one_minus_product_next": 1 - product * mu_next,
        "one_minus_power": 1 - beta2_power,
    }


def update(
    var,
    grad,
    m,
    v,
    *,
    learning_rate,
    beta1,
    beta2,
    epsilon,
    mu_next,
    one_minus_mu,
    one_minus_product,
    one_minus_product_next,
    one_minus_power,
):
    """Return the new var, m and v, as Nadam._resource_apply_dense of Keras does."""
    m = beta1 * m + (1 - beta1) * grad
    v = beta2 * v + (1 - beta2) * (grad * grad)
    mean = one_minus_mu * (grad / one_minus_product) + mu_next * (m / one_minus_product_next)
    return moved(var, -(learning_rate * mean / (sqrt(v / one_minus_power) + epsilon))), m, v


def update_untouched(var, m, v, *, beta1, beta2):
    """Return the unchanged variable and decayed averages of untouched rows."""
    return var, m * beta1, v * beta2


NADAM = Rule(
    name="Nadam",
    update=update,
    update_untouched=update_untouched,
    prepare=prepare,
    hypers=(
        Hyper("learning_rate", 0.001),
        Hyper("beta1", 0.9),
        Hyper("beta2", 0.999),
        Hyper("epsilon", 1e-7),
        Hyper("decay", 0.004, "of the momentum schedule, exact"),
    ),
    slots=(Slot("m", momentum=1), Slot("v", positive=True)),
    powers={"beta2_power": "beta2"},
    source="Dozat 2016; tf.keras.optimizers.Nadam",
    differs="torch.optim.NAdam has learning rate 0.002, epsilon 1e-8 and an exact 0.96.",
)
