"""SparseAdam of torch: Adam over the rows that a sparse gradient names, and no others."""

from thalweg.formula import Rule, moved, sqrt
from thalweg.rules.torch.adam import TORCH_ADAM
from thalweg.rules.torch.common import MAXIMIZE, direction_of


def prepare(*, learning_rate, beta1, beta2, maximize, t):
    """Return the scalars of a step for a parameter group."""
    return {
        "direction": direction_of(maximize),
        "mean_weight": 1 - beta1,
        "square_weight": 1 - beta2,
        "step_size": -(learning_rate * (1 - beta2**t) ** 0.5 / (1 - beta1**t)),
    }


def update(
    var, grad, exp_avg, exp_avg_sq, *, direction, mean_weight, square_weight, step_size, epsilon
):
    """Return the updated variable and slots of a sparse row; epsilon has no bias correction."""
    grad = grad * direction
    exp_avg = exp_avg + (grad - exp_avg) * mean_weight
    exp_avg_sq = exp_avg_sq + (grad * grad - exp_avg_sq) * square_weight
    return moved(var, step_size * (exp_avg / (sqrt(exp_avg_sq) + epsilon))), exp_avg, exp_avg_sq


TORCH_SPARSE_ADAM = Rule(
    name="TorchSparseAdam",
    update=update,
    prepare=prepare,
    hypers=(*TORCH_ADAM.hypers[:4], MAXIMIZE),
    slots=TORCH_ADAM.slots,
    source="Kingma & Ba 2015; torch.optim.SparseAdam",
    differs="The formula of torch.optim.SparseAdam.",
)
