"""Scalars of Prodigy: the distance to the solution, estimated from sums over all variables."""

from thalweg.formula import Hyper, Slot, minimum, where
from thalweg.rules.modern.common import check_one_rate, hypers
from thalweg.rules.torch.common import as_read

# All begin at 0, which stands for d0 where that is a distance.
NUMBERS = tuple(Slot(name, per="optimizer") for name in ("d", "d_max", "d_numerator", "k"))
HYPERS = (
    *hypers(learning_rate=1.0),
    Hyper("beta3", 0.999**0.5, "share of the sums that is kept; None is the root of betas[1]"),
    Hyper("decouple", 1.0, "whether decay is AdamW's"),
    Hyper("use_bias_correction", 0.0, "whether means are corrected as Adam's"),
    Hyper("safeguard_warmup", 0.0, "whether the rate is left out of the denominator"),
    Hyper("d0", 1e-6, "the first estimate of the distance"),
    Hyper("d_coef", 1.0, "times the estimate"),
    Hyper("growth_rate", float("inf"), "by what the estimate grows at most in a step"),
)


def prepare(
    *, learning_rate, beta1, beta2, use_bias_correction, safeguard_warmup, d0, d, k
):  # fmt: skip
    """Return {name: scalar of this step}, computed in float64."""
    rate, beta1, beta2 = as_read(learning_rate), as_read(beta1), as_read(beta2)
    d0, d, next_k = as_read(d0), as_read(d), as_read(k) + 1
    # No branch, because `d` may be a tensor of a device.
    d = d + d0 * (d == 0)
    is_corrected, is_safe = as_read(use_bias_correction), as_read(safeguard_warmup)
    correction = (1 - beta2**next_k) ** 0.5 / (1 - beta1**next_k)
    rate = d * rate * (correction * is_corrected + (1 - is_corrected))
    return {
        "rate": rate,
        "weight": d / d0 * rate,
        "sum_weight": d / d0 * (d * is_safe + rate * (1 - is_safe)),
        "mean_weight": d * (1 - beta1),
        "square_weight": d * d * (1 - beta2),
    }


def per_optimizer(
    *, numerator, denominator, d, d_max, d_numerator, k, learning_rate, d0, d_coef, growth_rate,
    beta3,
):  # fmt: skip
    """Return {"d", "d_max", "d_numerator", "k": new values; "d_after": new d; "moves": 1 or 0}.

    `numerator` and `denominator` are sums over all variables. Without gradients, or if all rates
    are 0, the denominator is 0. Then `moves` is 0, and the four numbers do not change, but a d or
    d_max of 0 becomes d0.
    """
    check_one_rate("Prodigy", learning_rate)
    moves = denominator != 0
    d, d_max = where(d == 0, d0, d), where(d_max == 0, d0, d_max)
    sums = d_numerator * beta3 + numerator
    estimate = d_coef * sums / where(moves, denominator, 1.0)
    highest = where(estimate > d_max, estimate, d_max)
    grown_distance = minimum(highest, where((d == d0) & (estimate > d), estimate, d) * growth_rate)
    next_distance = where(moves, grown_distance, d)
    return {
        "d": next_distance,
        "d_max": where(moves, highest, d_max),
        "d_numerator": where(moves, sums, d_numerator),
        "k": k + where(moves, 1.0, 0.0),
        "d_after": next_distance,
        "moves": where(moves, 1.0, 0.0),
    }
