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

TRIED = "trainings of optim beside torch's class, with 12 things that users do between steps"
CASES = {False: 1000, True: 20_000}
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
AROUND: list[dict[str, Any]] = [
    {}, {}, {"clip_grad_norm": 0.5}, {"clip_grad_value": 0.25}, {"accumulate": 2},
    {"state_device": "cpu"}, {"ema_decay": 0.9}, {"fused_unscale": True},
    {"diagnostics": 2},
]  # fmt: skip


class Side:
    """An optimizer of one of the two, its parameters and a scaler."""

    def __init__(self, is_ours: bool, title: str) -> None:
        dice = random.Random(title)
        self.is_ours = is_ours
        self.name, own = dice.choice(OURS)
        how = dice.choice(["maximize", "differentiable", "foreach", "", "", ""])
        if how == "foreach" and self.name == "ASGD":
            how = ""  # torch makes `eta` in float32 there, and else in Python's numbers
        given = {**own, how: True} if how and self.name != "SparseAdam" else dict(own)
        self.around = dice.choice(AROUND)
        if given.get("differentiable") or self.name == "SparseAdam":
            self.around = {}  # of which torch can do none
        self.is_hostile = False
        self.passes, self.sums = 0, dict[int, Tensor]()
        leaves = [self._leaf(dice) for _ in range(dice.choice([1, 2, 4]))]
        # Torch refuses leaves where a step is differentiated.
        self.params = [x.clone() if given.get("differentiable") else x for x in leaves]
        self.has_rows = self.name == "SparseAdam" or (
            not self.around and self.name in ("SGD", "Adagrad") and dice.random() < 0.4
        )
        self.scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=2)
        split = dice.choice([1, len(leaves)])
        groups = [{"params": each} for each in (self.params[:split], self.params[split:]) if each]
        cls = getattr(optim if is_ours else torch.optim, self.name)
        taken = inspect.signature(cls).parameters
        if dice.random() < 0.2:
            self.is_hostile = True
            home: dict[str, Any] = dice.choice([given, *groups])
            names, values = [name for name in HYPERS if name in taken], HOSTILE
            if self.name == "Adafactor":
                names.remove("eps")  # of which the constructor refuses what torch's step does
                values = [each for each in values if not isinstance(each, Tensor)]  # in float32
            home[dice.choice(names)] = dice.choice(values)
        self.opt = cls(groups, **{"lr": 0.1, **given}, **(self.around if is_ours else {}))

    def _leaf(self, dice: random.Random) -> Tensor:
        kind = dice.choice([torch.float32, torch.float32, torch.float64])
        shapes = [(4, 3), (8,), (), (0, 2)]
        if self.name == "Adafactor":  # of torch divides by the number of elements
            shapes[-1] = (2, 3, 2)
        return torch.nn.Parameter(numbers(dice.choice(shapes), kind, dice))

    def give(self, dice: random.Random) -> None:
        for param in self.params:
            grad = numbers(param.shape, param.dtype, dice)
            is_left_out, has_rows = dice.random() < 0.15, dice.random() < 0.9
            if is_left_out or not param.requires_grad:
                param.grad = None
            elif self.has_rows and param.dim() and has_rows:
                param.grad = grad.to_sparse(1)
            else:
                param.grad = grad

    def clip(self) -> None:
        """What options do, as torch has it."""
        if all(x.grad is None for x in self.params):  # of which torch makes an error
            return
        if "clip_grad_norm" in self.around:
            torch.nn.utils.clip_grad_norm_(
                self.params, self.around["clip_grad_norm"], foreach=False
            )
        if "clip_grad_value" in self.around:
            torch.nn.utils.clip_grad_value_(
                self.params, self.around["clip_grad_value"], foreach=False
            )

    def is_due(self) -> bool:
        """Add gradients up, as `accumulate` does."""
        for place, param in enumerate(self.params):
            if param.grad is not None:
                kept = self.sums.get(place)
                self.sums[place] = param.grad.clone() if kept is None else kept + param.grad
        self.passes += 1
        if self.passes < self.around["accumulate"]:
            return False
        for place, param in enumerate(self.params):
            param.grad = self.sums.get(place)
        self.passes, self.sums = 0, {}
        return True

    def seen(self) -> dict[str, Any]:
        """All that the two have in common."""
        groups = [
            {name: each for name, each in group.items() if name not in ("params", *EXTRA)}
            for group in self.opt.param_groups
        ]
        found: dict[str, Any] = {"groups": groups, "scale": self.scaler.get_scale()}
        for place, param in enumerate(self.params):
            found[f"parameter {place}"] = param
            own = self.opt.state.get(param) or {}
            found |= {f"{name} of {place}": x for name, x in own.items() if name not in EXTRA}
        return found

    def everything(self, but_sums: bool) -> dict[str, Any]:
        """All that a refused step leaves as it was; it may have added gradients to their sums."""
        left = SUMS if but_sums else ()
        groups = [
            {name: each for name, each in group.items() if name not in ("params", *left)}
            for group in self.opt.param_groups
        ]
        own = {
            id(param): {name: each for name, each in own.items() if name not in left}
            for param, own in self.opt.state.items()
        }
        places = [list(map(id, group["params"])) for group in self.opt.param_groups]
        state = {key: each for key, each in own.items() if each}
        return kept({"groups": groups, "state": state, "": self.params, "places": places})

    def has_idle_groups(self) -> bool:
        """Whether strange options may be those of a group without a gradient."""
        groups = [[x.grad for x in group["params"]] for group in self.opt.param_groups]
        return self.is_hostile and not all(any(x is not None for x in own) for own in groups)


def kept(value: Any) -> Any:
    """A copy of a value, with tensors that nobody writes to."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {name: kept(each) for name, each in value.items()}
    return list(map(kept, value)) if isinstance(value, list) else value


def step(side: Side, dice: random.Random) -> None:
    side.give(dice)
    if not side.is_ours:
        if "accumulate" in side.around and not side.is_due():
            return
        side.clip()
    side.opt.step()


def step_of_a_closure(side: Side, dice: random.Random) -> None:
    if side.is_ours or not side.around:
        side.opt.step(lambda: side.give(dice))
    else:
        step(side, dice)


def step_of_a_scaler(side: Side, dice: random.Random) -> None:
    """With gradients that overflow, now and then; unscaled before the step, or by it."""
    if side.has_rows or "accumulate" in side.around or not all(x.is_leaf for x in side.params):
        return
    side.opt.zero_grad(set_to_none=dice.random() < 0.5)
    factors = [numbers(x.shape, x.dtype, dice) for x in side.params]
    if dice.random() < 0.4:
        factors[0] = factors[0] * math.inf
    trained = [(x * by).sum() for x, by in zip(side.params, factors) if x.requires_grad]
    is_unscaled = dice.random() < 0.5
    if not trained:
        return
    side.scaler.scale(sum(trained)).backward()
    if is_unscaled or not side.is_ours:
        side.scaler.unscale_(side.opt)
    if not side.is_ours:
        side.clip()
    side.scaler.step(side.opt)
    side.scaler.update()


def gradients_zeroed(side: Side, dice: random.Random) -> None:
    side.opt.zero_grad(set_to_none=dice.random() < 0.3)


def step_of_zeros(side: Side, dice: random.Random) -> None:
    if "accumulate" not in side.around:
        side.opt.zero_grad(set_to_none=False)
        if not side.is_ours:
            side.clip()
        side.opt.step()


def group_added(side: Side, dice: random.Random) -> None:
    made = torch.nn.Parameter(numbers((3, 2), torch.float32, dice))
    group: dict[str, Any] = {
        "params": [made],
        **dice.choice([{}, {"lr": 0.01}, {"weight_decay": 0.1}]),
    }
    if dice.random() < 0.1:
        side.is_hostile = True
        group[dice.choice(HYPERS)] = dice.choice(HOSTILE)
    if dice.random() < 0.1:
        group["params"].append(dice.choice(side.params))
    if len(side.params) < 8:
        side.opt.add_param_group(group)
        side.params.append(made)


def frozen_or_not(side: Side, dice: random.Random) -> None:
    param = dice.choice(side.params)
    if param.is_leaf:
        param.requires_grad_(not param.requires_grad)


def copied(side: Side, dice: random.Random) -> None:
    own = side.opt, side.params, side.scaler
    is_deep = dice.random() < 0.5
    if all(x.is_leaf for x in side.params):  # no other can be copied
        again = copy.deepcopy(own) if is_deep else pickle.loads(pickle.dumps(own))
        side.opt, side.params, side.scaler = again


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
    """What became of a training: "same", "refused" at its beginning, or what went wrong."""
    title = f"{seed}/{number}"
    sides: list[Any] = []
    errors = [tried(lambda k=k: sides.append(Side(k, title))) for k in (True, False)]
    if wrong := judged(errors, is_whole=True):
        return f"a constructor: {wrong}"
    if errors[0] is not None:
        return "refused"
    said = [f"{sides[0].name} {sides[0].opt.defaults}"]
    for change in range(CHANGES):
        move = random.Random(f"{title}/{change}").choice(MOVES)
        said.append(move.__name__)
        wrong, is_over = moved(sides[0], sides[1], move, f"{title}/{change}/move")
        if wrong:
            return f"{wrong}, after {', '.join(said)}"
        if is_over:
            return "refused"
    return "same"


def moved(ours: Side, judge: Side, move: Move, title: str) -> tuple[str, bool]:
    """Do the same with both; returns what is wrong, and whether that was refused."""
    before = [ours.everything(but_sums) for but_sums in (False, True)]
    errors = [tried(lambda k=k: move(k, random.Random(title))) for k in (ours, judge)]
    notes = getattr(errors[0], "__notes__", ())
    are_summed = any(note.startswith(SUMMED) for note in notes)
    is_whole = errors[0] is None or same(ours.everything(are_summed), before[are_summed])
    if errors[0] is None and errors[1] is not None and judge.has_idle_groups():
        return "", True  # torch looks at their options, too
    wrong = judged(errors, is_whole, ours.is_hostile)
    if errors[0] is not None:
        return wrong, True
    return wrong or differing(ours, judge), False


def tried(call: Callable[[], Any]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


def judged(errors: list[Exception | None], is_whole: bool, is_hostile: bool = False) -> str:
    """What is wrong with what the two have raised. Strange options may be refused here alone."""
    ours, theirs = errors
    if ours is not None and not isinstance(ours, DOCUMENTED) and type(ours) is not type(theirs):
        return f"{type(ours).__name__}: {ours}"
    if not is_whole:
        return f"half done: {type(ours).__name__}: {ours}"
    if (ours is None) != (theirs is None) and not (is_hostile and ours):
        return f"one was refused: {ours!r}, and torch's: {theirs!r}"
    return ""


def differing(one: Side, other: Side) -> str:
    """The first of what the two have in common that is not the same."""
    ours, theirs = one.seen(), other.seen()
    if ours.keys() != theirs.keys():
        return f"{ours.keys() ^ theirs.keys()} is with one alone"
    return next(
        (
            f"{n}: {ours[n]}, torch's {theirs[n]}"
            for n in ours
            if not alike(ours[n], theirs[n], one)
        ),
        "",
    )


def alike(ours: Any, theirs: Any, side: Side) -> bool:
    if not isinstance(ours, Tensor) or not isinstance(theirs, Tensor):
        return same(ours, theirs)
    rtol, atol = CLOSE.get(ours.dtype, (0.0, 0.0))
    if "clip_grad_norm" in side.around:  # torch adds 1e-6 to the norm
        rtol, atol = 1e-4, 1e-6
    dense = [each.to_dense() if each.is_sparse else each for each in (ours, theirs)]
    is_one_kind = ours.dtype == theirs.dtype and ours.shape == theirs.shape
    return is_one_kind and torch.allclose(*dense, rtol, atol, equal_nan=True)


def warm() -> None:
    """Have the kernels in memory."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for number in range(150):
        attempt(-1, number)


def attack(long: bool, seed: int) -> Figures:
    """Train in children, so that a signal is a failure of one."""
    return figures_of(__name__, seed, CASES[long], BATCH, GOOD)
