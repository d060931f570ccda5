"""Scalars of MARS for matrices and for vectors. Vectors take AdamW's steps by default."""

from thalweg.formula import Hyper
from thalweg.rules.modern.common import hypers
from thalweg.rules.torch.common import as_read

GAMMA = Hyper("gamma", 0.025, "how much of its change is added to a gradient")
OPTIMIZE_1D = Hyper("optimize_1d", 0.0, "whether vectors take these steps, too")
FACTOR = Hyper("lr_1d_factor", 1.0, "times the rate, that of vectors")
BETA1 = Hyper("beta1_1d", 0.9, "beta1 of vectors; betas_1d[0]")
BETA2 = Hyper("beta2_1d", 0.99, "beta2 of vectors; betas_1d[1]")
HYPERS = (*hypers(learning_rate=3e-3, beta2=0.99), GAMMA, OPTIMIZE_1D, FACTOR, BETA1, BETA2)


def prepare(
    *, learning_rate, beta1, beta2, gamma, optimize_1d, lr_1d_factor, beta1_1d, beta2_1d, t,
    is_vector=0.0,
):  # fmt: skip
    """Return {name: scalar of step t}, in float64; "corrects" is 0 for AdamW's step, 1 for MARS.

    `is_vector` is 1.0 for a vector, which takes AdamW's step unless `optimize_1d` is true.
    """
    # Products instead of branches, because numbers may be tensors of a device.
    uses_adamw, t = as_read(is_vector) * (1 - as_read(optimize_1d)), as_read(t)
    beta1 = as_read(beta1) * (1 - uses_adamw) + as_read(beta1_1d) * uses_adamw
    beta2 = as_read(beta2) * (1 - uses_adamw) + as_read(beta2_1d) * uses_adamw
    return {
        "rate": as_read(learning_rate) * (1 - uses_adamw + as_read(lr_1d_factor) * uses_adamw),
        "corrects": 1 - uses_adamw,
        "gain": as_read(gamma) * (beta1 / (1 - beta1)) * (1 - uses_adamw),
        "square_share": beta2,
        "mean_weight": 1 - beta1,
        "square_weight": 1 - beta2,
        "mean_correction": 1 - beta1**t,
        "root_correction": (1 - beta2**t) ** 0.5,
        "steps_before": t - 1,
    }
