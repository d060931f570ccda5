"""What ranks of torch's own distributed packages do in tests: each case returns what it found.

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
    get_state_dict,
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
ROUNDED: dict[str, Any] = {"round": "stochastic", "seed": 7, "state_dtype": torch.bfloat16}
MAKERS: dict[str, Callable[[Any], Any]] = {
    "Adam": lambda params: optim.Adam(params, lr=0.05),
    "SGD": lambda params: optim.SGD(params, lr=0.05, momentum=0.9),
    "tensorflow.Adam": lambda params: optim.tensorflow.Adam(params, lr=0.05),
    "tensorflow.Ftrl": lambda params: optim.tensorflow.Ftrl(params, lr=0.05, l1=0.001),
    "rounded": lambda params: optim.AdamW(params, lr=0.05, **ROUNDED),
    "tensorflow.rounded": lambda params: optim.tensorflow.Adam(params, lr=0.05, **ROUNDED),
}


def case(function: Callable[[int, int, Path], Any]) -> Callable[[int, int, Path], Any]:
    """A case of that name."""
    CASES[function.__name__] = function
    return function


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor that ranks share."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def as_lists(tensors: list[Tensor]) -> list[list[float]]:
    """Tensors for JSON, without loss."""
    return [whole(each).detach().double().flatten().tolist() for each in tensors]


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
    """Parameters that FSDP1 has flattened: numbers after two steps, or the error."""
    found: dict[str, dict[str, Any]] = {}
    strategies = {"shards": ShardingStrategy.FULL_SHARD, "whole": ShardingStrategy.NO_SHARD}
    for title, strategy in strategies.items():
        for keeps_params in (False, True):
            own = found[f"{title}, {keeps_params}"] = {}
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
                    own[name] = module(torch.ones(2, 4)).tolist()
                except ValueError as error:
                    own[name] = str(error)
    return found


@case
def ddp(rank: int, count: int, _: Path) -> Any:
    """Each rank has a part of each batch, and all have the same numbers in the end."""
    found = {}
    for name, make in MAKERS.items():
        module = DistributedDataParallel(model())
        optimizer = make(module.parameters())
        steps(module, optimizer, [(x[rank::count], y[rank::count]) for x, y in data()])
        found[name] = as_lists(numbers(module, optimizer))
    return found


@case
def zero(rank: int, count: int, _: Path) -> Any:
    """Each rank keeps the state of some parameters; the numbers are those of one that keeps all."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its compiler of before
        from torch.distributed.optim import ZeroRedundancyOptimizer
    found = {}
    for cls, given in (
        (optim.Adam, {}),
        (optim.SGD, {"momentum": 0.9}),
        (optim.tensorflow.Adam, {}),
        (optim.tensorflow.Ftrl, {"l1": 0.001}),
    ):
        module, other = (DistributedDataParallel(model()) for _ in range(2))
        shared = ZeroRedundancyOptimizer(module.parameters(), optimizer_class=cls, lr=0.05, **given)
        plain = cls(other.parameters(), lr=0.05, **given)
        for batches in (data()[:4], data()[4:]):
            for each, optimizer in ((module, shared), (other, plain)):
                steps(each, optimizer, [(x[rank::count], y[rank::count]) for x, y in batches])
            shared.consolidate_state_dict()
            state = shared.state_dict() if rank == 0 else None
            if rank == 0:
                alone = cls([p.detach().clone() for p in module.parameters()], lr=0.05, **given)
                alone.load_state_dict(state)
        alike = [torch.equal(a, b) for a, b in zip(module.parameters(), other.parameters())]
        found[cls.__module__ + cls.__name__] = [alike, len(shared.optim.state)]
    return found


def loaded(make: Any, path: Path) -> tuple[nn.Module, Any]:
    """A new model and its optimizer, with what was saved; nothing moves before."""
    module = model()
    optimizer = make(module.parameters())
    kept, own = get_state_dict(module, optimizer)
    assert all(map(torch.equal, module.parameters(), model().parameters()))
    state = {"model": kept, "optim": own}
    dcp.load(state, checkpoint_id=path, no_dist=not distributed.is_initialized())
    set_state_dict(
        module, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"]
    )
    return module, optimizer


@case
def saved_together(rank: int, count: int, folder: Path) -> Any:
    """Ranks save together, load, and go on."""
    found = {}
    for name, make in MAKERS.items():
        module = model()
        optimizer = make(module.parameters())
        steps(module, optimizer, data()[:4])
        kept, own = get_state_dict(module, optimizer)
        dcp.save({"model": kept, "optim": own}, checkpoint_id=folder / name)
        steps(module, optimizer, data()[4:])
        again, resumed = loaded(make, folder / name)
        steps(again, resumed, data()[4:])
        pairs = zip(numbers(module, optimizer), numbers(again, resumed), strict=True)
        found[name] = all(torch.equal(one, other) for one, other in pairs)
    return found


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
    """A model of parts that are uneven on two ranks, and of one that is on the first alone."""
    module = narrow()
    fully_shard(module, mesh=init_device_mesh("cpu", (count,)))
    return module


def narrow() -> nn.Module:
    """The same as a whole."""
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    with torch.no_grad():
        for index, param in enumerate(module.parameters(), start=1):
            param.copy_(torch.arange(param.numel()).view_as(param).sin() / index)
    return module


def farthest(one: list[Tensor], other: list[Tensor]) -> float:
    """The largest difference; relative, of numbers above 1."""
    pairs = zip(map(whole, one), other, strict=True)
    wide = [(a.detach().double(), b.detach().double()) for a, b in pairs]
    return max(((a - b).abs() / b.abs().clamp(min=1)).max().item() for a, b in wide)


def step_alike(batch: Any, module: nn.Module, optimizer: Any, other: nn.Module, plain: Any) -> None:
    """A step of parts, and one of whole parameters with the same gradients.

    A mean over three ranks is rounded, even of equal gradients.
    """
    loss_of(module, batch).backward()
    for one, two in zip(module.parameters(), other.parameters(), strict=True):
        two.grad = whole(one.grad)
    for each in (optimizer, plain):
        each.step()
        each.zero_grad()


@case
def sharded(rank: int, count: int, folder: Path) -> Any:
    """Parameters of `fully_shard` beside a training of whole ones, and what is saved of them."""
    warnings.simplefilter("ignore", NumericsWarning)  # of the last bias, which has no sphere
    found = {}
    for name, make in SHARDED.items():
        module, other, again = in_parts(count), narrow(), in_parts(count)
        optimizer, plain, resumed = (make(m.parameters()) for m in (module, other, again))
        for batch in data()[:4]:
            step_alike(batch, module, optimizer, other, plain)
        kept, own = get_state_dict(module, optimizer)
        path = folder / f"sharded {name}"
        dcp.save({"model": kept, "optim": own}, checkpoint_id=path)
        kept, own = get_state_dict(again, resumed)
        state = {"model": kept, "optim": own}
        dcp.load(state, checkpoint_id=path)
        set_state_dict(
            again, resumed, model_state_dict=state["model"], optim_state_dict=state["optim"]
        )
        for batch in data()[4:]:
            steps(again, resumed, [batch])
            step_alike(batch, module, optimizer, other, plain)
        wanted = numbers(other, plain)
        found[name] = [
            farthest(numbers(*pair), wanted) for pair in ((module, optimizer), (again, resumed))
        ]
        if "averaged" in name:
            with optimizer.swapped(), plain.swapped():
                found[name].append(farthest([*module.parameters()], [*other.parameters()]))
    return found


DIAGNOSED: dict[str, dict[str, Any]] = {
    "in the update": {},
    "clipped": {"clip_grad_norm": 0.1},
    "beside it": {"round": "stochastic", "seed": 7},
    "of 16 bits": {},
}


@case
def diagnosed(rank: int, count: int, _: Path) -> Any:
    """Tables of parameters that ranks have parts of, some of them none, and of whole ones."""
    found = {}
    for name, own in DIAGNOSED.items():
        module, other = in_parts(count), narrow()
        if name == "of 16 bits":
            module, other = module.bfloat16(), other.bfloat16()
        made = [
            optim.AdamW(each.named_parameters(), lr=0.05, diagnostics=2, **own)
            for each in (module, other)
        ]
        for batch in data()[:4]:
            batch = [each.to(next(other.parameters()).dtype) for each in batch]
            step_alike(batch, module, made[0], other, made[1])
        found[name] = [
            {column: each.diagnostics.records[column].tolist() for column in COLUMNS}
            for each in made
        ]
    return found


@case
def diagnosed_but_for_one(rank: int, count: int, _: Path) -> Any:
    """Of which parameters the gradient is known in a step that a rank cannot measure, and then."""

    def fail() -> Any:
        raise MemoryError

    def begin(watch: Any, *given: Any) -> Any:
        rounds = usual(watch, *given)
        watch._shares = [each._replace(finish=fail) for each in watch._shares]
        return rounds

    usual, module = StepWatch.begin, in_parts(count)
    optimizer = optim.AdamW(module.named_parameters(), lr=0.05, diagnostics=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericsWarning)
        if rank == 1:
            StepWatch.begin = begin
        steps(module, optimizer, data()[:1])
    StepWatch.begin = usual
    found = [None if optimizer.diagnostics is None else optimizer.diagnostics.measured]
    steps(module, optimizer, data()[1:2])
    found.append(optimizer.diagnostics.measured)
    return [None if each is None else each["gradient_norm"].tolist() for each in found]


@case
def rounded_in_parts(rank: int, count: int, _: Path) -> Any:
    """The bits of parameters and slots of 16 bits, rounded by random bits, in several parts.

    What lies across the cut of another dimension is refused.
    """
    mesh, found = init_device_mesh("cpu", (count,)), {}
    for name, placement in (("cut", Shard(0)), ("not cut", Replicate()), ("across", Shard(1))):
        params = [
            nn.Parameter(distribute_tensor(each, mesh, [placement])) for each in bfloat_params()
        ]
        for cls in (optim.AdamW, optim.tensorflow.Adam):
            message = refused(lambda cls=cls, own=params: bfloat_steps(cls, own))
            key = f"{cls.__module__.split('.')[-1]} {name}"
            found[key] = message or as_lists(bfloat_steps(cls, params))
    return found


def bfloat_params() -> list[Tensor]:
    """Parameters of which ranks have parts of several sizes, or none."""
    noise = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=noise).bfloat16() for shape in ((13, 7), (1, 5), (300, 9))]


def bfloat_steps(cls: Any, given: list[Any]) -> list[Tensor]:
    """Parameters and slots after some steps from these parameters, which stay."""
    params = [nn.Parameter(each.detach().clone()) for each in given]
    made = cls(params, lr=0.01, round="stochastic", seed=7)
    for step in range(4):
        noise = torch.Generator().manual_seed(step)
        for param in params:
            grad = torch.randn(param.shape, generator=noise).bfloat16()
            if isinstance(param, DTensor):
                grad = distribute_tensor(grad, param.device_mesh, param.placements)
            param.grad = grad
        made.step()
    slots = [x for param in params for x in made.state[param].values() if x.dim()]
    return [*params, *slots]


def refused(function: Callable[[], Any]) -> str:
    """What a call raises, in words."""
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


FLAT = {"gradients": "flat"}


@case
def not_for_parts(rank: int, count: int, _: Path) -> Any:
    """What is refused for DTensors, before anything moves."""
    module = in_parts(count).to(torch.bfloat16)
    params = list(module.parameters())
    for param in params:
        param.grad = torch.zeros_like(param)
    return [
        refused(lambda cls=cls, given=given: cls(params, lr=0.1, **given).step())
        for cls in (optim.Adam, optim.tensorflow.Adam)
        for given in ({"accumulate": 2}, {"in_backward": True}, {"masters": True}, FLAT)
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
