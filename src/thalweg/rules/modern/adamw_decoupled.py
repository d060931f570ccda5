"""AdamW with decoupled decay: the variable shrinks, by the rate times the decay."""

from thalweg.rules.modern.adamw import adamw


def shrunk(var, step, learning_rate, weight_decay):
    """Return the variable after decay of all elements, in whatever direction they move."""
    return var * (1 - learning_rate * weight_decay)


ADAMW_DECOUPLED = adamw(
    __name__,
    "AdamWDecoupled",
    "share of the variable that it loses, times the rate",
    var_of=shrunk,
    source="Loshchilov & Hutter 2019; https://arxiv.org/abs/1711.05101",
    differs="The formula of torch.optim.AdamW, for comparison with the other decays.",
)
update = ADAMW_DECOUPLED.update
