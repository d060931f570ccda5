"""Adam with coupled decay: a share of the variable is added to the gradient, as by a penalty."""

from thalweg.formula import where
from thalweg.rules.modern.adamw import adamw


def grad_of(grad, var, learning_rate, weight_decay):
    """Return the gradient plus the decay; exactly the gradient where the decay is 0."""
    return where(weight_decay != 0, grad + weight_decay * var, grad)


ADAMW_COUPLED = adamw(
    __name__,
    "AdamWCoupled",
    "share of the variable that is added to its gradient",
    grad_of=grad_of,
    source="Kingma & Ba 2015; https://arxiv.org/abs/1412.6980",
    differs="The formula of torch.optim.Adam, for comparison with the other decays.",
)
update = ADAMW_COUPLED.update
