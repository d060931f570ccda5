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
from thalweg import Variable, _graph, v1
from thalweg._core import state
from thalweg.keras.optimizers import Nadam
from thalweg.openseq2seq.optimizers import optimize_loss
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler
from thalweg.openseq2seq.optimizers.mp_wrapper import MixedPrecisionOptimizerWrapper
from thalweg.v1.train import AdamOptimizer, MomentumOptimizer
from thalweg.variable import to_tensor

SUMMARY = "states of keras, v1, mixed precision, optimize_loss and sessions with one damage each"
CASES = {False: 1000, True: 100_000}
GOOD = ("taken", "refused")
BATCH = 250
DOCUMENTED = (thalweg.errors.ThalwegError, ValueError, TypeError)


def same(first: Any, second: Any) -> bool:
    """Return whether two values of a state have the same bits; NaN equals NaN."""
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        has_same_length = type(first) is type(second) and len(first) == len(second)
        return has_same_length and all(map(same, first, second))
    if isinstance(first, np.ndarray):
        return type(first) is type(second) and first.tobytes() == second.tobytes()
    if isinstance(first, Tensor) and first.layout == torch.sparse_coo:
        return second.layout == first.layout and all(
            same(getattr(first, part)(), getattr(second, part)())
            for part in ("_indices", "_values")
        )
    if isinstance(first, Tensor):
        if not isinstance(second, Tensor):
            return False
        first, second = (tensor.detach().resolve_neg().contiguous() for tensor in (first, second))
        if (first.dtype, first.shape) != (second.dtype, second.shape):
            return False
        return torch.equal(first.flatten().view(torch.uint8), second.flatten().view(torch.uint8))
    return type(first) is type(second) and (first == second or first != first != second)


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


def wrapped(optimizer: Any = None) -> MixedPrecisionOptimizerWrapper:
    scaler = AutomaticLossScaler("Backoff", {"scale_max": 8.0, "step_window": 2})
    return MixedPrecisionOptimizerWrapper(optimizer or MomentumOptimizer(0.5, 0.5), scaler)


def wrapped_trained() -> tuple[Any, list[Any]]:
    variables = [Variable(torch.ones(3, dtype=torch.float16), "a"), Variable(torch.ones(2), "b")]
    opt = wrapped()
    for _ in range(2):
        opt.minimize(lambda: sum(var.float().sum() for var in variables), var_list=variables)
    return opt, variables


def training_trained() -> tuple[Any, list[Any]]:
    variables = [Variable(torch.ones(3, dtype=torch.float16), "a"), Variable(torch.ones(2), "b")]
    skips = iter([False, True])
    step = optimize_loss(
        lambda: sum(var.float().sum() for var in variables), "Adam", {}, lambda _: 0.5,
        var_list=variables, dtype="mixed", loss_scaling="Backoff", iter_size=2,
        skip_update_ph=lambda: next(skips),
    )  # fmt: skip
    for _ in range(2):
        step()
    return step, variables


class InSession:
    """The weights of a Keras optimizer in a session, or all of its variables, as a state.

    Args:
        by_weights: Whether they are set by `set_weights`, or one after the other by `load`.
    """

    def __init__(self, by_weights: bool) -> None:
        self.by_weights = by_weights
        with _graph.Graph().as_default() as graph:
            variables = [v1.Variable(np.ones(3, "f4")), v1.Variable(np.ones((2, 3), "f4"))]
            self.opt = Nadam(0.5)
            pairs = [(np.full(var.shape, 2.0, "f4"), var) for var in variables]
            op = self.opt.apply_gradients(pairs)
            self.session = _graph.Session()
            self.session.run(_graph.global_variables_initializer())
        self.session.run(op)
        collected = graph.get_collection(_graph.GraphKeys.GLOBAL_VARIABLES)
        self.variables = {var.name: var for var in (self.opt.weights if by_weights else collected)}

    def state_dict(self) -> dict[str, Any]:
        return {k: self.session.leaf(var).detach().clone() for k, var in self.variables.items()}

    def load_state_dict(self, values: Any, _: Any = None) -> None:
        if list(values) != list(self.variables):
            raise ValueError("These are other variables.")
        with self.session.as_default():
            if self.by_weights:
                self.opt.set_weights(list(values.values()))
                return
            state = self.state_dict()
            names = [name for name in values if not is_same(values[name], state[name])]
            for name in names[:1]:  # each load is one of its own
                self.variables[name].load(values[name])
            values.update({name: state[name] for name in names[1:]})


def is_same(actual: Any, expected: Tensor) -> bool:
    """Return whether a value is a plain tensor with the same bits."""
    return type(actual) is Tensor and state.flaw(actual) is None and same(actual, expected)


def weights_trained() -> tuple[Any, list[Any]]:
    return InSession(by_weights=True), []


def session_trained() -> tuple[Any, list[Any]]:
    return InSession(by_weights=False), []


MAKE = {
    "keras": keras_trained,
    "v1": v1_trained,
    "openseq2seq": wrapped_trained,
    "optimize_loss": training_trained,
    "set_weights": weights_trained,
    "session": session_trained,
}
LOADED_ONCE = ("keras", "v1")  # by a new optimizer, too
FACES = tuple(MAKE)
CONVERTING = ("set_weights", "session")


def everything(opt: Any, variables: list[Any]) -> dict[str, Any]:
    values = {var.name: var.detach().clone() for var in variables}
    return {"state": opt.state_dict(), "config": getattr(opt, "get_config", dict)(), **values}


def fits(read: Any, actual: Any, face: str) -> bool:
    """Return whether a loaded state equals the present one; sessions convert numbers."""
    if face in CONVERTING:
        return read.keys() == actual.keys() and all(_converts(read[k], actual[k]) for k in actual)
    return _fits(read, actual)


def _converts(read: Any, actual: Tensor) -> bool:
    tensor = state.kept(read if isinstance(read, Tensor) else torch.as_tensor(np.asarray(read)))
    return tensor.shape == actual.shape and same(tensor.to(actual.dtype), actual)


def _fits(read: Any, actual: Any) -> bool:
    if isinstance(actual, dict):
        # "w" is "w:0", where there is no other.
        read = {key if key in actual else f"{key}:0": value for key, value in read.items()}
        missing = actual.keys() - read.keys()
        numbers = all(isinstance(actual[key], int | float) for key in missing)
        return (
            read.keys() <= actual.keys()
            and numbers
            and all(_fits(read[k], actual[k]) for k in read)
        )
    if isinstance(actual, Tensor):
        tensor = state.kept(to_tensor(read))
        return same(tensor.to(actual.dtype) if not actual.dim() else tensor, actual)
    return (type(read) is type(actual) and read == actual) or float(np.float32(read)) == actual


def attempt(seed: int, number: int) -> str:
    """Load one damaged state; return "taken", "refused", or the failure with the damage."""
    dice = random.Random(f"{seed}/{number}")
    face = FACES[number % len(FACES)]
    opt, variables = MAKE[face]()
    state_dict = copy.deepcopy(opt.state_dict())
    damage = f"{face}, {mutations.mutated(state_dict, dice)}"
    is_fresh = face in LOADED_ONCE and dice.random() < 0.5
    target = type(opt)(0.25) if is_fresh else opt
    var_list = variables if is_fresh or dice.random() < 0.5 else None
    if face == "keras" and dice.random() < 0.25:
        var_list = None  # slots wait for their variables
    state_before = everything(target, variables)
    try:
        if face == "optimize_loss":
            target.load_state_dict(state_dict)
        else:
            target.load_state_dict(state_dict, var_list)
    except DOCUMENTED as error:
        if same(everything(target, variables), state_before):
            return "refused"
        return f"half a state: {damage} ({type(error).__name__}: {error})"
    except Exception as error:
        return f"{damage} raised {type(error).__name__}: {error}"
    return "taken" if fits(state_dict, target.state_dict(), face) else f"another state: {damage}"


def warm() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for number in range(120):
        attempt(-1, number)


def attack(long: bool, seed: int) -> Figures:
    return figures_of(__name__, seed, CASES[long], BATCH, GOOD)
