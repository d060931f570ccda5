"""AdamW with independent decay: the variable shrinks by the decay alone, whatever the rate."""

from thalweg.rules.modern.adamw import adamw


def shrunk(var, step, learning_rate, weight_decay):
    """Return the decayed variable; the decay does not depend on the learning rate."""
    return var * (1 - weight_decay)


ADAMW_INDEPENDENT = adamw(
    __name__,
    "AdamWIndependent",
    "share of the variable that it loses in a step",
    var_of=shrunk,
    source="Loshchilov & Hutter 2019; Wortsman et al. 2023, https://arxiv.org/abs/2309.14322",
    differs="torch.optim.AdamW multiplies the decay by the rate; here it is what it says. The"
    " papers multiply it by the schedule: set that of weight_decay, too.",
)
update = ADAMW_INDEPENDENT.update
