"""Trainings of `thalweg.optim` beside torch's own classes: what users do between two steps.

Both are given the same parameters, gradients and calls. What torch refuses is refused here,
too, with a documented error or torch's own, and changes nothing; else parameters, state, groups and
scale are torch's.
"""

from __future__ import annotations

import copy
import inspect
import math
import pickle
import random
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import thalweg
from attack.figures import Figures
from attack.server import figures_of
from attack.states import same
from attack.torch_trainings import OURS, SUMMED
from attack.trainings import numbers
from thalweg import optim

SUMMARY = "trainings of optim beside torch's class, with 12 things that users do between steps"
CASES = {False: 250, True: 20_000}
CHANGES = 12
GOOD = ("same", "refused")
BATCH = 50
DOCUMENTED = (thalweg.errors.ThalwegError, ValueError, TypeError, RuntimeError)
CLOSE = {torch.float32: (1e-4, 1e-6), torch.float64: (1e-9, 1e-12)}
Move = Callable[["Side", random.Random], None]
SUMS = ("gradient_sum", "folded")
EXTRA = (*SUMS, "ema")
HOSTILE: list[Any] = [
    math.nan, math.inf, -1.0, 0.0, "0.1", None, [0.1], (0.5,), 10**400, 1 + 1j,
    torch.tensor(0.1), torch.ones(2), object,
]  # fmt: skip
HYPERS = ("lr", "betas", "eps", "weight_decay", "momentum", "rho", "alpha", "etas", "lambd",
          "beta2_decay", "d")  # fmt: skip
OPTIONS: list[dict[str, Any]] = [
    {}, {}, {"clip_grad_norm": 0.5}, {"clip_grad_value": 0.25}, {"accumulate": 2},
    {"state_device": "cpu"}, {"ema_decay": 0.9}, {"fused_unscale": True},
    {"diagnostics": 2},
]  # fmt: skip


class Side:
    """An optimizer of one of the two, its parameters and a scaler."""

    def __init__(self, is_thalweg: bool, title: str) -> None:
        dice = random.Random(title)
        self.is_thalweg = is_thalweg
        self.name, base = dice.choice(OURS)
        flag = dice.choice(["maximize", "differentiable", "foreach", "", "", ""])
        if flag == "foreach" and self.name == "ASGD":
            flag = ""  # torch makes `eta` in float32 there, and else in Python's numbers
        options = {**base, flag: True} if flag and self.name != "SparseAdam" else dict(base)
        self.options = dice.choice(OPTIONS)
        if options.get("differentiable") or self.name == "SparseAdam":
            self.options = {}  # of which torch can do none
        self.is_hostile = False
        self.passes, self.sums = 0, dict[int, Tensor]()
        leaves = [self._leaf(dice) for _ in range(dice.choice([1, 2, 4]))]
        # Torch refuses leaves where a step is differentiated.
        self.params = [x.clone() if options.get("differentiable") else x for x in leaves]
        self.has_rows = self.name == "SparseAdam" or (
            not self.options and self.name in ("SGD", "Adagrad") and dice.random() < 0.4
        )
        self.scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=2)
        split = dice.choice([1, len(leaves)])
        groups = [{"params": part} for part in (self.params[:split], self.params[split:]) if part]
        cls = getattr(optim if is_thalweg else torch.optim, self.name)
        parameters = inspect.signature(cls).parameters
        if dice.random() < 0.2:
            self.is_hostile = True
            home: dict[str, Any] = dice.choice([options, *groups])
            names, values = [name for name in HYPERS if name in parameters], HOSTILE
            if self.name == "Adafactor":
                names.remove("eps")  # of which the constructor refuses what torch's step does
                values = [bad for bad in values if not isinstance(bad, Tensor)]  # in float32
            home[dice.choice(names)] = dice.choice(values)
        self.opt = cls(groups, **{"lr": 0.1, **options}, **(self.options if is_thalweg else {}))

    def _leaf(self, dice: random.Random) -> Tensor:
        kind = dice.choice([torch.float32, torch.float32, torch.float64])
        shapes = [(4, 3), (8,), (), (0, 2)]
        if self.name == "Adafactor":  # of torch divides by the number of elements
            shapes[-1] = (2, 3, 2)
        return torch.nn.Parameter(numbers(dice.choice(shapes), kind, dice))

    def give(self, dice: random.Random) -> None:
        for param in self.params:
            grad = numbers(param.shape, param.dtype, dice)
            is_skipped, has_rows = dice.random() < 0.15, dice.random() < 0.9
            if is_skipped or not param.requires_grad:
                param.grad = None
            elif self.has_rows and param.dim() and has_rows:
                param.grad = grad.to_sparse(1)
            else:
                param.grad = grad

    def clip(self) -> None:
        """Clip gradients by torch's functions, as the options do."""
        if all(x.grad is None for x in self.params):  # of which torch makes an error
            return
        if "clip_grad_norm" in self.options:
            torch.nn.utils.clip_grad_norm_(
                self.params, self.options["clip_grad_norm"], foreach=False
            )
        if "clip_grad_value" in self.options:
            torch.nn.utils.clip_grad_value_(
                self.params, self.options["clip_grad_value"], foreach=False
            )

    def is_due(self) -> bool:
        """Add gradients up, as `accumulate` does."""
        for place, param in enumerate(self.params):
            if param.grad is not None:
                total = self.sums.get(place)
                self.sums[place] = param.grad.clone() if total is None else total + param.grad
        self.passes += 1
        if self.passes < self.options["accumulate"]:
            return False
        for place, param in enumerate(self.params):
            param.grad = self.sums.get(place)
        self.passes, self.sums = 0, {}
        return True

    def seen(self) -> dict[str, Any]:
        groups = [
            {name: option for name, option in group.items() if name not in ("params", *EXTRA)}
            for group in self.opt.param_groups
        ]
        values: dict[str, Any] = {"groups": groups, "scale": self.scaler.get_scale()}
        for place, param in enumerate(self.params):
            values[f"parameter {place}"] = param
            slots = self.opt.state.get(param) or {}
            # With options, Adagrad makes its state in the first step.
            if self.name == "Adagrad" and self.options and not slots.get("step", 0):
                continue
            values |= {f"{name} of {place}": x for name, x in slots.items() if name not in EXTRA}
        return values

    def everything(self, but_sums: bool) -> dict[str, Any]:
        """All that a refused step leaves as it was; it may have added gradients to their sums."""
        sum_names = SUMS if but_sums else ()
        groups = [
            {name: option for name, option in group.items() if name not in ("params", *sum_names)}
            for group in self.opt.param_groups
        ]
        states = {
            id(param): {name: slot for name, slot in slots.items() if name not in sum_names}
            for param, slots in self.opt.state.items()
        }
        places = [list(map(id, group["params"])) for group in self.opt.param_groups]
        state = {key: slots for key, slots in states.items() if slots}
        return kept({"groups": groups, "state": state, "": self.params, "places": places})

    def has_idle_groups(self) -> bool:
        """Return whether hostile options may belong to a group without gradients."""
        groups = [[x.grad for x in group["params"]] for group in self.opt.param_groups]
        return self.is_hostile and not all(any(x is not None for x in grads) for grads in groups)


def kept(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {name: kept(nested) for name, nested in value.items()}
    return list(map(kept, value)) if isinstance(value, list) else value


def step(side: Side, dice: random.Random) -> None:
    side.give(dice)
    if not side.is_thalweg:
        if "accumulate" in side.options and not side.is_due():
            return
        side.clip()
    side.opt.step()


def step_of_a_closure(side: Side, dice: random.Random) -> None:
    if side.is_thalweg or not side.options:
        side.opt.step(lambda: side.give(dice))
    else:
        step(side, dice)


def step_of_a_scaler(side: Side, dice: random.Random) -> None:
    """With gradients that overflow, now and then; unscaled before the step, or by it."""
    if side.has_rows or "accumulate" in side.options or not all(x.is_leaf for x in side.params):
        return
    side.opt.zero_grad(set_to_none=dice.random() < 0.5)
    factors = [numbers(x.shape, x.dtype, dice) for x in side.params]
    if dice.random() < 0.4:
        factors[0] = factors[0] * math.inf
    trained = [(x * factor).sum() for x, factor in zip(side.params, factors) if x.requires_grad]
    is_unscaled = dice.random() < 0.5
    if not trained:
        return
    side.scaler.scale(sum(trained)).backward()
    if is_unscaled or not side.is_thalweg:
        side.scaler.unscale_(side.opt)
    if not side.is_thalweg:
        side.clip()
    side.scaler.step(side.opt)
    side.scaler.update()


def gradients_zeroed(side: Side, dice: random.Random) -> None:
    side.opt.zero_grad(set_to_none=dice.random() < 0.3)


def step_of_zeros(side: Side, dice: random.Random) -> None:
    if "accumulate" not in side.options:
        side.opt.zero_grad(set_to_none=False)
        if not side.is_thalweg:
            side.clip()
        side.opt.step()


def group_added(side: Side, dice: random.Random) -> None:
    param = torch.nn.Parameter(numbers((3, 2), torch.float32, dice))
    group: dict[str, Any] = {
        "params": [param],
        **dice.choice([{}, {"lr": 0.01}, {"weight_decay": 0.1}]),
    }
    if dice.random() < 0.1:
        side.is_hostile = True
        group[dice.choice(HYPERS)] = dice.choice(HOSTILE)
    if dice.random() < 0.1:
        group["params"].append(dice.choice(side.params))
    if len(side.params) < 8:
        side.opt.add_param_group(group)
        side.params.append(param)


def frozen_or_not(side: Side, dice: random.Random) -> None:
    param = dice.choice(side.params)
    if param.is_leaf:
        param.requires_grad_(not param.requires_grad)


def copied(side: Side, dice: random.Random) -> None:
    parts = side.opt, side.params, side.scaler
    is_deep = dice.random() < 0.5
    if all(x.is_leaf for x in side.params):  # no other can be copied
        copies = copy.deepcopy(parts) if is_deep else pickle.loads(pickle.dumps(parts))
        side.opt, side.params, side.scaler = copies


def saved_and_loaded(side: Side, dice: random.Random) -> None:
    side.opt.load_state_dict(copy.deepcopy(side.opt.state_dict()))


def rate_changed(side: Side, dice: random.Random) -> None:
    dice.choice(side.opt.param_groups)["lr"] = dice.choice([0.05, 0.0, 0.2])


def option_changed(side: Side, dice: random.Random) -> None:
    group = dice.choice(side.opt.param_groups)
    name = dice.choice(["maximize", "weight_decay", "foreach"])
    if side.name == "ASGD" and name == "foreach":
        return
    if name in group and not group.get("differentiable"):
        group[name] = 0.05 if name == "weight_decay" else dice.random() < 0.5


MOVES: list[Move] = [
    step, step, step_of_a_closure, step_of_a_scaler, step_of_a_scaler, step_of_zeros,
    gradients_zeroed, group_added, frozen_or_not, copied, saved_and_loaded, rate_changed,
    option_changed,
]  # fmt: skip


def attempt(seed: int, number: int) -> str:
    """Run one training; return "same", "refused" if a constructor raised, or the failure."""
    title = f"{seed}/{number}"
    sides: list[Any] = []
    errors = [tried(lambda k=k: sides.append(Side(k, title))) for k in (True, False)]
    if wrong := judged(errors, is_unchanged=True):
        return f"a constructor: {wrong}"
    if errors[0] is not None:
        return "refused"
    names = [f"{sides[0].name} {sides[0].opt.defaults}"]
    for change in range(CHANGES):
        move = random.Random(f"{title}/{change}").choice(MOVES)
        names.append(move.__name__)
        wrong, has_ended = moved(sides[0], sides[1], move, f"{title}/{change}/move")
        if wrong:
            return f"{wrong}, after {', '.join(names)}"
        if has_ended:
            return "refused"
    return "same"


def moved(side: Side, judge: Side, move: Move, title: str) -> tuple[str, bool]:
    """Do the same with both; returns what is wrong, and whether that was refused."""
    states = [side.everything(but_sums) for but_sums in (False, True)]
    errors = [tried(lambda k=k: move(k, random.Random(title))) for k in (side, judge)]
    notes = getattr(errors[0], "__notes__", ())
    has_sums = any(note.startswith(SUMMED) for note in notes)
    is_unchanged = errors[0] is None or same(side.everything(has_sums), states[has_sums])
    if errors[0] is None and errors[1] is not None and judge.has_idle_groups():
        return "", True  # torch looks at their options, too
    wrong = judged(errors, is_unchanged, side.is_hostile)
    if errors[0] is not None:
        return wrong, True
    return wrong or differing(side, judge), False


def tried(call: Callable[..., Any]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


def judged(errors: list[Exception | None], is_unchanged: bool, is_hostile: bool = False) -> str:
    """Return the difference of two outcomes, or "". Hostile options may raise here alone."""
    error, peer = errors
    if error is not None and not isinstance(error, DOCUMENTED) and type(error) is not type(peer):
        return f"{type(error).__name__}: {error}"
    if not is_unchanged:
        return f"half done: {type(error).__name__}: {error}"
    if (error is None) != (peer is None) and not (is_hostile and error):
        return f"one was refused: {error!r}, and torch's: {peer!r}"
    return ""


def differing(side: Side, judge: Side) -> str:
    actual, expected = side.seen(), judge.seen()
    if actual.keys() != expected.keys():
        return f"{actual.keys() ^ expected.keys()} is with one alone"
    return next(
        (
            f"{n}: {actual[n]}, torch's {expected[n]}"
            for n in actual
            if not alike(actual[n], expected[n], side)
        ),
        "",
    )


def alike(actual: Any, expected: Any, side: Side) -> bool:
    if not isinstance(actual, Tensor) or not isinstance(expected, Tensor):
        return same(actual, expected)
    rtol, atol = CLOSE.get(actual.dtype, (0.0, 0.0))
    if "clip_grad_norm" in side.options:  # torch adds 1e-6 to the norm
        rtol, atol = 1e-4, 1e-6
    dense = [tensor.to_dense() if tensor.is_sparse else tensor for tensor in (actual, expected)]
    is_one_kind = actual.dtype == expected.dtype and actual.shape == expected.shape
    return is_one_kind and torch.allclose(*dense, rtol, atol, equal_nan=True)


def warm() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for number in range(150):
        attempt(-1, number)


def attack(long: bool, seed: int) -> Figures:
    return figures_of(__name__, seed, CASES[long], BATCH, GOOD)
