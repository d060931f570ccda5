"""Cases of ranks that share out matrices under rules with stages.

Run by `test_matrix_ranks.py` on each rank, as `rank_cases.py`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from inspect import signature
from itertools import cycle
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.distributed import checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.state_dict import (  # noqa: E402
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import (  # noqa: E402
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
)

import rank_cases  # noqa: E402
from matrix_inputs import SHAPES  # noqa: E402
from rank_cases import refused, whole  # noqa: E402
from thalweg import Hyper, Pass, Rule, Slot, Stage, Variable, optim  # noqa: E402
from thalweg.distribute import Strategy  # noqa: E402
from thalweg.distribute.process_group import Ranks  # noqa: E402
from thalweg.errors import ReplicaLostError  # noqa: E402
from thalweg.keras.optimizers import RuleOptimizer  # noqa: E402

CASES: dict[str, Callable[[int, int, Path], Any]] = {}
PLACES = (
    Shard(0), Shard(1), Shard(0), Shard(1), Replicate(), Shard(0), None, Shard(0), Shard(1),
)  # fmt: skip
ALL_SHAPES = (*SHAPES, (3, 4), (8, 8), (16, 16), (16, 16))
HEADS = {"heads": 2}
TYPES = (torch.bfloat16, torch.float32, torch.float64)
_SIDES = {"max_precondition_dim": 24}


def case(function: Callable[..., Any]) -> Callable[[int, int, Path], Any]:
    """Register a case under the name of its function."""
    CASES[function.__name__] = function
    return function


def ahead(var: Any, grad: Any, mean: Any, *, share: Any) -> Any:
    return mean * share + grad


def scale_rows(*, step: Tensor, rows: Tensor, share: Any, t: Any) -> dict[str, Tensor]:
    rows = share * rows + step.square().mean(dim=2, keepdim=True)
    return {"step": step / (rows.sqrt() + 1e-3), "rows": rows}


def center(*, step: Tensor) -> dict[str, Tensor]:
    return {"step": step - step.mean(dim=(1, 2), keepdim=True)}


def update(var: Any, grad: Any, step: Any, mean: Any, *, learning_rate: Any, share: Any) -> Any:
    return var - learning_rate * step, mean * share + grad


def one_per_row(rows: int, columns: int) -> tuple[int, int]:
    return rows, 1


SCALING = Rule(
    name="Scaled",
    passes=(Pass(ahead, makes="step"), Stage(scale_rows), Stage(center, every=3)),
    update=update,
    hypers=(Hyper("learning_rate", 0.02), Hyper("share", 0.5)),
    slots=(Slot("mean"), Slot("rows", shape=one_per_row)),
)


def turn_rows(*, step: Tensor, rows: Tensor) -> dict[str, Tensor]:
    return {"step": step * rows}


def add_noise(*, step: Tensor, random: Any) -> dict[str, Tensor]:
    return {"step": step + random.normal(*step.shape[1:])}


PROBED = replace(SCALING, passes=(*SCALING.passes, Stage(add_noise, seed=3)))
TWICE = replace(SCALING, passes=(*SCALING.passes[:2], Stage(turn_rows)))
Factory = Callable[[Any], Any]
MAKERS: dict[str, Factory] = {
    "Muon": lambda params: optim.Muon(params, lr=0.02),
    "Muon heads": lambda params: optim.Muon(params[:3], lr=0.02, **HEADS),
    "Muon clipped": lambda params: optim.Muon(params, lr=0.02, clip_grad_norm=0.5),
    "NorMuon": lambda params: optim.NorMuon(params, lr=0.02),
    "NorMuon averaged": lambda params: optim.NorMuon(params, lr=0.02, ema_decay=0.9),
    "AdaMuon": lambda params: optim.AdaMuon(params, lr=0.02),
    "MuonH": lambda params: optim.MuonH(params, lr=0.02),
    "SOAP": lambda params: optim.SOAP(params, lr=0.01, precondition_frequency=2, **_SIDES),
    "KLSOAP": lambda params: optim.KLSOAP(params, lr=0.01, precondition_frequency=2, **_SIDES),
    "SOAP of many types": lambda params: optim.SOAP(params, lr=0.01, **_SIDES),
    "SOAP heads": lambda params: optim.SOAP(params[:3], lr=0.01, **HEADS, **_SIDES),
    "a rule": lambda params: optim.RuleOptimizer(params, SCALING),
    "random numbers": lambda params: optim.RuleOptimizer(params, PROBED),
    "two stages": lambda params: optim.RuleOptimizer(params, TWICE),
    "a rule in Mixed": lambda params: optim.Mixed(
        [{"params": params[:2], "rule": SCALING}, {"params": params[2:], "rule": "Muon"}]
    ),
    "Mixed clipped": lambda params: optim.Mixed(
        [
            {"params": params[:2], "rule": "AdamW", "lr": 0.02},
            {"params": params[2:], "rule": "Muon", "lr": 0.02},
        ],
        clip_grad_norm=0.5,
    ),
}


def values(seed: int) -> list[Tensor]:
    dice = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=dice) for shape in ALL_SHAPES]


def placed(value: Tensor, mesh: Any, placement: Any) -> Tensor:
    if placement is None:
        return value.clone()
    placements = placement if isinstance(placement, tuple) else (placement,)
    return distribute_tensor(value.clone(), mesh, placements, src_data_rank=None)


def shared(mesh: Any, placements: Any = PLACES, dtypes: Any = (torch.float32,)) -> list[Tensor]:
    pairs = zip(alone(dtypes), placements, strict=True)
    return [placed(param.detach(), mesh, placement).requires_grad_() for param, placement in pairs]


def alone(dtypes: Any = (torch.float32,)) -> list[Tensor]:
    """Return the full parameters of `shared`; of several dtypes in turn."""
    pairs = zip(values(0), cycle(dtypes), strict=False)
    return [param.to(dtype).requires_grad_() for param, dtype in pairs]


def step(optimizer: Any, params: Any, seed: int, mesh: Any = None, placements: Any = PLACES) -> Any:
    grads = values(100 + seed)
    grad_placements = [None] * len(grads) if mesh is None else placements
    for param, grad, placement in zip(params, grads, grad_placements, strict=True):
        param.grad = placed(grad.to(param.dtype), mesh, placement)
    optimizer.step()


def states(optimizer: Any, params: Any) -> list[Tensor]:
    param_states = [optimizer.state.get(param, {}) for param in params]
    return [whole(state[name]) for state in param_states for name in sorted(state)]


def apart(ones: Any, expected: Any) -> float:
    """Return the largest difference, in units of the largest number of each tensor."""
    pairs = [(whole(a).detach().double(), b.detach().double()) for a, b in
             zip(ones, expected, strict=True)]  # fmt: skip
    return max((a - b).abs().max().item() / max(b.abs().max().item(), 1e-3)
               for a, b in pairs if b.numel())  # fmt: skip


@case
def trained(rank: int, count: int, _: Path) -> Any:
    """Train matrices cut along any dimension, uneven, on no rank but one, copied and alone."""
    mesh, report = init_device_mesh("cpu", (count,)), {}
    for name, make in MAKERS.items():
        dtypes = TYPES if "types" in name else (torch.float32,)
        sharded, reference = shared(mesh, PLACES, dtypes), alone(dtypes)
        optimizer, plain_opt = make(sharded), make(reference)
        for seed in range(5):
            step(optimizer, sharded, seed, mesh)
            step(plain_opt, reference, seed)
        report[name] = {
            "params": apart(sharded, reference),
            "state": apart(states(optimizer, sharded), states(plain_opt, reference)),
            "moved": apart(reference, alone(dtypes)),
            "count": optimizer.last_step.count,
            "shapes": all(
                (a.shape, a.dtype) == (b.shape, b.dtype)
                for a, b in zip(
                    states(optimizer, sharded), states(plain_opt, reference), strict=True
                )
            ),
            "has": sum(
                slot.to_local().nbytes
                for param in sharded
                for slot in optimizer.state.get(param, {}).values()
                if isinstance(slot, DTensor)
            ),
            "all": sum(
                slot.nbytes
                for param, shard in zip(reference, sharded, strict=True)
                for slot in plain_opt.state.get(param, {}).values()
                if isinstance(slot, Tensor) and isinstance(shard, DTensor)
            ),
            # What all ranks have a copy of has the same bits on all.
            "copies": whole(sharded[4]).flatten().tolist()[:9],
        }
    return report


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, 3))


def mixed(module: nn.Module, kind: str) -> Any:
    options = {"rule": kind, "lr": 0.02}
    return optim.Mixed(optim.groups(module, rules={2: options, 1: "AdamW"}), clip_grad_norm=1.0)


def turn(module: nn.Module, optimizer: Any, seed: int, reference: Any = None) -> None:
    dice = torch.Generator().manual_seed(seed)
    module(torch.randn(7, 6, generator=dice)).square().mean().backward()
    if reference is not None:
        for param, two in zip(module.parameters(), reference[0].parameters(), strict=True):
            two.grad = whole(param.grad)
        reference[1].step()
    optimizer.step()
    optimizer.zero_grad()


@case
def of_fully_shard(rank: int, count: int, folder: Path) -> Any:
    """Train with FSDP2 beside full parameters; save, and load on other ranks and on none."""
    report = {}
    for kind in ("Muon", "NorMuon", "SOAP"):
        trainings: list[Any] = []
        for is_cut in (True, False, True, True, False):
            module = model()
            if is_cut:
                fully_shard(module, mesh=init_device_mesh("cpu", (count,)))
            trainings.append((module, mixed(module, kind)))
        (module, optimizer), (reference, plain_opt), resumed, fifth, single = trainings
        for seed in range(3):
            turn(module, optimizer, seed, (reference, plain_opt))
        model_state, slots = get_state_dict(module, optimizer)
        dcp.save({"model": model_state, "optim": slots}, checkpoint_id=folder / f"matrices {kind}")
        options = StateDictOptions(full_state_dict=True)
        full = get_optimizer_state_dict(module, optimizer, options=options)
        model_state, slots = get_state_dict(*resumed)
        state = {"model": model_state, "optim": slots}
        dcp.load(state, checkpoint_id=folder / f"matrices {kind}")
        set_state_dict(*resumed, model_state_dict=state["model"], optim_state_dict=state["optim"])
        weights = {name: whole(tensor) for name, tensor in module.state_dict().items()}
        for training in (fifth, single):
            for param, value in zip(training[0].parameters(), weights.values(), strict=True):
                local = placed(value, param.device_mesh, param.placements) if isinstance(
                    param, DTensor) else value  # fmt: skip
                with torch.no_grad():
                    param.copy_(local)
            # On one rank the whole is the part itself.
            set_optimizer_state_dict(*training, optim_state_dict=deepcopy(full), options=options)
        for seed in range(3, 6):
            turn(module, optimizer, seed, (reference, plain_opt))
            for training in (resumed, fifth, single):
                turn(*training, seed)
        report[kind] = {
            "beside": apart(module.parameters(), reference.parameters()),
            **{name: apart(training[0].parameters(), [whole(p) for p in module.parameters()])
               for name, training in (("dcp", resumed), ("full", fifth), ("alone", single))},
        }  # fmt: skip
    return report


@case
def in_trouble(rank: int, count: int, _: Path) -> Any:  # noqa: C901
    """Raise in a step on one rank; report each rank's error and that nothing has changed."""
    mesh, report = init_device_mesh("cpu", (count,)), dict[str, Any]()
    fails: list[Any] = []

    def failing(**arguments: Any) -> dict[str, Tensor]:
        if fails:
            raise fails[0]
        return center(**arguments)

    failing.__signature__ = signature(center)  # pyright: ignore[reportFunctionMemberAccess]
    rule = replace(SCALING, passes=(*SCALING.passes[:2], Stage(failing)))
    makers: dict[str, Factory] = {
        "alone": lambda params: optim.RuleOptimizer(params, rule),
        "mixed": lambda params: optim.Mixed(
            [{"params": params[:1], "rule": "AdamW"}, {"params": params[1:], "rule": rule}]
        ),
        "mixed before": lambda params: optim.Mixed(
            [{"params": params[1:], "rule": rule}, {"params": params[:1], "rule": "AdamW"}],
            clip_grad_norm=0.5,
        ),
    }

    def in_stage() -> None:
        fails.append(ArithmeticError("no eigenvectors"))

    def interrupted() -> None:
        fails.append(KeyboardInterrupt("Ctrl-C"))

    def of_adamw(params: Any, optimizer: Any) -> Any:
        state = optimizer.state[params[0]]
        name = "exp_avg" if "exp_avg" in state else "mean"
        initial = state[name]
        state[name] = initial.new_zeros(1)
        return lambda: state.__setitem__(name, initial)

    for title, make in makers.items():
        params = shared(mesh)
        optimizer = make(params)
        step(optimizer, params, 0, mesh)
        initial = [whole(param).clone() for param in params]
        initial_state = [slot.clone() for slot in states(optimizer, params)]
        messages: dict[str, str] = {}
        for name in ("stage", "interrupted", "state", "lacking"):
            undo: Callable[[], Any] = fails.clear
            if rank == count - 1:
                if name == "state":
                    undo = of_adamw(params, optimizer)
                elif name != "lacking":
                    {"stage": in_stage, "interrupted": interrupted}[name]()
            try:
                grads = values(101)
                for param, grad, placement in zip(params, grads, PLACES, strict=True):
                    is_lacking = name == "lacking" and rank == count - 1 and param is params[2]
                    param.grad = None if is_lacking else placed(grad, mesh, placement)
                optimizer.step()
                messages[name] = "taken"
            except BaseException as error:
                notes = " ".join(getattr(error, "__notes__", ()))
                messages[name] = f"{type(error).__name__}: {error} | {notes}"
            undo()
            fails.clear()
        messages["unchanged"] = str(
            all(map(torch.equal, initial, map(whole, params)))
            and all(map(torch.equal, initial_state, states(optimizer, params)))
        )
        step(optimizer, params, 1, mesh)
        messages["after"] = str(optimizer.last_step.count)
        report[title] = messages
    return report


@case
def of_many_dimensions(rank: int, count: int, _: Path) -> Any:
    """Train copies of shards, and matrices cut along two dimensions of a mesh."""
    sides = (2, count // 2) if count % 2 == 0 else (1, count)
    mesh = init_device_mesh("cpu", sides, mesh_dim_names=("copies", "shards"))
    report: dict[str, Any] = {}
    placements = ((Replicate(), Shard(0)),) * len(ALL_SHAPES)
    sharded, reference = shared(mesh, placements), alone()
    for name in ("Muon", "SOAP"):
        optimizer, plain_opt = MAKERS[name](sharded), MAKERS[name](reference)
        for seed in range(3):
            step(optimizer, sharded, seed, mesh, placements)
            step(plain_opt, reference, seed)
        report[name] = apart(sharded, reference)
    flat = init_device_mesh("cpu", (count,))

    def taken(params: Any, kind: Any = optim.Muon) -> Any:
        full = [torch.ones(8, 4).requires_grad_() for _ in params]
        for param, one in zip(params, full, strict=True):
            param.grad, one.grad = param.detach(), one.detach()
        error = refused(kind(params).step)
        kind(full).step()
        return [error, all(torch.equal(whole(param), one) for param, one in zip(params, full))]

    def ones(device_mesh: Any, *placement: Any) -> Any:
        value = torch.ones(8, 4)
        return distribute_tensor(value, device_mesh, placement, src_data_rank=None).requires_grad_()

    def of_two(params: Any) -> Any:
        pairs = zip(params, ("Muon", "NorMuon"), strict=True)
        return optim.Mixed([{"params": [param], "rule": rule} for param, rule in pairs])

    report["both"] = taken([ones(mesh, Shard(0), Shard(1))])
    for name, kind in (("meshes", optim.Muon), ("rules", of_two)):
        report[name] = taken([ones(flat, Shard(0)), ones(mesh, Shard(0), Replicate())], kind)
    pending = DTensor.from_local(torch.ones(8, 4), flat, (Partial(),), run_check=False)
    report["pending"] = taken([pending.requires_grad_()])[0]
    keras, param = RuleOptimizer(SCALING), ones(flat, Shard(0))
    report["keras"] = refused(lambda: keras.apply_gradients([(param.detach(), param)]))
    report["unmoved"] = [pending.to_local().eq(1).all().item(), whole(param).eq(1).all().item()]
    return report


@case
def messages(rank: int, count: int, _: Path) -> Any:
    """Count messages: none of a stage that is not due, no stage in a step that is skipped."""
    mesh = init_device_mesh("cpu", (count,))
    sizes, calls = list[int](), list[int]()
    real = Ranks.begin_exchanging

    def exchange(self: Any, parts: Any, outputs: Any) -> Any:
        sizes.append(sum(part.numel() for part in parts))
        return real(self, parts, outputs)

    def counted(*, step: Tensor) -> dict[str, Tensor]:
        calls.append(len(step))
        return {"step": -step}

    def seen(*, step: Tensor) -> dict[str, Tensor]:
        return {}

    rule = replace(
        SCALING, passes=(SCALING.passes[0], Stage(counted, every=3)), slots=(Slot("mean"),)
    )
    params = shared(mesh)
    optimizer = optim.RuleOptimizer(params, rule)
    calls.clear()  # those of `check_rule`
    Ranks.begin_exchanging = exchange
    report: dict[str, Any] = {"sent": [], "called": []}
    try:
        for seed in range(5):
            step(optimizer, params, seed, mesh)
            report["sent"].append(len(sizes))
            report["called"].append(sum(calls))
    finally:
        Ranks.begin_exchanging = real
    cut = [param for param in shared(mesh) if isinstance(param, DTensor)]
    skipping = optim.RuleOptimizer(cut, rule, fused_unscale=True)
    runs = len(calls)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(torch.zeros(()))
    for param in cut:
        grad = torch.ones(param.shape)
        grad.ravel()[-1] = torch.inf  # which the last rank alone has
        param.grad = placed(grad, mesh, param.placements)
    scaler.step(skipping)
    report["left out"] = [skipping.last_step.taken, len(calls) - runs]
    optimizer = optim.RuleOptimizer(shared(mesh), TWICE)
    Ranks.begin_exchanging, start = exchange, len(sizes)
    try:
        step(optimizer, optimizer.param_groups[0]["params"], 0, mesh)
    finally:
        Ranks.begin_exchanging = real
    report["twice"] = sizes[start:]
    looking = replace(SCALING, passes=(SCALING.passes[0], Stage(seen)), slots=(Slot("mean"),))
    pairs = [(params, optim.RuleOptimizer(params, looking)) for params in (shared(mesh), values(0))]
    step(pairs[0][1], pairs[0][0], 0, mesh)
    step(pairs[1][1], pairs[1][0], 0)
    report["looked"] = apart(pairs[0][0], pairs[1][0])
    muon = optim.Muon(shared(mesh))
    optimizer.step()
    vector = distribute_tensor(torch.ones(4), mesh, (Shard(0),), src_data_rank=None)
    report["vector"] = refused(partial(optim.Muon, [vector.requires_grad_()]))
    report["groups"] = len(muon.param_groups)
    return report


@case
def of_strategies(rank: int, count: int, _: Path) -> Any:
    """Train copies of variables on all ranks, whose gradients a strategy sums."""
    report: dict[str, Any] = {}
    for is_shared in (False, True):
        strategy = Strategy(shard_slots=is_shared)
        var, full = (Variable(values(0)[0], name="w") for _ in range(2))
        optimizer, plain_opt = RuleOptimizer(SCALING), RuleOptimizer(SCALING)
        for seed in range(3):
            grad = values(seed)[1].t().contiguous()
            pairs = [(grad * (1.0 if rank == 0 else 0.5), var)]
            text = refused(partial(strategy.run, optimizer.apply_gradients, (pairs,)))
            plain_opt.apply_gradients([(grad * (1 + 0.5 * (count - 1)), full)])
        report[str(is_shared)] = [text, apart([var], [full]) < 1e-5, torch.equal(var, values(0)[0])]
    return report


def killed(rank: int, count: int, _: Path, index: int) -> None:
    """End rank 1 during an exchange, and report the message of the first rank."""
    mesh = init_device_mesh("cpu", (count,))
    params, number = shared(mesh), [0]
    optimizer = optim.NorMuon(params)
    step(optimizer, params, 0, mesh)
    initial = [tensor.clone() for param in params
              for tensor in (param.detach(), *optimizer.state[param].values())]  # fmt: skip
    real = Ranks.begin_exchanging

    def exchange(self: Any, parts: Any, outputs: Any) -> Any:
        number[0] += 1
        if rank == 1 and number[0] == index:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, parts, outputs)

    Ranks.begin_exchanging = exchange
    messages = ["taken"]
    try:
        step(optimizer, params, 1, mesh)
    except ReplicaLostError as error:
        messages = [str(error), *error.__notes__]
    final = [tensor for param in params
           for tensor in (param.detach(), *optimizer.state[param].values())]  # fmt: skip
    pairs = [[tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in pair]
             for pair in zip(initial, final, strict=True)]  # fmt: skip
    sys.stdout.write(json.dumps([*messages, all(torch.equal(*pair) for pair in pairs)]) + "\n")
    sys.stdout.flush()
    os._exit(0)  # a group without one of its ranks cannot be left


LOST_CASES = {f"killed {index}": partial(killed, index=index) for index in (1, 2)}

if __name__ == "__main__":
    rank_cases.CASES.clear()
    rank_cases.CASES.update({**CASES, **LOST_CASES})
    rank_cases.main()
