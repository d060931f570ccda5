"""AdamW with cautious decay: elements shrink where the step takes them towards 0 anyway."""

from thalweg.formula import where
from thalweg.rules.modern.adamw import adamw


def shrunk(var, step, learning_rate, weight_decay):
    """Return the variable, decayed where variable and subtracted step have equal signs."""
    return where(step * var > 0, var * (1 - learning_rate * weight_decay), var)


ADAMW_CAUTIOUS_DECAY = adamw(
    __name__,
    "AdamWCautiousDecay",
    "share of the variable that it loses, times the rate, where the step makes it smaller",
    var_of=shrunk,
    source="Chen et al. 2025; https://arxiv.org/abs/2510.12402",
    differs="torch.optim.AdamW decays all elements.",
)
update = ADAMW_CAUTIOUS_DECAY.update
