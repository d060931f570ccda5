"""NovoGrad: momentum of gradients that are divided by a moving norm of their variable.

`share` is the factor of gradient averaging, 1 without averaging. `fresh` is 1 - beta2. A caller may
pass both, to compute them in another precision. A sparse gradient is treated as a dense gradient
that is 0 in all other rows.
"""

from dataclasses import replace

from thalweg.formula import Hyper, Rule, Slot, gradient_squares, narrow, sqrt, where


def prepare(*, beta1, beta2, fresh=None, share=None):
    """Return the scalars of a step, on the host."""
    unit = type(beta1)(1)
    return {
        "fresh": unit - beta2 if fresh is None else fresh,
        "share": unit if share is None else share,
    }


def per_variable(*, gradient_squares, grads_ema, beta2, fresh, epsilon):
    """Return the average of a variable's squared norms, from the first on, and the scale."""
    squares = narrow(gradient_squares, like=epsilon)
    average = where(grads_ema == 0, squares, grads_ema * beta2 + squares * fresh)
    return {"grads_ema": average, "grad_scale": 1 / sqrt(average + epsilon)}


def per_variable_as_shipped(*, gradient_squares, epsilon):
    """Return a variable's scale by this step's norm, as OpenSeq2Seq does not store the average."""
    return {"grad_scale": 1 / sqrt(narrow(gradient_squares, like=epsilon) + epsilon)}


def update(var, grad, velocity, *, learning_rate, beta1, weight_decay, grad_scale, share):
    """Return the updated variable and slots; ApplyMomentum on the normalised gradient."""
    normalised = grad * grad_scale
    step = where(weight_decay > 0, normalised + weight_decay * var, normalised)
    velocity = velocity * beta1 + step * share
    return var - velocity * learning_rate, velocity


NOVOGRAD = Rule(
    name="NovoGrad",
    update=update,
    prepare=prepare,
    measures={"gradient_squares": gradient_squares},
    per_variable=per_variable,
    whole=True,
    hypers=(
        Hyper("learning_rate", 1.0, "step size"),
        Hyper("beta1", 0.95, "share of the velocity that is kept"),
        Hyper("beta2", 0.98, "share of the average of squared norms that is kept"),
        Hyper("epsilon", 1e-8, "added to that average, inside the root"),
        Hyper("weight_decay", 0.0, "decay, as a part of the normalised gradient"),
    ),
    slots=(Slot("momentum", momentum=1), Slot("grads_ema", scalar=True)),
    source="Ginsburg et al. 2019; OpenSeq2Seq's optimizers.novograd; kernel ApplyMomentum",
    differs="Not in torch.optim.",
)

NOVOGRAD_AS_SHIPPED = replace(NOVOGRAD, per_variable=per_variable_as_shipped)
