"""Tensors whose storage was cut before they are used, by everything that reads or writes them.

A wrong one ends the process, so `attempt` is called by `attack.server`, in a child.
"""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cut_values import SHARE_LEFT, SIZE, VALUES, cut
from thalweg import IndexedSlices, Variable, checkpoint, keras, optim, v1
from thalweg.openseq2seq.optimizers import optimize_loss

FOLD = {"accumulate": 2}


def sparse(shape: tuple[int, ...] = (SIZE, 2)) -> Tensor:
    return torch.sparse_coo_tensor(
        torch.arange(4)[None], torch.ones(4, *shape[1:]), shape, check_invariants=False
    )


class Parts:
    """An optimizer of `thalweg.optim` with a step behind it."""

    def __init__(self, make: Any, rows: bool = False, dtype: Any = torch.float32) -> None:
        shape = (SIZE, 2) if rows else (SIZE,)
        self.p = torch.nn.Parameter(torch.ones(shape, dtype=dtype))
        self.q = torch.nn.Parameter(torch.ones(shape, dtype=dtype))
        self.rows = rows
        self.optimizer = make([self.p, self.q])
        self.step()

    def give(self) -> None:
        for param in (self.p, self.q):
            param.grad = sparse() if self.rows else torch.ones_like(param)

    def step(self) -> None:
        self.give()
        self.optimizer.step()

    def state(self, key: str) -> Tensor:
        return self.optimizer.state[self.p][key]


def stepping(
    make: Any, victim: Callable[[Parts], Tensor], **kwargs: Any
) -> Callable[[], list[Any]]:
    """Return a step with a gradient, a slot or a parameter that was cut."""

    def build() -> list[Any]:
        run = Parts(make, **kwargs)
        run.give()
        cut(victim(run))
        return [run.optimizer.step, run.q]

    return build


def grad(run: Parts) -> Tensor:
    assert run.p.grad is not None
    return run.p.grad


def grad_values(run: Parts) -> Tensor:
    return grad(run)._values()


def grad_indices(run: Parts) -> Tensor:
    return grad(run)._indices()


def slot(key: str) -> Callable[[Parts], Tensor]:
    return lambda run: run.state(key)


def param(run: Parts) -> Tensor:
    return run.p.data


def of_several_rules(params: Any) -> Any:
    groups = [{"params": params[:1]}, {"params": params[1:], "momentum": 0.9}]
    return optim.SGD(groups, 0.1, clip_grad_norm=1.0)


def swapping(victim: Callable[[Parts], Tensor]) -> Callable[[], list[Any]]:
    def build() -> list[Any]:
        run = Parts(lambda p: optim.SGD(p, 0.1, ema_decay=0.5))
        cut(victim(run))

        def swap() -> None:
            with run.optimizer.swapped():
                pass

        return [swap, run.q]

    return build


def swapping_back() -> list[Any]:
    run = Parts(lambda p: optim.SGD(p, 0.1, ema_decay=0.5))

    def swap() -> None:
        with run.optimizer.swapped():
            cut(run.p.data)

    return [swap, run.q]


def written_since() -> list[Any]:
    run = Parts(lambda p: optim.Adam(p, 0.1, masters=True), dtype=torch.bfloat16)
    run.give()
    with torch.no_grad():
        run.p.mul_(2)
    cut(run.state("master"))
    return [run.optimizer.step, run.q]


def flat() -> list[Any]:
    run = Parts(lambda p: optim.SGD(p, 0.1, gradients="flat"))
    run.optimizer.zero_grad()
    assert run.optimizer.step_cache.flat is not None
    cut(run.optimizer.step_cache.flat.views[0])
    return [run.optimizer.zero_grad, run.q]


def momentum(params: Any) -> Any:
    """Return an optimizer whose steps of rows are torch's, which would read beyond the cut."""
    return optim.SGD(params, 0.1, momentum=0.9)


def a_first_gradient() -> list[Any]:
    p, q = (torch.nn.Parameter(torch.ones(SIZE)) for _ in "pq")
    optimizer = optim.SGD([p, q], 0.1, **FOLD)
    p.grad, q.grad = torch.ones(SIZE), torch.ones(SIZE)
    cut(p.grad)
    return [optimizer.step, q]


def zeroed() -> list[Any]:
    run = Parts(lambda p: optim.Adam(p, 0.1))
    run.give()
    cut(grad(run))
    return [lambda: run.optimizer.zero_grad(set_to_none=False), run.q]


def copied() -> list[Any]:
    run = Parts(lambda p: optim.Adam(p, 0.1))
    cut(run.p.data)
    return [lambda: copy.deepcopy(run.optimizer), run.q]


def saved(victim: Callable[[Parts], Tensor], method: str) -> Callable[[], list[Any]]:
    def build() -> list[Any]:
        run = Parts(lambda p: optim.Adam(p, 0.1))
        cut(victim(run))
        folder = Path(tempfile.mkdtemp())

        def save() -> None:
            params = {"p": run.p, "q": run.q}
            if method == "save":
                checkpoint.save(folder / "made", optimizer=run.optimizer, variables=params)
            else:
                checkpoint.save_async(
                    folder / "made", optimizer=run.optimizer, variables=params
                ).wait()

        return [save, run.q]

    return build


OPTIM: dict[str, Callable[[], list[Any]]] = {
    "plain, gradient": stepping(lambda p: optim.Adam(p, 0.1), grad),
    "plain, slot": stepping(lambda p: optim.Adam(p, 0.1), slot("exp_avg")),
    "plain, number": stepping(lambda p: optim.Adam(p, 0.1), slot("step")),
    "plain, parameter": stepping(lambda p: optim.Adam(p, 0.1), param),
    "tensorflow, number": stepping(lambda p: optim.tensorflow.Adam(p, 0.1), slot("step")),
    "rows, values": stepping(lambda p: optim.SGD(p, 0.1), grad_values, rows=True),
    "rows, indices": stepping(lambda p: optim.SGD(p, 0.1), grad_indices, rows=True),
    "rows, values, torch's": stepping(momentum, grad_values, rows=True),
    "rows, indices, torch's": stepping(momentum, grad_indices, rows=True),
    "SparseAdam, indices": stepping(lambda p: optim.SparseAdam(p, 0.1), grad_indices, rows=True),
    "LazyAdam, values": stepping(
        lambda p: optim.tensorflow.LazyAdam(p, 0.1), grad_values, rows=True
    ),
    "clipped, gradient": stepping(lambda p: optim.SGD(p, 0.1, clip_grad_norm=1.0), grad),
    "several rules, gradient": stepping(of_several_rules, grad),
    "accumulate, first gradient": a_first_gradient,
    "accumulate, gradient": stepping(lambda p: optim.SGD(p, 0.1, **FOLD), grad),
    "accumulate, sum": stepping(lambda p: optim.SGD(p, 0.1, **FOLD), slot("gradient_sum")),
    "accumulate, values": stepping(lambda p: optim.SGD(p, 0.1, **FOLD), grad_values, rows=True),
    "accumulate, indices": stepping(lambda p: optim.SGD(p, 0.1, **FOLD), grad_indices, rows=True),
    "masters, master": stepping(
        lambda p: optim.Adam(p, 0.1, masters=True), slot("master"), dtype=torch.bfloat16
    ),
    "masters, parameter": stepping(
        lambda p: optim.Adam(p, 0.1, masters=True), param, dtype=torch.bfloat16
    ),
    "masters, written since": written_since,
    "swapped, parameter": swapping(param),
    "swapped, average": swapping(slot("ema")),
    "swapped, inside": swapping_back,
    "flat, zero_grad": flat,
    "zero_grad": zeroed,
    "deepcopy": copied,
    "save, parameter": saved(param, "save"),
    "save, slot": saved(slot("exp_avg"), "save"),
    "save_async, parameter": saved(param, "save_async"),
    "save_async, slot": saved(slot("exp_avg"), "save_async"),
}


def of_optimizer(
    make: Callable[..., Any], act: Callable[..., Any], victim: str
) -> Callable[[], list[Any]]:
    """Return one of Keras or of TensorFlow 1, with a step behind it."""

    def build() -> list[Any]:
        p, q = (Variable(torch.ones(SIZE), name=name) for name in "pq")
        opt = make()
        opt.apply_gradients([(torch.ones(SIZE), p), (torch.ones(SIZE), q)])
        cut({"variable": p, "slot": opt.get_slot(p, "m")}[victim])
        return [lambda: act(opt, p), q]

    return build


def of_averages(act: Callable[..., Any], victim: str) -> Callable[[], list[Any]]:
    def build() -> list[Any]:
        p, q = (Variable(torch.ones(SIZE), name=name) for name in "pq")
        averages = v1.train.ExponentialMovingAverage(0.5)
        averages.apply([p, q])
        cut(p if victim == "variable" else averages.average(p))
        return [lambda: act(averages, p, q), q]

    return build


def of_variable(act: Callable[..., Any]) -> Callable[[], list[Any]]:
    def build() -> list[Any]:
        p = Variable(torch.ones(SIZE), name="p")
        cut(p)
        return [lambda: act(p), torch.ones(1)]

    return build


def of_slices(victim: str, act: Callable[..., Any]) -> Callable[[], list[Any]]:
    def build() -> list[Any]:
        slices = IndexedSlices(torch.ones(4, 2), torch.arange(4), (SIZE, 2))
        cut(getattr(slices, victim))
        return [lambda: act(slices), torch.ones(1)]

    return build


def of_mixed(victim: str) -> Callable[[], list[Any]]:
    def build() -> list[Any]:
        w = Variable(torch.ones(SIZE, dtype=torch.float16), name="w")
        step = optimize_loss(
            lambda: 0, "Adam", {}, lambda _: 0.1, var_list=[w], dtype="mixed",
            loss_scaling="Backoff", clip_gradients=1.0,
        )  # fmt: skip
        gradient = torch.ones(SIZE, dtype=torch.float16)
        for _ in range(3):
            step.apply_gradients([gradient])
        cut({"gradient": gradient, "variable": w}[victim])
        return [lambda: step.apply_gradients([gradient]), torch.ones(1)]

    return build


def merged(averages: Any, p: Variable, q: Variable) -> None:
    averages.apply([p, q])


def zeros(opt: Any) -> list[Any]:
    return [torch.zeros(weight.shape, dtype=weight.dtype).numpy() for weight in opt.weights]


KERAS: dict[str, Callable[[Any, Variable], Any]] = {
    "get_weights": lambda opt, p: opt.get_weights(),
    "set_weights": lambda opt, p: opt.set_weights(zeros(opt)),
    "deepcopy": lambda opt, p: copy.deepcopy(opt),
    "repr": lambda opt, p: repr([p, *opt.weights]),
    "apply": lambda opt, p: opt.apply_gradients([(torch.ones(SIZE), p)]),
}
VARIABLE: dict[str, Callable[[Variable], Any]] = {
    "numpy": lambda p: p.numpy(),
    "value": lambda p: p.value(),
    "read_value": lambda p: p.read_value(),
    "assign": lambda p: p.assign(torch.zeros(SIZE)),
    "assign_add": lambda p: p.assign_add(torch.ones(SIZE)),
    "repr": repr,
    "deepcopy": copy.deepcopy,
}
V1: dict[str, Callable[[Any, Variable], Any]] = {
    "to_torch": lambda opt, p: checkpoint.to_torch(opt, [p]),
    "apply": lambda opt, p: opt.apply_gradients([(torch.ones(SIZE), p)]),
    "state_dict": lambda opt, p: copy.deepcopy(opt.state_dict()),
    "load_state_dict": lambda opt, p: opt.load_state_dict(
        {k: torch.zeros_like(tensor) for k, tensor in opt.state_dict().items()}
    ),
}
SLICES: dict[str, Callable[[IndexedSlices], Any]] = {
    "to_dense": lambda slices: slices.to_dense(),
    "deduplicated": lambda slices: slices.deduplicated(),
    "check_range": lambda slices: slices.check_range(SIZE),
    "repr": repr,
}
OTHER_CASES: dict[str, Callable[[], list[Any]]] = {
    **{
        f"keras {name}, {victim}": of_optimizer(lambda: keras.optimizers.Adam(0.1), act, victim)
        for name, act in KERAS.items()
        for victim in ("variable", "slot")
    },
    **{f"variable {name}": of_variable(act) for name, act in VARIABLE.items()},
    **{
        f"v1 {name}, {victim}": of_optimizer(lambda: v1.train.AdamOptimizer(0.1), act, victim)
        for name, act in V1.items()
        for victim in ("variable", "slot")
    },
    **{f"average apply, {victim}": of_averages(merged, victim) for victim in ("variable", "slot")},
    **{
        f"slices {name}, {victim}": of_slices(victim, act)
        for name, act in SLICES.items()
        for victim in ("values", "indices")
    },
    **{f"mixed, {victim}": of_mixed(victim) for victim in ("gradient", "variable")},
}
CASES = {**OPTIM, **OTHER_CASES, **VALUES}
# What does not touch what was cut; a text says that it was.
GOOD = {
    *(f"keras {name}, variable" for name in ("get_weights", "set_weights", "deepcopy", "repr")),
    "keras repr, slot",
    "variable repr",
    "v1 to_torch, variable",
    "v1 state_dict, variable",
    "v1 load_state_dict, variable",
    "slices check_range, values",
}


def attempt(name: str, share: float) -> str:
    """Return the outcome of a case with a share of its storage left; one word if it ended well."""
    SHARE_LEFT[0] = share
    act, param = CASES[name]()
    old = param.detach().clone()
    try:
        act()
    except (ValueError, TypeError, RuntimeError) as error:
        text = f"{type(error).__name__}: {error}"
    else:
        text = "taken"
    return text if torch.equal(param.detach(), old) or text == "taken" else f"changed, {text}"


def warm() -> None:
    """Set one thread, and no warnings."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
