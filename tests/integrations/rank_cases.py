"""Cases of torch's own distributed packages, which run on every rank and return a report.

Run by `test_ranks.py` on each rank: rank, a file to meet, the number of ranks, a folder.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]

from torch.distributed import checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.state_dict import (  # noqa: E402
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import (  # noqa: E402
    FullyShardedDataParallel,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.tensor import (  # noqa: E402
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from busy import scale_to_load  # noqa: E402
from thalweg import optim  # noqa: E402
from thalweg.diagnostics.step_watch import StepWatch  # noqa: E402
from thalweg.errors import NumericsWarning  # noqa: E402
from thalweg.optim.diagnostics import COLUMNS  # noqa: E402
from training import data, loss_of, model, numbers  # noqa: E402

CASES: dict[str, Callable[[int, int, Path], Any]] = {}
ROUNDING: dict[str, Any] = {"round": "stochastic", "seed": 7, "state_dtype": torch.bfloat16}
MAKERS: dict[str, Callable[[Any], Any]] = {
    "Adam": lambda params: optim.Adam(params, lr=0.05),
    "SGD": lambda params: optim.SGD(params, lr=0.05, momentum=0.9),
    "tensorflow.Adam": lambda params: optim.tensorflow.Adam(params, lr=0.05),
    "tensorflow.Ftrl": lambda params: optim.tensorflow.Ftrl(params, lr=0.05, l1=0.001),
    "rounded": lambda params: optim.AdamW(params, lr=0.05, **ROUNDING),
    "tensorflow.rounded": lambda params: optim.tensorflow.Adam(params, lr=0.05, **ROUNDING),
}


def case(function: Callable[..., Any]) -> Callable[[int, int, Path], Any]:
    """Register a case under the name of its function."""
    CASES[function.__name__] = function
    return function


def whole(tensor: Tensor) -> Tensor:
    """Return the full tensor of a DTensor."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def as_lists(tensors: list[Tensor]) -> list[list[float]]:
    """Convert tensors for JSON, without loss."""
    return [whole(tensor).detach().double().flatten().tolist() for tensor in tensors]


def steps(module: nn.Module, optimizer: Any, batches: Any) -> None:
    for batch in batches:
        loss_of(module, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


FLATTENED: dict[str, Callable[[Any], Any]] = {
    "torch": lambda params: torch.optim.AdamW(params, lr=0.05),
    "AdamW": lambda params: optim.AdamW(params, lr=0.05),
    "LAMB": lambda params: optim.LAMB(params),
    "clipped": lambda params: optim.AdamW(params, clip_grad_norm=1.0),
    "Prodigy": lambda params: optim.Prodigy(params),
    "trust_ratio": lambda params: optim.SGD(params, lr=0.05, trust_ratio=True),
}


@case
def flat_buffers(rank: int, count: int, _: Path) -> Any:
    """Train parameters that FSDP1 has flattened: report numbers after two steps, or the error."""
    report: dict[str, dict[str, Any]] = {}
    strategies = {"shards": ShardingStrategy.FULL_SHARD, "whole": ShardingStrategy.NO_SHARD}
    for title, strategy in strategies.items():
        for keeps_params in (False, True):
            outcomes = report[f"{title}, {keeps_params}"] = {}
            for name, make in FLATTENED.items():
                torch.manual_seed(0)
                layers = nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    module = FullyShardedDataParallel(
                        nn.Sequential(*layers),
                        sharding_strategy=strategy,
                        use_orig_params=keeps_params,
                        device_id=torch.device("cpu"),
                    )
                try:
                    optimizer = make(module.parameters())
                    for _step in range(2):
                        module(torch.ones(2, 4)).square().mean().backward()
                        optimizer.step()
                    outcomes[name] = module(torch.ones(2, 4)).tolist()
                except ValueError as error:
                    outcomes[name] = str(error)
    return report


@case
def ddp(rank: int, count: int, _: Path) -> Any:
    """Train with a part of each batch per rank; all ranks have the same numbers in the end."""
    report = {}
    for name, make in MAKERS.items():
        module = DistributedDataParallel(model())
        optimizer = make(module.parameters())
        steps(module, optimizer, [(x[rank::count], y[rank::count]) for x, y in data()])
        report[name] = as_lists(numbers(module, optimizer))
    return report


@case
def zero(rank: int, count: int, _: Path) -> Any:
    """Train with the state of some parameters on each rank, and with all of it on one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its compiler of before
        from torch.distributed.optim import ZeroRedundancyOptimizer
    report = {}
    for cls, extra in (
        (optim.Adam, {}),
        (optim.SGD, {"momentum": 0.9}),
        (optim.tensorflow.Adam, {}),
        (optim.tensorflow.Ftrl, {"l1": 0.001}),
    ):
        module, reference = (DistributedDataParallel(model()) for _ in range(2))
        shared = ZeroRedundancyOptimizer(module.parameters(), optimizer_class=cls, lr=0.05, **extra)
        plain_opt = cls(reference.parameters(), lr=0.05, **extra)
        for batches in (data()[:4], data()[4:]):
            for net, optimizer in ((module, shared), (reference, plain_opt)):
                steps(net, optimizer, [(x[rank::count], y[rank::count]) for x, y in batches])
            shared.consolidate_state_dict()
            state = shared.state_dict() if rank == 0 else None
            if rank == 0:
                single = cls([p.detach().clone() for p in module.parameters()], lr=0.05, **extra)
                single.load_state_dict(state)
        matches = [torch.equal(a, b) for a, b in zip(module.parameters(), reference.parameters())]
        report[cls.__module__ + cls.__name__] = [matches, len(shared.optim.state)]
    return report


def loaded(make: Any, path: Path) -> tuple[nn.Module, Any]:
    """Return a new model and its optimizer with a saved state; nothing moves before."""
    module = model()
    optimizer = make(module.parameters())
    model_state, optim_state = get_state_dict(module, optimizer)
    assert all(map(torch.equal, module.parameters(), model().parameters()))
    state = {"model": model_state, "optim": optim_state}
    dcp.load(state, checkpoint_id=path, no_dist=not distributed.is_initialized())
    set_state_dict(
        module, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"]
    )
    return module, optimizer


@case
def saved_together(rank: int, count: int, folder: Path) -> Any:
    """Save on all ranks together, load, and continue."""
    report = {}
    for name, make in MAKERS.items():
        module = model()
        optimizer = make(module.parameters())
        steps(module, optimizer, data()[:4])
        model_state, optim_state = get_state_dict(module, optimizer)
        dcp.save({"model": model_state, "optim": optim_state}, checkpoint_id=folder / name)
        steps(module, optimizer, data()[4:])
        target, resumed = loaded(make, folder / name)
        steps(target, resumed, data()[4:])
        pairs = zip(numbers(module, optimizer), numbers(target, resumed), strict=True)
        report[name] = all(torch.equal(actual, expected) for actual, expected in pairs)
    return report


SHARDED: dict[str, Callable[[Any], Any]] = {
    **MAKERS,
    "clipped": lambda params: optim.Adam(params, lr=0.05, clip_grad_norm=0.1),
    "clipped apart": lambda params: optim.RMSprop(
        [{"params": [p], "momentum": 0.2 * k} for k, p in enumerate(params)],
        lr=0.05,
        clip_grad_norm=0.1,
    ),
    "averaged": lambda params: optim.AdamW(params, lr=0.05, ema_decay=0.9),
    "cautious": lambda params: optim.AdamW(params, lr=0.05, cautious=True, cautious_decay=True),
    "MARS": lambda params: optim.MARS(params, lr=0.05),
    "Prodigy": lambda params: optim.Prodigy(params, d0=1e-2),
    "on a sphere": lambda params: optim.NAdam(params, lr=0.05, sphere=True),
    "tensorflow.trust ratio": lambda params: optim.tensorflow.SGD(params, 0.05, trust_ratio=True),
    "tensorflow.clipped": lambda params: optim.tensorflow.Adam(params, 0.05, clip_grad_norm=0.1),
    "tensorflow.averaged": lambda params: optim.tensorflow.Adagrad(params, 0.05, ema_decay=0.9),
}


def in_parts(count: int) -> nn.Module:
    """Return a model of parts that are uneven on two ranks, and of one on the first rank alone."""
    module = narrow()
    fully_shard(module, mesh=init_device_mesh("cpu", (count,)))
    return module


def narrow() -> nn.Module:
    """Return the model of `in_parts` with full parameters."""
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    with torch.no_grad():
        for index, param in enumerate(module.parameters(), start=1):
            param.copy_(torch.arange(param.numel()).view_as(param).sin() / index)
    return module


def farthest(actual: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest difference; relative, of numbers above 1."""
    pairs = zip(map(whole, actual), expected, strict=True)
    wide = [(a.detach().double(), b.detach().double()) for a, b in pairs]
    return max(((a - b).abs() / b.abs().clamp(min=1)).max().item() for a, b in wide)


def step_alike(batch: Any, module: nn.Module, optimizer: Any, full: nn.Module, peer: Any) -> None:
    """Take a step of parts, and one of full parameters with the same gradients.

    A mean over three ranks is rounded, even of equal gradients.
    """
    loss_of(module, batch).backward()
    for param, two in zip(module.parameters(), full.parameters(), strict=True):
        two.grad = whole(param.grad)
    for opt in (optimizer, peer):
        opt.step()
        opt.zero_grad()


@case
def sharded(rank: int, count: int, folder: Path) -> Any:
    """Train `fully_shard` beside full parameters, and reload its checkpoint."""
    warnings.simplefilter("ignore", NumericsWarning)  # of the last bias, which has no sphere
    report = {}
    for name, make in SHARDED.items():
        module, reference, target = in_parts(count), narrow(), in_parts(count)
        optimizer, plain_opt, resumed = (make(m.parameters()) for m in (module, reference, target))
        for batch in data()[:4]:
            step_alike(batch, module, optimizer, reference, plain_opt)
        model_state, optim_state = get_state_dict(module, optimizer)
        path = folder / f"sharded {name}"
        dcp.save({"model": model_state, "optim": optim_state}, checkpoint_id=path)
        model_state, optim_state = get_state_dict(target, resumed)
        state = {"model": model_state, "optim": optim_state}
        dcp.load(state, checkpoint_id=path)
        set_state_dict(
            target, resumed, model_state_dict=state["model"], optim_state_dict=state["optim"]
        )
        for batch in data()[4:]:
            steps(target, resumed, [batch])
            step_alike(batch, module, optimizer, reference, plain_opt)
        expected = numbers(reference, plain_opt)
        report[name] = [
            farthest(numbers(*pair), expected) for pair in ((module, optimizer), (target, resumed))
        ]
        if "averaged" in name:
            with optimizer.swapped(), plain_opt.swapped():
                report[name].append(farthest([*module.parameters()], [*reference.parameters()]))
    return report


FLAT_STATES = ("Adam", "rounded", "averaged", "MARS", "tensorflow.averaged")


@case
def sharded_flat_states(rank: int, count: int, folder: Path) -> Any:
    """Resume `fully_shard` from a flat state dict; return whether all bits are equal."""
    report = {}
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    for name in FLAT_STATES:
        module, target = in_parts(count), in_parts(count)
        optimizer, resumed = (SHARDED[name](m.parameters()) for m in (module, target))
        steps(module, optimizer, data()[:4])
        path = folder / f"flat {name}"
        model_state, optim_state = get_state_dict(module, optimizer, options=options)
        dcp.save({"model": model_state, "optim": optim_state}, checkpoint_id=path)
        model_state, optim_state = get_state_dict(target, resumed, options=options)
        state = {"model": model_state, "optim": optim_state}
        dcp.load(state, checkpoint_id=path)
        set_model_state_dict(target, state["model"])
        set_optimizer_state_dict(target, resumed, state["optim"], options=options)
        for net, opt in ((module, optimizer), (target, resumed)):
            steps(net, opt, data()[4:])
        pairs = zip(numbers(module, optimizer), numbers(target, resumed), strict=True)
        report[name] = [torch.equal(whole(actual), whole(expected)) for actual, expected in pairs]
    return report


DIAGNOSED: dict[str, dict[str, Any]] = {
    "in the update": {},
    "clipped": {"clip_grad_norm": 0.1},
    "beside it": {"round": "stochastic", "seed": 7},
    "of 16 bits": {},
}


@case
def diagnosed(rank: int, count: int, _: Path) -> Any:
    """Report tables of parameters with parts on each rank, some of them none, and of full ones."""
    report = {}
    for name, options in DIAGNOSED.items():
        module, reference = in_parts(count), narrow()
        if name == "of 16 bits":
            module, reference = module.bfloat16(), reference.bfloat16()
        optimizers = [
            optim.AdamW(model.named_parameters(), lr=0.05, diagnostics=2, **options)
            for model in (module, reference)
        ]
        for batch in data()[:4]:
            batch = [tensor.to(next(reference.parameters()).dtype) for tensor in batch]
            step_alike(batch, module, optimizers[0], reference, optimizers[1])
        report[name] = [
            {column: opt.diagnostics.records[column].tolist() for column in COLUMNS}
            for opt in optimizers
        ]
    return report


@case
def diagnosed_but_for_one(rank: int, count: int, _: Path) -> Any:
    """Raise while one rank measures; report the gradients known then and afterwards."""

    def fail() -> Any:
        raise MemoryError

    def begin(watch: Any, *arguments: Any) -> Any:
        rounds = original(watch, *arguments)
        watch._variable_sets = [x._replace(finish=fail) for x in watch._variable_sets]
        return rounds

    original, module = StepWatch.begin, in_parts(count)
    optimizer = optim.AdamW(module.named_parameters(), lr=0.05, diagnostics=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericsWarning)
        if rank == 1:
            StepWatch.begin = begin
        steps(module, optimizer, data()[:1])
    StepWatch.begin = original
    measurements = [None if optimizer.diagnostics is None else optimizer.diagnostics.measured]
    steps(module, optimizer, data()[1:2])
    measurements.append(optimizer.diagnostics.measured)
    return [None if record is None else record["gradient_norm"].tolist() for record in measurements]


@case
def rounded_in_parts(rank: int, count: int, _: Path) -> Any:
    """Report the bits of 16-bit parameters and slots, rounded by random bits, in several parts.

    A pending sum raises an error.
    """
    mesh, report = init_device_mesh("cpu", (count,)), {}
    for name, placement in (("cut", Shard(0)), ("not cut", Replicate()), ("across", Shard(1))):
        params = [
            nn.Parameter(distribute_tensor(param, mesh, [placement])) for param in bfloat_params()
        ]
        for cls in (optim.AdamW, optim.tensorflow.Adam):
            key = f"{cls.__module__.split('.')[-1]} {name}"
            report[key] = as_lists(bfloat_steps(cls, params))
    pending = nn.Parameter(DTensor.from_local(torch.ones(4, 3), mesh, [Partial()], run_check=False))
    for cls in (optim.AdamW, optim.tensorflow.Adam):
        error = refused(lambda cls=cls: cls([pending], lr=0.01, round="stochastic"))
        report[f"{cls.__module__.split('.')[-1]} pending"] = error
    return report


def bfloat_params() -> list[Tensor]:
    """Return parameters whose parts on ranks have several sizes, or none."""
    noise = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=noise).bfloat16() for shape in ((13, 7), (1, 5), (300, 9))]


def bfloat_steps(cls: Any, sources: list[Any]) -> list[Tensor]:
    """Return parameters and slots after some steps from copies of these parameters."""
    params = [nn.Parameter(param.detach().clone()) for param in sources]
    optimizer = cls(params, lr=0.01, round="stochastic", seed=7)
    for step in range(4):
        noise = torch.Generator().manual_seed(step)
        for param in params:
            grad = torch.randn(param.shape, generator=noise).bfloat16()
            if isinstance(param, DTensor):
                grad = distribute_tensor(grad, param.device_mesh, param.placements)
            param.grad = grad
        optimizer.step()
    slots = [x for param in params for x in optimizer.state[param].values() if x.dim()]
    return [*params, *slots]


def refused(function: Callable[..., Any]) -> str:
    """Return the class and message of the error that a call raises."""
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


FLAT = {"gradients": "flat"}


@case
def not_for_parts(rank: int, count: int, _: Path) -> Any:
    """Report the errors of options that DTensors do not support, before anything moves."""
    module = in_parts(count).to(torch.bfloat16)
    params = list(module.parameters())
    for param in params:
        param.grad = torch.zeros_like(param)
    return [
        refused(lambda cls=cls, options=options: cls(params, lr=0.1, **options).step())
        for cls in (optim.Adam, optim.tensorflow.Adam)
        for options in ({"accumulate": 2}, {"in_backward": True}, FLAT)
    ]


def main() -> None:
    warnings.simplefilter("error")
    rank, path, count, folder = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{path}",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=scale_to_load(60)),
    )
    torch.set_num_threads(1)
    names = sys.argv[5:] or list(CASES)
    print(json.dumps({name: CASES[name](rank, count, Path(folder)) for name in names}))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
