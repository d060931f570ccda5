"""Wrapper that slows the growth of norms (modded-nanogpt and Emerging-Optimizers, 2026)."""

from functools import partial

from thalweg.formula import Rule, moved, sqrt, where, wide
from thalweg.rules.wrappers.base import check_share, keep_by_rule, wrapped

DEFAULT_KEPT = 0.5  # share of the norm's growth that remains


def base_squares(var, grad, base, step):
    """Return the square of an element after decay beside the step, in float64.

    Float32 might not hold it.
    """
    return wide(base) * wide(base)


def end_squares(var, grad, base, step):
    """Return the square of an element after the step, in float64."""
    end = wide(base) + wide(step)
    return end * end


def braked_step(var, grad, base, step, *, brake_scale):
    """Return the updated variable."""
    return moved(base * brake_scale, step * brake_scale)


def brake(*, brake_base, brake_end, radial_brake_kept):
    """Return {"brake_scale": factor of the moved variable, 1 if the norm does not grow}.

    Args:
        brake_base: Sum of squares before the step, after decoupled decay.
        brake_end: Sum of squares after the step.
        radial_brake_kept: The fraction of the norm's growth to keep.
    """
    norm_before, norm_after = sqrt(brake_base), sqrt(brake_end)
    target_norm = norm_before + radial_brake_kept * (norm_after - norm_before)
    grows = norm_after > norm_before
    return {"brake_scale": where(grows, target_norm / where(grows, norm_after, 1.0), 1.0)}


@keep_by_rule
def radial_brake(rule: Rule, kept: float = DEFAULT_KEPT) -> Rule:
    """Return a copy of the rule that keeps only the fraction `kept` of a norm's growth.

    The growth is measured from the norm after decoupled decay. If a variable's norm grows in a
    step, the moved variable is scaled down. Steps without growth are unchanged.

    Raises:
        ValueError: `kept` is not from 0 to 1.
    """
    check_share("kept", kept, highest=1.0)
    return wrapped(
        rule,
        "with a radial brake",
        braked_step,
        "https://github.com/KellerJordan/modded-nanogpt/pull/294; RadialBrakeHook of"
        " https://github.com/NVIDIA-NeMo/Emerging-Optimizers",
        measures={"brake_base": base_squares, "brake_end": end_squares},
        per_variable=partial(brake, radial_brake_kept=float(kept)),
    )
