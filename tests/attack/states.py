"""Hostile states: one damage at a time, loaded or refused as a whole.

A state that is refused leaves every bit of the optimizer, its configuration and the variables as
they were; one that is taken is what the optimizer remembers from then on.
"""

from __future__ import annotations

import copy
import random
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

import thalweg
from attack import mutations
from attack.figures import Figures
from attack.server import figures_of
from keras_table import train
from thalweg import Variable
from thalweg.core import state
from thalweg.keras.optimizers import Nadam
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler
from thalweg.openseq2seq.optimizers.mp_wrapper import MixedPrecisionOptimizerWrapper
from thalweg.v1.train import AdamOptimizer, MomentumOptimizer
from thalweg.variable import to_tensor

TRIED = "states of keras, v1 and mixed precision with one damage each"
CASES = {False: 4000, True: 100_000}
GOOD = ("taken", "refused")
BATCH = 250
DOCUMENTED = (thalweg.errors.ThalwegError, ValueError, TypeError)


def same(one: Any, other: Any) -> bool:
    """Whether two values of a state are the same to the bit; NaN is NaN."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, Tensor):
        one, other = one.detach().contiguous(), other.detach().contiguous()
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return False
        return torch.equal(one.flatten().view(torch.uint8), other.flatten().view(torch.uint8))
    return type(one) is type(other) and (one == other or one != one != other)


def keras_trained() -> tuple[Any, list[Any]]:
    variables = [Variable(np.ones(3, "f4"), "a"), Variable(np.ones((2, 3), "f4"), "b")]
    opt = Nadam(0.5)
    train(opt, variables, 2)
    return opt, variables


def v1_trained() -> tuple[Any, list[Any]]:
    _, variables = keras_trained()
    opt = AdamOptimizer(0.5)
    for number in (1.0, 2.0):
        opt.apply_gradients([(torch.full(var.shape, number), var) for var in variables])
    return opt, variables


def wrapped(inside: Any = None) -> MixedPrecisionOptimizerWrapper:
    scaler = AutomaticLossScaler("Backoff", {"scale_max": 8.0, "step_window": 2})
    return MixedPrecisionOptimizerWrapper(inside or MomentumOptimizer(0.5, 0.5), scaler)


def wrapped_trained() -> tuple[Any, list[Any]]:
    variables = [Variable(torch.ones(3, dtype=torch.float16), "a"), Variable(torch.ones(2), "b")]
    opt = wrapped()
    for _ in range(2):
        opt.minimize(lambda: sum(var.float().sum() for var in variables), var_list=variables)
    return opt, variables


MAKE = {"keras": keras_trained, "v1": v1_trained, "openseq2seq": wrapped_trained}


def everything(opt: Any, variables: list[Any]) -> dict[str, Any]:
    own = {var.name: var.detach().clone() for var in variables}
    return {"state": opt.state_dict(), "config": getattr(opt, "get_config", dict)(), **own}


def fits(given: Any, now: Any) -> bool:
    """Whether a state that was loaded is what the optimizer remembers now."""
    if isinstance(now, dict):
        left = now.keys() - given.keys()
        numbers = all(isinstance(now[key], int | float) for key in left)
        return given.keys() <= now.keys() and numbers and all(fits(given[k], now[k]) for k in given)
    if isinstance(now, Tensor):
        plain = state.kept(to_tensor(given))
        return same(plain.to(now.dtype) if not now.dim() else plain, now)
    return (type(given) is type(now) and given == now) or float(np.float32(given)) == now


def attempt(seed: int, number: int) -> str:
    """What became of a state: "taken", "refused", or what went wrong, with the damage."""
    dice = random.Random(f"{seed}/{number}")
    face = list(MAKE)[number % len(MAKE)]
    opt, variables = MAKE[face]()
    given = copy.deepcopy(opt.state_dict())
    damage = f"{face}, {mutations.mutated(given, dice)}"
    is_fresh = face != "openseq2seq" and dice.random() < 0.5
    target = type(opt)(0.25) if is_fresh else opt
    var_list = variables if is_fresh or dice.random() < 0.5 else None
    if face == "keras" and dice.random() < 0.25:
        var_list = None  # slots wait for their variables
    before = everything(target, variables)
    try:
        target.load_state_dict(given, var_list)
    except DOCUMENTED as error:
        if same(everything(target, variables), before):
            return "refused"
        return f"half a state: {damage} ({type(error).__name__}: {error})"
    except Exception as error:
        return f"{damage} raised {type(error).__name__}: {error}"
    return "taken" if fits(given, target.state_dict()) else f"another state: {damage}"


def warm() -> None:
    """Have the kernels in memory."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for make in MAKE.values():
        make()


def attack(long: bool, seed: int) -> Figures:
    """Load states in children, so that a signal is a failure of one."""
    return figures_of(__name__, seed, CASES[long], BATCH, GOOD)
