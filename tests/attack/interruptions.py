"""Steps interrupted at random moments, by real signals, by asynchronous exceptions and by opcode.

Each step is compared with a twin that nobody interrupts: the state must be that of before or that
of after, to the last bit, and the notes of the exception must not say the other. Run as a program
it prints what was counted, as JSON: `python -m attack.interruptions keras signal 100 [seed]` in the
folder of the tests. The seed, 0 if none is given, chooses the moments; what goes wrong is told on
stderr with it.
"""

from __future__ import annotations

import copy
import ctypes
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

import thalweg
from attack import clock
from attack.figures import Figures
from attack.planted import DEFECTS
from attack.torch_trainings import encode_all
from failing_callable import NOT_TAKEN
from interruptions import block_switches, outcome
from thalweg import IndexedSlices, Pass, Rule, Stage, Variable, _graph, diagnostics, optim
from thalweg._core.dtensor import local
from thalweg.keras import optimizers as keras
from thalweg.openseq2seq.optimizers import optimize_loss


class Training:
    """A step that can be taken again and again, and everything that it may change.

    `ready` is called before each, and not again where one that was not taken is; `end` after one
    that was interrupted, to do what the state does not show that it is left. `moves` of the state,
    if any, change if a step is taken.
    """

    def __init__(
        self,
        step: Callable[[int], Any],
        state: Callable[[], list[Tensor]],
        ready: Callable[[int], Any] = lambda _: None,
        end: Callable[[], Any] = lambda: None,
        moves: int = 0,
    ) -> None:
        self.step = step
        self.state = state
        self.ready = ready
        self.end = end
        self.moves = moves

    def take(self, number: int) -> None:
        self.ready(number)
        self.step(number)

    def bits(self) -> list[bytes]:
        # Copies: steps look up memory that NumPy shares among all that the process has.
        copies = (tensor.detach().clone().contiguous() for tensor in self.state())
        return [copy.view(-1).view(torch.uint8).numpy().tobytes() for copy in copies]


SHAPES = [(300, 40), (40,), (7, 3), ()]


def variables(dtypes: list[torch.dtype], **options: Any) -> list[Variable]:
    """Return random variables; NumPy shares the memory of the first."""
    generator = torch.Generator().manual_seed(1)
    memories = [
        Variable(torch.randn(shape, generator=generator).to(dtype), name=f"w{index}", **options)
        for index, (shape, dtype) in enumerate(zip(SHAPES, dtypes * 4, strict=False))
    ]
    memories[0].detach().as_subclass(Tensor).view(torch.uint8).numpy()
    assert not memories[0].untyped_storage().resizable()
    return memories


def gradients(variables: list[Variable], number: int, sparse: bool = False) -> list[Any]:
    draws, rows = _drawn_gradients(number, tuple((var.shape, var.dtype) for var in variables))
    grads: list[Any] = [grad.clone() for grad in draws]
    if sparse:
        grads[0] = IndexedSlices(grads[0][:50].contiguous(), rows.clone(), torch.Size(SHAPES[0]))
    return grads


@lru_cache(maxsize=16)
def _drawn_gradients(
    number: int, kinds: tuple[tuple[torch.Size, torch.dtype], ...]
) -> tuple[list[Tensor], Tensor]:
    """Return gradients of these shapes and dtypes, and rows; an optimizer and its twin copy them.

    A copy takes a tenth of the time.
    """
    generator = torch.Generator().manual_seed(number)
    draws = [torch.randn(shape, generator=generator).to(dtype) for shape, dtype in kinds]
    return draws, torch.randint(0, SHAPES[0][0], (50,), generator=generator)


def of_keras(make: Callable[..., Any], **kinds: Any) -> Callable[[], Training]:
    def build() -> Training:
        model = variables(kinds.get("dtypes", [torch.float32]), **kinds.get("options", {}))
        opt = make()
        opt.engine = kinds.get("engine")

        def step(number: int) -> None:
            pairs = list(
                zip(gradients(model, number, kinds.get("sparse", False)), model, strict=True)
            )
            twice = pairs[1:2] if kinds.get("twice") else []
            opt.apply_gradients([*pairs, *twice])

        return Training(step, lambda: [*model, *opt.weights])

    return build


def of_v1(make: Callable[..., Any], **kinds: Any) -> Callable[[], Training]:
    def build() -> Training:
        weights = variables(kinds.get("dtypes", [torch.float32]))
        opt, count = make(), Variable(torch.zeros((), dtype=torch.int64), trainable=False)

        def step(number: int) -> None:
            grads = gradients(weights, number, kinds.get("sparse", False))
            opt.apply_gradients(zip(grads, weights, strict=True), count)

        return Training(step, lambda: [*weights, count, *opt.variables()])

    return build


def parameters(dtype: torch.dtype) -> list[Any]:
    return [torch.nn.Parameter(variable.detach()) for variable in variables([dtype])]


def state_of(opt: Any) -> list[Tensor]:
    """All that an optimizer remembers; a gradient counts as a part of the sum that it goes into."""
    params = [param for group in opt.param_groups for param in group["params"]]
    tensors: list[Tensor] = []
    for param in params:
        slots = dict(opt.state.get(param, {}))
        if isinstance(opt, optim.RuleOptimizer):  # `step` counts what was applied in backward
            slots["step"] = slots["step"] + opt.step_cache.has_applied_grads
        # Between two sums, the entry is the number 0.
        total = torch.zeros_like(param, dtype=torch.float32) + slots.pop("gradient_sum", 0)
        if opt.step_options.kinds.sums and param.grad is not None:
            total = total + param.grad
        tensors += [param, *slots.values(), total]
    waits = opt.step_options.kinds.sums and params[0].grad is not None
    last_step = opt.last_step
    counts = [
        opt.param_groups[0].get("folded", 0) + waits,
        0 if last_step is None else last_step.count + opt.step_cache.has_applied_grads,
        opt.step_cache.holds_averages,
    ]
    return [*tensors, torch.tensor(counts)]


def of_optim(make: Callable[..., Any], dtype: torch.dtype = torch.float32) -> Any:
    def build() -> Training:
        params = parameters(dtype)
        opt = make(params)

        def ready(number: int) -> None:
            for param, grad in zip(params, gradients(params, number), strict=True):
                param.grad = grad

        def end() -> None:
            if opt.step_options.kinds.sums and params[0].grad is not None:
                opt.step()

        return Training(lambda _: opt.step(), lambda: state_of(opt), ready, end)

    return build


def in_backward(make: Callable[..., Any]) -> Callable[[], Training]:
    """Return a function that builds trainings of one parameter, stepped in backward."""

    def build() -> Training:
        params = parameters(torch.float32)[:1]
        opt = make(params)

        def ready(_: int) -> None:
            opt.zero_grad()

        def step(number: int) -> None:
            params[0].grad = None
            (params[0] * gradients(params, number)[0]).sum().backward()
            opt.step()

        def end() -> None:
            if opt.step_cache.has_applied_grads:
                opt.step()

        return Training(step, lambda: state_of(opt), ready, end)

    return build


def swapping() -> Training:
    """Return a training whose steps are blocks of `swapped()`, in which steps are refused."""
    params = parameters(torch.float32)
    opt = optim.Adam(params, 0.01, ema_decay=0.5)
    for param, grad in zip(params, gradients(params, 0), strict=True):
        param.grad = grad
    opt.step()
    opt.step()

    def step(_: int) -> None:
        with opt.swapped():
            are_swapped = [torch.equal(param, opt.state[param]["ema"]) for param in params]
            if not (opt.step_cache.holds_averages and all(are_swapped)):
                raise AssertionError("the averages are not there")

    return Training(step, lambda: state_of(opt))


@cache
def one_rank() -> Any:
    """Return a mesh of this process alone."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    return init_device_mesh("cpu", (1,))


def on_mesh(param: Tensor) -> Any:
    """Return a parameter as a DTensor with its dtype and shape."""
    from torch.distributed.tensor import DTensor, Shard

    return DTensor.from_local(param.detach(), one_rank(), [Shard(0)]).requires_grad_()


def loading(
    make: Callable[..., Any], dtype: torch.dtype = torch.float32, is_cut: bool = False
) -> Any:
    """Return a function that builds trainings which load two states in turn.

    Args:
        make: Returns the optimizer of parameters.
        dtype: The dtype of the parameters.
        is_cut: Whether they are loaded into an optimizer of DTensors.
    """

    def build() -> Training:
        params = parameters(dtype)[: 3 if is_cut else None]
        opt = make(params)
        checkpoints: list[Any] = []
        for number in range(5):
            for param, grad in zip(params, gradients(params, number), strict=True):
                param.grad = grad
            opt.step()
            opt.param_groups[0]["lr"] = 0.01 * (number + 1)
            checkpoints.append(copy.deepcopy(opt.state_dict()))
        if is_cut:
            params = list(map(on_mesh, params))
            opt = make(params)

        def state() -> list[Tensor]:
            states = [dict(sorted(opt.state[param].items())) for param in params]
            group = opt.param_groups[0]
            numbers = torch.tensor([group["lr"], group.get("folded", 0)])
            # Between two sums of gradients, their entry is the number 0.
            values = [torch.as_tensor(value) for slots in states for value in slots.values()]
            return [*map(local, [*params, *values]), numbers]

        return Training(lambda number: opt.load_state_dict(checkpoints[2 + number % 3]), state)

    return build


def adding(make: Callable[..., Any]) -> Callable[[], Training]:
    """Groups of parameters that are added, each to one that has taken steps.

    When there are many it begins with one again, as every step is over all of them.
    """

    def build() -> Training:
        generator = torch.Generator().manual_seed(2)

        def one() -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.randn(2, generator=generator))

        new = [one()]
        opt = make(new[:])

        def ready(_: int) -> None:
            nonlocal opt
            if len(new) > 20:
                new[:] = [one()]
                opt = make(new[:])
            opt.zero_grad()
            sum((param * param).sum() for param in new).backward()
            opt.step()
            new.append(one())

        def state() -> list[Tensor]:
            groups = opt.param_groups
            counts = [len(groups), len(opt.state), len(opt.step_cache.heard), *map(len, groups)]
            lie = [param.grad is None or param.grad._base is not None for param in new]
            return [*state_of(opt), torch.tensor(counts), torch.tensor(lie)]

        return Training(lambda _: opt.add_param_group({"params": [new[-1]]}), state, ready)

    return build


def scaled(make: Callable[..., Any]) -> Callable[[], Training]:
    """Return a function that builds trainings with `GradScaler`, which skips some steps."""

    def build() -> Training:
        params = parameters(torch.float32)
        opt = make(params)

        def step(number: int) -> None:
            scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
            scaler.scale(torch.zeros(()))
            for param, grad in zip(params, gradients(params, number), strict=True):
                param.grad = grad * 4
            if not number % 4:
                params[0].grad[0, 0] = torch.inf
            for name in ("grad_scale", "found_inf"):  # which torch leaves if it is interrupted
                vars(opt).pop(name, None)
            scaler.step(opt)
            scaler.update()

        return Training(step, lambda: state_of(opt))

    return build


def judged(make: Callable[..., Any], action: str, **options: Any) -> Callable[[], Training]:
    """Return a function that builds trainings of which every third step leaves its band."""

    def build() -> Training:
        params = parameters(torch.float32)
        spikes = diagnostics.Spikes(action, **options)
        warnings.filterwarnings("ignore", "Spikes: ")
        opt, judge = make(params, spikes), spikes.judge
        assert judge is not None

        def ready(number: int) -> None:
            for param, grad in zip(params, gradients(params, number), strict=True):
                param.grad = grad
            if not number % 3:
                params[0].grad[0, 0] = torch.inf

        def state() -> list[Tensor]:
            return [*state_of(opt), torch.tensor([judge.step, len(judge.actions)])]

        return Training(lambda _: opt.step(), state, ready)

    return build


def clearing() -> Training:
    """Return a training with gradients in flat buffers, which others replace."""
    params = parameters(torch.float32)
    opt = optim.SGD(params, 0.01, gradients="flat")
    views = [param.grad for param in params]

    def ready(number: int) -> None:
        for param, grad in zip(params, gradients(params, number), strict=True):
            param.grad = grad

    def state() -> list[Tensor]:
        lie = [param.grad is view for param, view in zip(params, views, strict=True)]
        return [*(param.grad for param in params if param.grad is not None), torch.tensor(lie)]

    return Training(lambda _: opt.zero_grad(), state, ready)


def unscaled(params: Any) -> Any:
    opt = optim.Adam(params, 0.01, fused_unscale=True, clip_grad_norm=1.0)
    opt.grad_scale, opt.found_inf = torch.tensor(2.0), torch.tensor(0.0)
    return opt


def of_many_rules(params: list[Tensor], **options: Any) -> Any:
    momenta: list[dict[str, Any]] = [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}]
    groups = [{"params": [param], **group} for param, group in zip(params, momenta, strict=False)]
    return optim.SGD([*groups, {"params": params[3:]}], lr=0.01, **options)


def mixed(params: list[Tensor], **options: Any) -> Any:
    rules = "AdamW", "Lion", "LAMB"
    groups = [{"params": [param], "rule": rule} for param, rule in zip(params, rules, strict=False)]
    return optim.Mixed([*groups, {"params": params[3:], "rule": "SGD"}], **options)


def centered(*, step: Any) -> Any:
    return {"step": step - step.mean(dim=(1, 2), keepdim=True)}


def step_of(var: Any, grad: Any) -> Any:
    return grad + var * 0.5


def centering(var: Any, grad: Any, step: Any, *, learning_rate: Any) -> Any:
    return (var - learning_rate * step,)


CENTERING = Rule(
    name="Centering", update=centering, passes=(Pass(step_of, makes="step"), Stage(centered))
)


def of_matrices(params: list[Tensor], **options: Any) -> Any:
    """Return stages over matrices, some of them cut, beside a user's rule and a class."""
    noise = torch.Generator().manual_seed(2)
    shapes = (8, 6), (6, 6), (5, 4), (3,)
    params[:] = [torch.nn.Parameter(torch.randn(shape, generator=noise)) for shape in shapes]
    rules = {"rule": "NorMuon", "layout": "rows=5+3"}, {"rule": "SOAP"}, {"rule": CENTERING}
    groups = [{"params": [param], **rule} for param, rule in zip(params, rules, strict=False)]
    return optim.Mixed([*groups, {"params": params[3:], "rule": "SGD"}], **options)


def of_rows(params: list[Tensor], **options: Any) -> Any:
    """Return rules of rows and columns, and those of elements that they have for vectors."""
    rules = {"rule": "Adafactor"}, {"rule": "Adafactor"}, {"rule": "SM3", "momentum": 0.5}
    groups = [{"params": [param], **rule} for param, rule in zip(params, rules, strict=False)]
    return optim.Mixed([*groups, {"params": params[3:], "rule": "SM3"}], **options)


def in_session() -> Training:
    with _graph.Graph().as_default():
        x = _graph.placeholder(torch.float32, [40])
        w = _graph.Variable(torch.linspace(-1, 1, 40), name="w")
        opt = thalweg.v1.train.AdamOptimizer(0.1)
        count = thalweg.v1.train.get_or_create_global_step()
        op = opt.minimize(((w * x) ** 2).sum(), global_step=count)
        session = _graph.Session()
        session.run(_graph.global_variables_initializer())
        values = [w, count, *opt.variables()]

    def step(number: int) -> None:
        session.run(op, feed_dict={x: torch.full((40,), float(number + 1))})

    return Training(step, lambda: [torch.as_tensor(number) for number in session.run(values)])


class Hooked(keras.Optimizer):
    """A user's own update, in several statements."""

    def __init__(self) -> None:
        super().__init__("Hooked")

    def _create_slots(self, var_list: Any) -> None:
        for var in var_list:
            self.add_slot(var, "sum")

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> None:
        total = self.get_slot(var, "sum")
        total.add_(grad)
        var.sub_(total * 0.1)


def optimize(mixed: bool, skips: bool = False) -> Callable[[], Training]:
    def build() -> Training:
        dtype = torch.float16 if mixed else torch.float32
        weights = variables([dtype])
        number = [0]

        def loss() -> Tensor:
            grads = gradients(weights, number[0])
            if skips and number[0] % 3:
                grads[0][0, 0] = torch.inf
            return sum((var.float() * grad.float()).sum() for var, grad in zip(weights, grads))

        step = optimize_loss(
            loss, "Adam", {}, lambda count: 0.01, var_list=weights, clip_gradients=1.0,
            dtype="mixed" if mixed else torch.float32,
            loss_scaling="Backoff" if mixed else 1.0,
        )  # fmt: skip

        def once(count: int) -> None:
            number[0] = count
            step()

        return Training(once, lambda: [*weights, *step.state_dict().values()], moves=len(weights))

    return build


def told_of(optimizer: Any) -> Any:
    diagnostics.attach(optimizer, every=2)
    return optimizer


def clamped(x: Tensor) -> Tensor:
    return x.clamp(-1, 1)


TRAININGS: dict[str, Callable[[], Training]] = {
    "keras": of_keras(lambda: keras.Adam(0.01, global_clipnorm=1.0)),
    "keras mixed dtypes": of_keras(
        lambda: keras.Nadam(0.01),
        dtypes=[torch.float32, torch.float64, torch.bfloat16, torch.float16],
    ),
    "keras reference": of_keras(lambda: keras.Adam(0.01), engine="reference"),
    "keras sparse": of_keras(lambda: keras.Adam(0.01), sparse=True),
    "keras hooks": of_keras(Hooked),
    "keras twice": of_keras(lambda: keras.Adam(0.01), twice=True),
    "keras constrained": of_keras(
        lambda: keras.SGD(0.01, momentum=0.9), options={"constraint": clamped}
    ),
    "v1": of_v1(lambda: thalweg.v1.train.AdamOptimizer(0.01)),
    "keras diagnostics": of_keras(lambda: told_of(keras.Adam(0.01, global_clipnorm=1.0))),
    "v1 diagnostics": of_v1(lambda: told_of(thalweg.v1.train.AdamOptimizer(0.01))),
    "v1 sparse": of_v1(lambda: thalweg.v1.train.FtrlOptimizer(0.01), sparse=True),
    "optimize_loss": optimize(False),
    "optimize_loss mixed": optimize(True),
    "optimize_loss skipped": optimize(True, skips=True),
    "session": in_session,
    "optim": of_optim(lambda params: optim.AdamW(params, 0.01, clip_grad_norm=1.0)),
    "optim masters": of_optim(
        lambda params: optim.Adam(params, 0.01, masters=True), torch.bfloat16
    ),
    "optim diagnostics": of_optim(lambda params: optim.Adam(params, 0.01, diagnostics=1)),
    "optim many rules": of_optim(of_many_rules),
    "optim mixed": of_optim(lambda params: mixed(params, clip_grad_norm=1.0, ema_decay=0.9)),
    "optim rows": of_optim(lambda params: of_rows(params, clip_grad_norm=1.0)),
    "optim matrices": of_optim(lambda params: of_matrices(params, clip_grad_norm=1.0)),
    "optim tensorflow": of_optim(lambda params: optim.tensorflow.Nadam(params, 0.01)),
    "optim accumulate": of_optim(
        lambda params: optim.Adam(params, 0.01, accumulate=2, ema_decay=0.9, clip_grad_norm=1.0)
    ),
    "optim accumulate masters": of_optim(
        lambda params: optim.SGD(params, 0.01, momentum=0.9, accumulate=2, masters=True),
        torch.bfloat16,
    ),
    "optim accumulate rules": of_optim(lambda params: of_many_rules(params, accumulate=2)),
    "optim accumulate tensorflow": of_optim(
        lambda params: optim.tensorflow.Ftrl(params, 0.01, accumulate=2)
    ),
    "optim unscale": of_optim(unscaled),
    "optim scaler": scaled(lambda params: optim.Adam(params, 0.01, ema_decay=0.5)),
    "optim scaler unscale": scaled(
        lambda params: optim.Adam(params, 0.01, fused_unscale=True, clip_grad_norm=1.0)
    ),
    "optim scaler tensorflow": scaled(
        lambda params: optim.tensorflow.RMSprop(params, 0.01, fused_unscale=True)
    ),
    "optim state device": of_optim(
        lambda params: optim.AdamW(params, 0.01, state_device="cpu", masters=True, ema_decay=0.5),
        torch.bfloat16,
    ),
    "optim add": adding(lambda params: optim.Adam(params, 0.01, ema_decay=0.5)),
    "optim add tensorflow": adding(
        lambda params: optim.tensorflow.Nadam(params, 0.01, ema_decay=0.5)
    ),
    "optim add flat": adding(
        lambda params: optim.SGD(params, 0.01, momentum=0.9, gradients="flat")
    ),
    "optim add in backward": adding(lambda params: optim.Adam(params, 0.01, in_backward=True)),
    "optim narrow": of_optim(
        lambda params: optim.AdamW(
            params, 0.01, state_dtype=torch.bfloat16, clip_grad_value=0.1, ema_decay=0.5
        )
    ),
    "optim encoded": of_optim(
        lambda params: optim.AdamW(
            params, 0.01, state_storage="8bit", weights="split", ema_decay=0.5
        ),
        torch.bfloat16,
    ),
    "optim in common": of_optim(
        lambda params: optim.Prodigy(params, 1.0, d0=1e-3, ema_decay=0.5, accumulate=2)
    ),
    "optim clipped": of_optim(lambda params: optim.MARS(params, 0.01, mars_type="lion")),
    "optim in backward": in_backward(lambda params: optim.Adam(params, 0.01, in_backward=True)),
    "optim in backward tensorflow": in_backward(
        lambda params: optim.tensorflow.SGD(params, 0.01, momentum=0.9, in_backward=True)
    ),
    "optim skip": judged(
        lambda params, spikes: optim.Adam(params, 0.01, spikes=spikes, clip_grad_norm=1.0), "skip"
    ),
    "optim rollback": judged(
        lambda params, spikes: mixed(params, spikes=spikes, ema_decay=0.9), "rollback", keep=4
    ),
    "optim swapped": swapping,
    "optim flat": clearing,
    "optim load": loading(
        lambda params: optim.Adam(params, 0.01, masters=True, ema_decay=0.9, accumulate=2),
        torch.bfloat16,
    ),
    "optim load parts": loading(
        lambda params: optim.AdamW(params, 0.01, state_storage="8bit", weights="split"),
        torch.bfloat16,
        is_cut=True,
    ),
    "optim load tensorflow": loading(
        lambda params: optim.tensorflow.Adam(params, 0.01, ema_decay=0.9, accumulate=2)
    ),
}


PARTS = [",".join([*TRAININGS][part::6]) for part in range(6)]  # each as long as another
SUMMARY = (
    f"steps of {len(TRAININGS)} trainings, interrupted by SIGINT or an asynchronous exception at"
    " random moments, or at a random instruction"
)
_ALL = 10**9  # more instructions than a step has
# Steps so far apart have as many instructions: every second or third may add up, skip or average.
PERIOD = 12
CASES = {False: 20, True: 2000}  # of each training and kind
KINDS = ("signal", "exception", "opcode")
WRONG = ("torn", "false note")


def run_interrupted(
    names: str, kinds: str, count: int, seed: int, timeout: float, planted: str = ""
) -> tuple[dict[str, int], str]:
    """Run interrupted steps in a process; return the counts by outcome and the output.

    Args:
        names, kinds: Of `TRAININGS` and as in `interrupt`, with commas between them.
        count, seed: As in `interrupt`, for each of the trainings.
        timeout: Seconds after which the process has hung, and is told to say where.
        planted: A defect of `attack.planted` that the library is to have.

    Raises:
        RuntimeError: It failed or hung; tells all that it said, and which file keeps that.
    """
    command = [
        sys.executable,
        "-Xfaulthandler",
        "-m",
        "attack.interruptions",
        names,
        kinds,
        str(count),
        str(seed),
        planted,
    ]
    folders = [str(Path(__file__).parents[1]), *sys.path]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
    ) as child:  # fmt: skip
        try:
            output, err = child.communicate(timeout=timeout)
            end = f"ended with status {child.returncode}"
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGABRT)  # which has it tell where its threads are
            output, err = child.communicate()
            end = f"had not ended after {timeout} s"
    message = f"{command} {end}.\n{output}\n{err}"
    if child.returncode:
        with tempfile.NamedTemporaryFile("w", prefix="interruptions-", delete=False) as log:
            log.write(message)
        raise RuntimeError(f"{message}\nThis is kept in {log.name}.")
    return json.loads(output), message


def attack(long: bool, seed: int) -> Figures:
    """Run interrupted steps of each training, two processes at a time, in rounds over all."""
    figures, count = Figures(), CASES[False]
    with ThreadPoolExecutor(2) as pool:
        for run_seed in range(seed, seed + CASES[long] // count):
            if not clock.is_over():
                for part_figures in pool.map(attacked, PARTS, itertools.repeat(run_seed)):
                    figures.add(part_figures)
    return figures


def attacked(names: str, seed: int) -> Figures:
    figures, count = Figures(), CASES[False] * len(KINDS)
    try:
        outcomes, message = run_interrupted(names, ",".join(KINDS), CASES[False], seed, 900)
    except RuntimeError as error:
        outcomes, message = {"failed": count * len(names.split(","))}, str(error)
    if set(outcomes) & {*WRONG, "failed"}:
        figures.failures.append(f"seed {seed}: {message}")
    figures.kinds.update(outcomes)
    figures.cases += sum(outcomes.values())
    return figures


@dataclass
class Pair:
    """A training and its twin that nothing interrupts, after the same steps.

    Attributes:
        name: A key of `TRAININGS`.
        ours: The training.
        twin: The twin.
        number: The number of the next step.
        length: The seconds of a step.
    """

    name: str
    ours: Training
    twin: Training
    number: int
    length: float


def begin_pair(name: str) -> Pair:
    """Return a training and its twin after 13 steps."""
    training, twin = TRAININGS[name](), TRAININGS[name]()
    for number in range(3):
        training.take(number), twin.take(number)
    begin = time.perf_counter()
    for number in range(3, 13):
        training.take(number), twin.take(number)
    return Pair(name, training, twin, 13, (time.perf_counter() - begin) / 20)


def interrupt(pair: Pair, mode: str, count: int, seed: int = 0) -> dict[str, int]:
    """Run `count` interrupted steps.

    Args:
        pair: The training and its twin; both take the steps.
        mode: By "signal", by "exception", which comes between any two bytecodes, or at an "opcode",
            any of the library's, where some let no signal in.
        count: How many.
        seed: Chooses the moments.

    Returns:
        How many steps were "old", not taken; "new", taken; taken "without a constraint", as their
        exceptions say; "torn"; followed by a "false note"; or taken while the interruption was
        "lost", as it is in a destructor, where Python lets no exception through.
    """
    rng, lengths, outcomes = random.Random(seed), dict[int, float](), Counter[str]()
    if pair.name == "session" and mode == "opcode":
        mode = "exception"  # a graph's locks would stay taken, where no signal comes
    for _ in range(count):
        title = f"{pair.name}, {mode}, seed {seed}, step {pair.number}"
        outcomes[_interrupt_step(pair, mode, rng, lengths, title)] += 1
        pair.number += 1
    return dict(outcomes)


def _interrupt_step(
    pair: Pair, mode: str, rng: random.Random, lengths: dict[int, float], title: str
) -> str:
    """Run an interrupted step of a pair; return its outcome. Both have taken the step at the end.

    Args:
        pair: The training and its twin; if they cannot be made alike again, others replace them.
        mode: As in `interrupt`.
        rng: Draws the moment.
        lengths: The number of instructions of a step, by its place in a period; completed here.
        title: Of an outcome that is wrong.
    """
    training, twin, number, switches = pair.ours, pair.twin, pair.number, block_switches()
    training.ready(number), twin.ready(number)
    bits_before, phase = training.bits(), number % PERIOD
    if mode != "opcode" or phase in lengths:
        twin.step(number)
    else:
        remaining = outcome(_ALL, partial(twin.step, number), by_opcode=True)[1]
        lengths[phase] = float(_ALL - remaining)
    delay = rng.uniform(0, 1.2 * lengths.get(phase, pair.length))
    error, is_done = _interrupted(training, number, delay, mode)
    actual, expected = training.bits(), twin.bits()
    verdict = _judged(actual, bits_before, expected, error, is_done, training.moves)
    if block_switches() != switches:
        if not is_in_no_grad_of_torch(error):
            _tell(f"{pair.name}: {block_switches()} is switched, not {switches}", error)
            verdict = "torn"  # a step that follows would be another one
        torch.set_grad_enabled(True)
    if verdict in WRONG:
        _tell(f"{title}: {verdict}", error)
    if not is_done:
        training.end()
        actual = training.bits()
    if actual != expected:
        training.step(number)
        if training.bits() != expected:
            vars(pair).update(vars(begin_pair(pair.name)), number=12)
    return verdict


def _interrupted(
    training: Training, number: int, delay: float, mode: str
) -> tuple[BaseException | None, bool]:
    """Take a step that is interrupted after so many seconds, or instructions; the exception, if it
    came, and whether the step had come to its end by then."""
    if mode == "opcode":
        raised = outcome(int(delay), partial(training.step, number), by_opcode=True)[0]
        return raised or KeyboardInterrupt(), raised is None
    main, arrived = threading.get_ident(), list[bool]()
    gate = threading.Lock()
    gate.acquire()

    def send() -> None:
        gate.acquire()
        end = time.perf_counter() + delay
        while time.perf_counter() < end:
            time.sleep(0)
        if mode == "signal":
            os.kill(os.getpid(), signal.SIGINT)
        else:
            kind = ctypes.py_object(KeyboardInterrupt)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), kind)
            arrived.append(True)  # at the next instruction

    def arrive(*_: Any) -> None:
        arrived.append(True)
        raise KeyboardInterrupt

    # The step alone is interrupted, however late the signal comes: `threading` is Python code, and
    # an interruption of `start` or `join` may leave its locks taken.
    signal.signal(signal.SIGINT, arrive)
    thread = threading.Thread(target=send)
    thread.start()
    error, is_done = None, False
    try:
        gate.release()
        training.step(number)
        is_done = True
        while not arrived:
            time.sleep(0.001)
        time.sleep(0)
    except KeyboardInterrupt as error_info:
        error = error_info
    thread.join()
    return error, is_done


def is_in_no_grad_of_torch(error: BaseException | None) -> bool:
    """Return True if the interruption came while torch's own code entered or left `no_grad`.

    `GradScaler` has such blocks. Gradients stay disabled if it is interrupted in `__enter__`.
    """
    frames = [] if error is None else traceback.extract_tb(error.__traceback__)
    files = [Path(frame.filename) for frame in frames]  # the last may be the signal's handler
    library = Path(thalweg.__file__).parent
    return any(file.name == "grad_mode.py" for file in files) and not any(
        library in file.parents for file in files
    )


def _tell(message: str, error: BaseException | None) -> None:
    lines = [] if error is None else traceback.format_exception(error)
    sys.stderr.write("".join([message, "\n", *lines]))


def _judged(
    actual: list[bytes],
    old: list[bytes],
    new: list[bytes],
    error: BaseException | None,
    is_done: bool,
    moves: int,
) -> str:
    notes = getattr(error, "__notes__", [])
    denies_step = NOT_TAKEN in notes
    claims_step = any(note.startswith("The step was taken") for note in notes)
    if claims_step and moves and actual[:moves] == old[:moves]:
        return "false note"
    if actual == old:
        is_done = is_done and old != new  # a block of averages leaves everything as it was
        return "false note" if claims_step or is_done else "old"
    if actual == new:
        return "false note" if denies_step else "lost" if error is None else "new"
    lacks_constraint = any("without the constraint" in note for note in notes)
    return "without a constraint" if lacks_constraint and not denies_step else "torn"


def main(names: str, modes: str, count: str, seed: str = "0", planted: str = "") -> None:
    if planted:
        DEFECTS[planted]()
    warnings.simplefilter("ignore")
    torch.set_num_threads(2)
    encode_all()
    outcomes = Counter[str]()
    for name in names.split(","):
        try:
            pair = begin_pair(name)
            for kind in modes.split(","):
                outcomes.update(interrupt(pair, kind, int(count), int(seed)))
        except BaseException:
            _tell(f"{name}, {modes}, seed {seed}: failed", None)
            raise
    sys.stdout.write(json.dumps(outcomes))


if __name__ == "__main__":
    main(*sys.argv[1:])
