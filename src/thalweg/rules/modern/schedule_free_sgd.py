"""Schedule-free SGD (Defazio et al. 2024)."""

from thalweg.formula import Hyper, Rule, where
from thalweg.rules.modern.common import hypers, lerp
from thalweg.rules.modern.schedule_free import POWER, RATE_POWER, SLOTS, WARMUP, shares
from thalweg.rules.torch.common import decayed


def prepare(
    *, learning_rate, momentum, warmup_steps, r, weight_lr_power, t, weight_sum=None, lr_max=None
):
    """Return the scalars of a step."""
    return shares(learning_rate, momentum, warmup_steps, r, weight_lr_power, t, weight_sum, lr_max)


def update(var, grad, z, *, weight_decay, steps_before, share, y_rate, z_rate):
    """Return the new var and z. The first step begins with z = var."""
    z = where(steps_before == 0, var, z)
    step = decayed(grad, var, weight_decay)
    return lerp(var, z, share) + y_rate * step, z - z_rate * step


RATE, *_, DECAY = hypers(learning_rate=1.0)
MOMENTUM = Hyper("momentum", 0.9, "share of the mean in the variable")
SCHEDULE_FREE_SGD = Rule(
    name="ScheduleFreeSGD",
    update=update,
    prepare=prepare,
    hypers=(RATE, MOMENTUM, DECAY, WARMUP, POWER, RATE_POWER),
    slots=SLOTS,
    whole=True,
    source="Defazio et al. 2024; https://arxiv.org/abs/2405.15682; schedulefree",
    differs="torch.optim.SGD needs a schedule. Use what is in `optimizer.swapped()`, or the mean"
    " x = y + (1 - 1 / momentum) (z - y) of variable y and slot z.",
)
