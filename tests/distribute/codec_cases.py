"""8-bit state and split weights of DTensors beside those of one process.

Run by `test_codec_meshes.py` on each rank: rank, a file to meet, the number of ranks, a folder,
names of cases.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from itertools import permutations, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rank_process import report_cases

sys.path[:0] = [str(Path(__file__).parents[1] / "support")]

from torch.distributed import checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.state_dict import (  # noqa: E402
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor, Partial  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from mesh_cases import (  # noqa: E402
    COLUMNS,
    COPY,
    LINE,
    PLANE,
    ROWS,
    SPACE,
    STRIPES,
    mesh_of,
    sharded,
    share,
    values,
)
from thalweg import optim  # noqa: E402
from thalweg.errors import CheckpointWarning  # noqa: E402
from thalweg.optim import full_precision  # noqa: E402

# The last shapes are encoded in one process alone, or nowhere.
SHAPES = ((64, 128), (7, 1024), (3, 5, 512), (8192,), (40, 40), (12, 7))
PLACES: dict[str, Any] = {
    "FSDP": (LINE, (ROWS,)),
    "copies": (LINE, (COPY,)),
    "TP": (LINE, (COLUMNS,)),
    "HSDP": (PLANE, (COPY, ROWS)),
    "FSDP x TP rows": (PLANE, (STRIPES, ROWS)),
    "FSDP x TP columns": (PLANE, (ROWS, COLUMNS)),
    "HSDP x TP": (SPACE, (COPY, ROWS, COLUMNS)),
}
NATURAL: Any = {"state_storage": "8bit"}
SPLIT: Any = {"weights": "split"}
NOISY: Any = {"round": "stochastic", "seed": 3}
CODES: Any = {"state_storage": {"exp_avg": "dynamic8", "exp_avg_sq": "root8"}}
RULES: dict[str, Callable[..., Any]] = {
    "8bit": partial(optim.AdamW, lr=0.02, **NATURAL),
    "dynamic8": partial(optim.AdamW, lr=0.02, state_storage="dynamic8"),
    "dict": partial(optim.AdamW, lr=0.02, **CODES),
    "averaged": partial(optim.AdamW, lr=0.02, ema_decay=0.9, cautious=True, **NATURAL),
    "tensorflow": partial(optim.tensorflow.Adam, lr=0.02, **NATURAL),
    "SGD": partial(optim.SGD, lr=0.02, momentum=0.9, state_storage="linear8"),
    "Muon": partial(optim.Muon, lr=0.02, **NATURAL),
    "SOAP": partial(optim.SOAP, lr=0.02, precondition_frequency=2, **NATURAL),
    "split": partial(optim.AdamW, lr=0.02, **SPLIT),
    "split 8bit": partial(optim.AdamW, lr=0.02, **SPLIT, **NATURAL),
    "split 8bit noisy": partial(optim.AdamW, lr=0.02, **SPLIT, **NATURAL, **NOISY),
    "split Lion": partial(optim.Lion, lr=0.02, **SPLIT),
    "split Muon": partial(optim.Muon, lr=0.02, **SPLIT, **NATURAL),
    "bf16 8bit noisy": partial(optim.AdamW, lr=0.02, **NATURAL, **NOISY),
}
RULES["float32"] = partial(optim.AdamW, lr=0.02, state_dtype=torch.float32)
RULES["masters"] = partial(optim.AdamW, lr=0.02, masters=True)
TRAINED = (
    "8bit", "dict", "averaged", "tensorflow", "SGD", "Muon", "SOAP", "split", "split 8bit noisy",
    "split Lion", "split Muon", "bf16 8bit noisy",
)  # fmt: skip
OF_MATRICES = ("Muon", "SOAP", "split Muon")


def whole(tensor: Any) -> Tensor:
    """Return the full tensor of a DTensor, from all ranks."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def has_bits(tensor: Any, expected: Tensor) -> bool:
    """Return whether a tensor has the bits of another one, of one process."""
    full = whole(tensor)
    return full.dtype == expected.dtype and torch.equal(full, expected.view(full.shape))


def is_encoded_here(shape: tuple[int, ...], rule: str) -> bool:
    """Return whether meshes encode the slots of a shape like one process."""
    count = torch.Size(shape).numel()
    block = 256 if rule in ("dynamic8", "dict", "SGD") else 32
    return count < 4096 or not shape[-1] % block


def differences(params: Any, alone: Any, optimizer: Any, reference: Any) -> list[str]:
    """Return the names of tensors that differ from those of one process."""
    names: list[str] = []
    for index, (param, expected) in enumerate(zip(params, alone, strict=True)):
        names += [] if has_bits(param, expected) else [f"{index}"]
        entries, expected_entries = optimizer.state[param], reference.state[expected]
        assert entries.keys() == expected_entries.keys()
        names += [
            f"{index}/{name}"
            for name in entries
            if not has_bits(entries[name], expected_entries[name])
        ]
    return names


def case_of(rule: str, place: str, count: int) -> list[str]:
    """Train on a mesh and alone; return the names of tensors that differ."""
    sizes, placements = PLACES[place]
    shapes = [shape for shape in SHAPES if is_encoded_here(shape, rule)]
    if COLUMNS in placements:
        shapes = [shape for shape in shapes if len(shape) == 2]
    if rule in OF_MATRICES:
        shapes = [shape for shape in shapes if len(shape) == 2]
    mesh = mesh_of(sizes[count])
    dtype = torch.bfloat16 if "split" in rule or "bf16" in rule else torch.float32
    initial = [value.to(dtype) for value in values(0, shapes)]
    alone = [value.clone().requires_grad_() for value in initial]
    params = [sharded(value, mesh, placements).requires_grad_() for value in initial]
    optimizer, reference = (RULES[rule](x) for x in (params, alone))
    for seed in range(3):
        for index, grad in enumerate(values(100 + seed, shapes)):
            alone[index].grad = grad.to(dtype)
            params[index].grad = sharded(grad.to(dtype), mesh, placements)
        optimizer.step()
        reference.step()
    assert not any(map(torch.equal, alone, initial))
    is_coded = [
        x.dtype == torch.uint8 for state in optimizer.state.values() for x in state.values()
    ]
    assert any(is_coded), (rule, place)
    return differences(params, alone, optimizer, reference)


def trained(count: int, folder: Path) -> Any:
    """Train all rules on all meshes, on one of the numbers of ranks each."""
    cases = share(product(TRAINED, PLACES), count)
    return {f"{rule} on {place}": case_of(rule, place, count) for rule, place in cases}


def module_on(kind: str, count: int) -> nn.Module:
    """Return a module that torch's functions shard; "alone" is a full one."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(256, 512, bias=False), nn.Linear(512, 256, bias=False))
    module = module.to(torch.bfloat16)
    names = {"FSDP": ("dp",), "HSDP": ("copies", "dp"), "FSDP x TP": ("dp", "tp")}
    if kind == "alone":
        return module
    mesh = mesh_of((LINE if kind == "FSDP" else PLANE)[count], names[kind])
    if "TP" in kind:
        parallelize_module(module, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(module, mesh=mesh if kind == "HSDP" else mesh["dp"])
    return module


KINDS = ("FSDP", "HSDP", "FSDP x TP", "alone")
MODULE_RULES = ("split 8bit", "dynamic8", "bf16 8bit noisy")


def turn(module: nn.Module, optimizer: Any, seed: int, grads: Any = None) -> list[Tensor]:
    """Take a step with gradients of a batch, or with those of another module; return them."""
    optimizer.zero_grad()
    if grads is None:
        noise = torch.Generator().manual_seed(seed)
        batch = torch.randn(6, 256, generator=noise).to(torch.bfloat16)
        module(batch).float().square().mean().backward()
    for param, grad in zip(module.parameters(), grads or (), strict=False):
        is_dtensor = isinstance(param, DTensor)
        param.grad = sharded(grad, param.device_mesh, param.placements) if is_dtensor else grad
    full = [whole(param.grad).clone() for param in module.parameters()]
    optimizer.step()
    return full


def of_module(rule: str, kind: str, count: int) -> tuple[nn.Module, Any]:
    """Return a module and an optimizer of its parameters."""
    module = module_on(kind, count)
    return module, RULES[rule](list(module.parameters()))


def is_continued(
    resumed: tuple[nn.Module, Any], grads: Any, expected: tuple[nn.Module, Any]
) -> bool:
    """Return whether a step of a loaded training has the bits of another one."""
    turn(*resumed, 2, grads)
    params = [list(module.parameters()) for module, _ in (resumed, expected)]
    return not differences(*params, resumed[1], expected[1])


def resharded(count: int, folder: Path) -> Any:
    """Train modules that torch shards; continue on other meshes and in one process."""
    report: dict[str, Any] = {}
    for kind, rule in share(product(KINDS, MODULE_RULES), count, (2, 4)):
        trained, alone = of_module(rule, kind, count), of_module(rule, "alone", count)
        for seed in range(2):
            turn(*alone, seed, turn(*trained, seed))
        path = folder / f"{rule} {kind}"
        weights, slots = get_state_dict(*trained)
        dcp.save({"model": weights, "optim": slots}, checkpoint_id=path)
        options = StateDictOptions(full_state_dict=True)
        model = deepcopy(get_model_state_dict(trained[0], options=options))
        full = deepcopy(get_optimizer_state_dict(*trained, options=options))
        grads = turn(*trained, 2)
        turn(*alone, 2, grads)
        for other in KINDS:
            resumed = of_module(rule, other, count)
            weights, slots = get_state_dict(*resumed)
            state = {"model": weights, "optim": slots}
            dcp.load(state, checkpoint_id=path)
            set_state_dict(*resumed, model_state_dict=weights, optim_state_dict=slots)
            report[f"{rule}: {kind} to {other}, sharded"] = is_continued(resumed, grads, alone)
            filled = of_module(rule, other, count)
            set_model_state_dict(filled[0], deepcopy(model), options=options)
            set_optimizer_state_dict(*filled, deepcopy(full), options=options)
            report[f"{rule}: {kind} to {other}, full"] = is_continued(filled, grads, alone)
    return report


def converted(count: int, folder: Path) -> Any:
    """Load states in other storage with `convert=True`, on a mesh and in one process."""
    report: dict[str, Any] = {}
    makers = ("split 8bit", "split", "bf16 8bit noisy", "dynamic8", "float32", "masters")
    for first, second in share(permutations(makers, 2), count, (2, 4)):
        trainings = [of_module(first, kind, count) for kind in ("FSDP", "alone")]
        grads = turn(*trainings[0], 0)
        turn(*trainings[1], 0, grads)
        others = [(module, RULES[second](list(module.parameters()))) for module, _ in trainings]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CheckpointWarning)
            for (_, other), (_, trained) in zip(others, trainings, strict=True):
                other.load_state_dict(trained.state_dict(), convert=True)
        for training in others:
            turn(*training, 1, grads)
        params = [list(module.parameters()) for module, _ in others]
        report[f"{first} to {second}"] = differences(*params, others[0][1], others[1][1])
    for rule in ("split 8bit", "dynamic8"):
        trainings = [of_module(rule, kind, count) for kind in ("FSDP", "alone")]
        turn(*trainings[1], 0, turn(*trainings[0], 0))
        states = [full_precision(trained, masters=True)["state"] for _, trained in trainings]
        report[f"{rule} in float32"] = [
            f"{index}/{name}"
            for index, entries in states[1].items()
            for name in entries
            if not has_bits(states[0][index][name], entries[name])
        ]
    return report


def message_of(make: Callable[..., Any]) -> str:
    """Return the error of a call."""
    try:
        make()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def unsupported(count: int, folder: Path) -> Any:
    """Return the errors of parameters that no rank can encode."""
    mesh = mesh_of(LINE[count])
    cut = sharded(torch.ones(64, 96), mesh, (COLUMNS,)).requires_grad_()
    pending = DTensor.from_local(torch.ones(64, 128), mesh, [Partial()], run_check=False)
    row = sharded(torch.ones(4096 + 256), mesh, (ROWS,)).requires_grad_()
    params = {"cut": cut, "pending": pending.requires_grad_(), "row": row}
    return {
        f"{name} {rule}": message_of(partial(RULES[rule], [(name, param)]))
        for (name, param), rule in product(params.items(), ("8bit", "dynamic8"))
    }


CASES: dict[str, Callable[[int, Path], Any]] = {
    "trained": trained,
    "resharded": resharded,
    "converted": converted,
    "unsupported": unsupported,
}


if __name__ == "__main__":
    report_cases(CASES)
