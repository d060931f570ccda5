"""Schedule-free AdamW (Defazio et al. 2024)."""

from thalweg.formula import Rule, Slot, sqrt, where
from thalweg.rules.modern.common import hypers, lerp, mean_square
from thalweg.rules.modern.schedule_free import POWER, RATE_POWER, SLOTS, WARMUP, shares
from thalweg.rules.torch.common import as_read, decayed


def prepare(
    *, learning_rate, beta1, beta2, warmup_steps, r, weight_lr_power, t, weight_sum=None,
    lr_max=None,
):  # fmt: skip
    """Return the scalars of a step."""
    scalars = shares(learning_rate, beta1, warmup_steps, r, weight_lr_power, t, weight_sum, lr_max)
    scalars["square_weight"] = 1 - as_read(beta2)
    return {**scalars, "square_correction": 1 - as_read(beta2) ** as_read(t)}


def update(
    var, grad, z, exp_avg_sq, *, beta2, epsilon, weight_decay, square_weight, square_correction,
    steps_before, share, y_rate, z_rate,
):  # fmt: skip
    """Return the new var, z and exp_avg_sq. The first step begins with z = var."""
    z = where(steps_before == 0, var, z)
    exp_avg_sq = mean_square(exp_avg_sq, grad, beta2, square_weight)
    step = grad / (sqrt(exp_avg_sq / square_correction) + epsilon)
    step = decayed(step, var, weight_decay)
    return lerp(var, z, share) + y_rate * step, z - z_rate * step, exp_avg_sq


SCHEDULE_FREE_ADAMW = Rule(
    name="ScheduleFreeAdamW",
    update=update,
    prepare=prepare,
    hypers=(*hypers(learning_rate=0.0025), WARMUP, POWER, RATE_POWER),
    slots=(*SLOTS, Slot("exp_avg_sq", positive=True)),
    whole=True,
    source="Defazio et al. 2024; https://arxiv.org/abs/2405.15682; schedulefree",
    differs="torch.optim.AdamW needs a schedule. Use what is in `optimizer.swapped()`, or the mean"
    " x = y + (1 - 1 / beta1) (z - y) of variable y and slot z.",
)
