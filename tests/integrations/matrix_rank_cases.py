"""What ranks do in tests that share out matrices under rules with stages.

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
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor  # noqa: E402

import rank_cases  # noqa: E402
from matrix_inputs import SHAPES  # noqa: E402
from rank_cases import refused, whole  # noqa: E402
from thalweg import Hyper, Pass, Rule, Slot, Stage, Variable, optim  # noqa: E402
from thalweg.distribute import Strategy  # noqa: E402
from thalweg.distribute.process_group import Ranks  # noqa: E402
from thalweg.errors import ReplicaLostError  # noqa: E402
from thalweg.keras.optimizers import RuleOptimizer  # noqa: E402

CASES: dict[str, Callable[[int, int, Path], Any]] = {}
PLACED = (
    Shard(0), Shard(1), Shard(0), Shard(1), Replicate(), Shard(0), None, Shard(0), Shard(1),
)  # fmt: skip
ALL_SHAPES = (*SHAPES, (3, 4), (8, 8), (16, 16), (16, 16))
HEADS = {"heads": 2}
TYPES = (torch.bfloat16, torch.float32, torch.float64)
_SIDES = {"max_precondition_dim": 24}


def case(function: Callable[[int, int, Path], Any]) -> Callable[[int, int, Path], Any]:
    """A case of that name."""
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


SCALED = Rule(
    name="Scaled",
    passes=(Pass(ahead, makes="step"), Stage(scale_rows), Stage(center, every=3)),
    update=update,
    hypers=(Hyper("learning_rate", 0.02), Hyper("share", 0.5)),
    slots=(Slot("mean"), Slot("rows", shape=one_per_row)),
)


def turn_rows(*, step: Tensor, rows: Tensor) -> dict[str, Tensor]:
    return {"step": step * rows}


TWICE = replace(SCALED, passes=(*SCALED.passes[:2], Stage(turn_rows)))
Made = Callable[[Any], Any]
MAKERS: dict[str, Made] = {
    "Muon": lambda params: optim.Muon(params, lr=0.02),
    "Muon heads": lambda params: optim.Muon(params[:3], lr=0.02, **HEADS),
    "Muon clipped": lambda params: optim.Muon(params, lr=0.02, clip_grad_norm=0.5),
    "NorMuon": lambda params: optim.NorMuon(params, lr=0.02),
    "NorMuon averaged": lambda params: optim.NorMuon(params, lr=0.02, ema_decay=0.9),
    "MuonH": lambda params: optim.MuonH(params, lr=0.02),
    "SOAP": lambda params: optim.SOAP(params, lr=0.01, precondition_frequency=2, **_SIDES),
    "KLSOAP": lambda params: optim.KLSOAP(params, lr=0.01, precondition_frequency=2, **_SIDES),
    "SOAP of many types": lambda params: optim.SOAP(params, lr=0.01, **_SIDES),
    "SOAP heads": lambda params: optim.SOAP(params[:3], lr=0.01, **HEADS, **_SIDES),
    "a rule": lambda params: optim.RuleOptimizer(params, SCALED),
    "two stages": lambda params: optim.RuleOptimizer(params, TWICE),
    "a rule in Mixed": lambda params: optim.Mixed(
        [{"params": params[:2], "rule": SCALED}, {"params": params[2:], "rule": "Muon"}]
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


def shared(mesh: Any, placements: Any = PLACED, dtypes: Any = (torch.float32,)) -> list[Tensor]:
    pairs = zip(alone(dtypes), placements, strict=True)
    return [placed(each.detach(), mesh, placement).requires_grad_() for each, placement in pairs]


def alone(dtypes: Any = (torch.float32,)) -> list[Tensor]:
    """The same as a whole; of several dtypes in turn."""
    pairs = zip(values(0), cycle(dtypes), strict=False)
    return [each.to(dtype).requires_grad_() for each, dtype in pairs]


def step(optimizer: Any, params: Any, seed: int, mesh: Any = None, placements: Any = PLACED) -> Any:
    grads = values(100 + seed)
    given = [None] * len(grads) if mesh is None else placements
    for param, grad, placement in zip(params, grads, given, strict=True):
        param.grad = placed(grad.to(param.dtype), mesh, placement)
    optimizer.step()


def states(optimizer: Any, params: Any) -> list[Tensor]:
    own = [optimizer.state.get(param, {}) for param in params]
    return [whole(each[name]) for each in own for name in sorted(each)]


def apart(ones: Any, others: Any) -> float:
    """How far tensors are apart, in units of the larger ones of each."""
    pairs = [(whole(a).detach().double(), b.detach().double()) for a, b in
             zip(ones, others, strict=True)]  # fmt: skip
    return max((a - b).abs().max().item() / max(b.abs().max().item(), 1e-3)
               for a, b in pairs if b.numel())  # fmt: skip


@case
def trained(rank: int, count: int, _: Path) -> Any:
    """Matrices cut along any dimension, uneven, on no rank but one, copied and alone."""
    mesh, found = init_device_mesh("cpu", (count,)), {}
    for name, make in MAKERS.items():
        dtypes = TYPES if "types" in name else (torch.float32,)
        own, other = shared(mesh, PLACED, dtypes), alone(dtypes)
        optimizer, plain = make(own), make(other)
        for seed in range(5):
            step(optimizer, own, seed, mesh)
            step(plain, other, seed)
        found[name] = {
            "params": apart(own, other),
            "state": apart(states(optimizer, own), states(plain, other)),
            "moved": apart(other, alone(dtypes)),
            "count": optimizer.last_step.count,
            "shapes": all(
                (a.shape, a.dtype) == (b.shape, b.dtype)
                for a, b in zip(states(optimizer, own), states(plain, other), strict=True)
            ),
            "has": sum(
                each.to_local().nbytes
                for param in own
                for each in optimizer.state.get(param, {}).values()
                if isinstance(each, DTensor)
            ),
            "all": sum(
                each.nbytes
                for param, mine in zip(other, own, strict=True)
                for each in plain.state.get(param, {}).values()
                if isinstance(each, Tensor) and isinstance(mine, DTensor)
            ),
            # What all ranks have a copy of has the same bits on all.
            "copies": whole(own[4]).flatten().tolist()[:9],
        }
    return found


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, 3))


def mixed(module: nn.Module, kind: str) -> Any:
    given = {"rule": kind, "lr": 0.02}
    return optim.Mixed(optim.groups(module, rules={2: given, 1: "AdamW"}), clip_grad_norm=1.0)


def turn(module: nn.Module, optimizer: Any, seed: int, beside: Any = None) -> None:
    dice = torch.Generator().manual_seed(seed)
    module(torch.randn(7, 6, generator=dice)).square().mean().backward()
    if beside is not None:
        for one, two in zip(module.parameters(), beside[0].parameters(), strict=True):
            two.grad = whole(one.grad)
        beside[1].step()
    optimizer.step()
    optimizer.zero_grad()


@case
def of_fully_shard(rank: int, count: int, folder: Path) -> Any:
    """FSDP2 beside a training of whole parameters; saved, loaded on other ranks and on none."""
    found = {}
    for kind in ("Muon", "NorMuon", "SOAP"):
        made: list[Any] = []
        for is_cut in (True, False, True, True, False):
            module = model()
            if is_cut:
                fully_shard(module, mesh=init_device_mesh("cpu", (count,)))
            made.append((module, mixed(module, kind)))
        (module, optimizer), (other, plain), again, fifth, alone = made
        for seed in range(3):
            turn(module, optimizer, seed, (other, plain))
        kept, own = get_state_dict(module, optimizer)
        dcp.save({"model": kept, "optim": own}, checkpoint_id=folder / f"matrices {kind}")
        options = StateDictOptions(full_state_dict=True)
        full = get_optimizer_state_dict(module, optimizer, options=options)
        kept, own = get_state_dict(*again)
        state = {"model": kept, "optim": own}
        dcp.load(state, checkpoint_id=folder / f"matrices {kind}")
        set_state_dict(*again, model_state_dict=state["model"], optim_state_dict=state["optim"])
        weights = {name: whole(each) for name, each in module.state_dict().items()}
        for each in (fifth, alone):
            for param, value in zip(each[0].parameters(), weights.values(), strict=True):
                local = placed(value, param.device_mesh, param.placements) if isinstance(
                    param, DTensor) else value  # fmt: skip
                with torch.no_grad():
                    param.copy_(local)
            # On one rank the whole is the part itself.
            set_optimizer_state_dict(*each, optim_state_dict=deepcopy(full), options=options)
        for seed in range(3, 6):
            turn(module, optimizer, seed, (other, plain))
            for each in (again, fifth, alone):
                turn(*each, seed)
        found[kind] = {
            "beside": apart(module.parameters(), other.parameters()),
            **{name: apart(each[0].parameters(), [whole(p) for p in module.parameters()])
               for name, each in (("dcp", again), ("full", fifth), ("alone", alone))},
        }  # fmt: skip
    return found


@case
def in_trouble(rank: int, count: int, _: Path) -> Any:
    """What all ranks say of a step that fails on one, and that nothing has changed."""
    mesh, found = init_device_mesh("cpu", (count,)), dict[str, Any]()
    fails: list[Any] = []

    def failing(**given: Any) -> dict[str, Tensor]:
        if fails:
            raise fails[0]
        return center(**given)

    failing.__signature__ = signature(center)  # pyright: ignore[reportFunctionMemberAccess]
    rule = replace(SCALED, passes=(*SCALED.passes[:2], Stage(failing)))
    makers: dict[str, Made] = {
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
        own = optimizer.state[params[0]]
        name = "exp_avg" if "exp_avg" in own else "mean"
        before = own[name]
        own[name] = before.new_zeros(1)
        return lambda: own.__setitem__(name, before)

    for title, make in makers.items():
        params = shared(mesh)
        optimizer = make(params)
        step(optimizer, params, 0, mesh)
        before = [whole(each).clone() for each in params]
        kept = [each.clone() for each in states(optimizer, params)]
        said: dict[str, str] = {}
        for name in ("stage", "interrupted", "state", "lacking"):
            undo: Callable[[], Any] = fails.clear
            if rank == count - 1:
                if name == "state":
                    undo = of_adamw(params, optimizer)
                elif name != "lacking":
                    {"stage": in_stage, "interrupted": interrupted}[name]()
            try:
                grads = values(101)
                for param, grad, placement in zip(params, grads, PLACED, strict=True):
                    is_left = name == "lacking" and rank == count - 1 and param is params[2]
                    param.grad = None if is_left else placed(grad, mesh, placement)
                optimizer.step()
                said[name] = "taken"
            except BaseException as error:
                notes = " ".join(getattr(error, "__notes__", ()))
                said[name] = f"{type(error).__name__}: {error} | {notes}"
            undo()
            fails.clear()
        said["unchanged"] = str(
            all(map(torch.equal, before, map(whole, params)))
            and all(map(torch.equal, kept, states(optimizer, params)))
        )
        step(optimizer, params, 1, mesh)
        said["after"] = str(optimizer.last_step.count)
        found[title] = said
    return found


@case
def of_many_dimensions(rank: int, count: int, _: Path) -> Any:
    """Copies of shards, and what is cut along two dimensions of a mesh."""
    sides = (2, count // 2) if count % 2 == 0 else (1, count)
    mesh = init_device_mesh("cpu", sides, mesh_dim_names=("copies", "shards"))
    found: dict[str, Any] = {}
    placements = ((Replicate(), Shard(0)),) * len(ALL_SHAPES)
    own, other = shared(mesh, placements), alone()
    for name in ("Muon", "SOAP"):
        optimizer, plain = MAKERS[name](own), MAKERS[name](other)
        for seed in range(3):
            step(optimizer, own, seed, mesh, placements)
            step(plain, other, seed)
        found[name] = apart(own, other)
    flat = init_device_mesh("cpu", (count,))

    def taken(params: Any, grads: Any, kind: Any = optim.Muon) -> str:
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        return refused(kind(params).step)

    def ones(on: Any, *placement: Any) -> Any:
        value = torch.ones(8, 4)
        return distribute_tensor(value, on, placement, src_data_rank=None).requires_grad_()

    both = ones(mesh, Shard(0), Shard(1))
    found["both"] = taken([both], [both.detach()])
    one, two = ones(flat, Shard(0)), ones(mesh, Shard(0), Replicate())
    found["meshes"] = taken([one, two], [one.detach(), two.detach()])

    def of_two(params: Any) -> Any:
        pairs = zip(params, ("Muon", "NorMuon"), strict=True)
        return optim.Mixed([{"params": [param], "rule": rule} for param, rule in pairs])

    found["rules"] = taken([one, two], [one.detach(), two.detach()], of_two)
    keras = RuleOptimizer(SCALED)
    found["keras"] = refused(lambda: keras.apply_gradients([(one.detach(), one)]))
    found["moved"] = [whole(each).eq(1).all().item() for each in (both, one, two)]
    return found


@case
def messages(rank: int, count: int, _: Path) -> Any:
    """A stage that is not due sends nothing; a step that is not taken runs no stage."""
    mesh = init_device_mesh("cpu", (count,))
    sent, called = list[int](), list[int]()
    real = Ranks.begin_exchanging

    def exchange(self: Any, parts: Any, found: Any) -> Any:
        sent.append(sum(each.numel() for each in parts))
        return real(self, parts, found)

    def counted(*, step: Tensor) -> dict[str, Tensor]:
        called.append(len(step))
        return {"step": -step}

    def seen(*, step: Tensor) -> dict[str, Tensor]:
        return {}

    rule = replace(
        SCALED, passes=(SCALED.passes[0], Stage(counted, every=3)), slots=(Slot("mean"),)
    )
    params = shared(mesh)
    optimizer = optim.RuleOptimizer(params, rule)
    called.clear()  # those of `check_rule`
    Ranks.begin_exchanging = exchange
    found: dict[str, Any] = {"sent": [], "called": []}
    try:
        for seed in range(5):
            step(optimizer, params, seed, mesh)
            found["sent"].append(len(sent))
            found["called"].append(sum(called))
    finally:
        Ranks.begin_exchanging = real
    cut = [param for param in shared(mesh) if isinstance(param, DTensor)]
    left = optim.RuleOptimizer(cut, rule, fused_unscale=True)
    runs = len(called)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(torch.zeros(()))
    for param in cut:
        grad = torch.ones(param.shape)
        grad.ravel()[-1] = torch.inf  # which the last rank alone has
        param.grad = placed(grad, mesh, param.placements)
    scaler.step(left)
    found["left out"] = [left.last_step.taken, len(called) - runs]
    optimizer = optim.RuleOptimizer(shared(mesh), TWICE)
    Ranks.begin_exchanging, before = exchange, len(sent)
    try:
        step(optimizer, optimizer.param_groups[0]["params"], 0, mesh)
    finally:
        Ranks.begin_exchanging = real
    found["twice"] = sent[before:]
    looking = replace(SCALED, passes=(SCALED.passes[0], Stage(seen)), slots=(Slot("mean"),))
    pairs = [(each, optim.RuleOptimizer(each, looking)) for each in (shared(mesh), values(0))]
    step(pairs[0][1], pairs[0][0], 0, mesh)
    step(pairs[1][1], pairs[1][0], 0)
    found["looked"] = apart(pairs[0][0], pairs[1][0])
    muon = optim.Muon(shared(mesh))
    optimizer.step()
    vector = distribute_tensor(torch.ones(4), mesh, (Shard(0),), src_data_rank=None)
    found["vector"] = refused(partial(optim.Muon, [vector.requires_grad_()]))
    found["groups"] = len(muon.param_groups)
    return found


@case
def of_strategies(rank: int, count: int, _: Path) -> Any:
    """Copies of variables on all ranks, whose gradients a strategy sums."""
    found: dict[str, Any] = {}
    for is_shared in (False, True):
        strategy = Strategy(shard_slots=is_shared)
        own, other = (Variable(values(0)[0], name="w") for _ in range(2))
        optimizer, plain = RuleOptimizer(SCALED), RuleOptimizer(SCALED)
        for seed in range(3):
            grad = values(seed)[1].t().contiguous()
            pairs = [(grad * (1.0 if rank == 0 else 0.5), own)]
            said = refused(partial(strategy.run, optimizer.apply_gradients, (pairs,)))
            plain.apply_gradients([(grad * (1 + 0.5 * (count - 1)), other)])
        found[str(is_shared)] = [said, apart([own], [other]) < 1e-5, torch.equal(own, values(0)[0])]
    return found


def killed(rank: int, count: int, _: Path, at: int) -> None:
    """Rank 1 ends while its parts are under way, or those of others: what the first one finds."""
    mesh = init_device_mesh("cpu", (count,))
    params, number = shared(mesh), [0]
    optimizer = optim.NorMuon(params)
    step(optimizer, params, 0, mesh)
    before = [each.clone() for param in params
              for each in (param.detach(), *optimizer.state[param].values())]  # fmt: skip
    real = Ranks.begin_exchanging

    def exchange(self: Any, parts: Any, found: Any) -> Any:
        number[0] += 1
        if rank == 1 and number[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, parts, found)

    Ranks.begin_exchanging = exchange
    said = ["taken"]
    try:
        step(optimizer, params, 1, mesh)
    except ReplicaLostError as error:
        said = [str(error), *error.__notes__]
    now = [each for param in params
           for each in (param.detach(), *optimizer.state[param].values())]  # fmt: skip
    pairs = [[each.to_local() if isinstance(each, DTensor) else each for each in pair]
             for pair in zip(before, now, strict=True)]  # fmt: skip
    sys.stdout.write(json.dumps([*said, all(torch.equal(*pair) for pair in pairs)]) + "\n")
    sys.stdout.flush()
    os._exit(0)  # a group without one of its ranks cannot be left


LOST = {f"killed {at}": partial(killed, at=at) for at in (1, 2)}

if __name__ == "__main__":
    rank_cases.CASES.clear()
    rank_cases.CASES.update({**CASES, **LOST})
    rank_cases.main()
