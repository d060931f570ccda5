"""Common parts of schedule-free rules: a mean of iterates in place of a schedule of rates.

z takes plain steps. x is a running mean of z, and the result. The variable is y, between z and x.
"""

# Pyright takes `torch` for the package beside this one.
# pyright: reportArgumentType=false
import torch

from thalweg.formula import Hyper, Slot
from thalweg.rules.torch.common import as_read

WARMUP = Hyper("warmup_steps", 0.0, "steps in which the rate rises to what it is")
POWER = Hyper("r", 0.0, "weight of a step in the mean is its number to this power")
RATE_POWER = Hyper("weight_lr_power", 2.0, "times the largest rate so far to this one")
# The authors keep Python's numbers. In float32 a sum of 1e7 weights takes no more of them.
SLOTS = (
    Slot("weight_sum", dtype=torch.float64, scalar=True),
    Slot("lr_max", dtype=torch.float64, scalar=True),
    Slot("z", exact=True),
)


def larger(number, bound):
    """Return the larger of two numbers of the host, or of a device."""
    return number + (bound - number) * (bound > number)


def shares(learning_rate, beta, warmup_steps, r, weight_lr_power, t, weight_sum, lr_max):
    """Return {name: scalar of step t}, in float64.

    "share" is the weight of z in the mean. "z_rate" and "y_rate" (negative) are the rates of z and
    y. The new `weight_sum` and `lr_max` are included. If `weight_sum` is None, both are left out,
    and all steps weigh equally.
    """
    t, warmup = as_read(t), as_read(warmup_steps)
    risen = t / larger(warmup, 1.0)
    rate = as_read(learning_rate) * (risen + (1 - risen) * (risen > 1))
    scalars = {"steps_before": t - 1, "z_rate": rate}
    if weight_sum is None:
        share = 1 / t
    else:
        largest = larger(as_read(lr_max), rate)
        weight = t ** as_read(r) * largest ** as_read(weight_lr_power)
        total = as_read(weight_sum) + weight
        share = weight / (total + (total == 0))
        scalars |= {"weight_sum": total, "lr_max": largest}
    return {**scalars, "share": share, "y_rate": rate * (as_read(beta) * (1 - share) - 1)}
