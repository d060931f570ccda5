"""Steps over DTensors in which one rank deviates, as JSON; run by `test_guarded_steps.py`.

Every case runs in one fork per rank, so that a process that aborts is noticed.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from busy import scale_to_load
from thalweg import checkpoint, optim
from thalweg.distribute.handshake import RankMessage
from thalweg.keras.optimizers import Adam
from thalweg.v1.contrib.opt import LARSOptimizer

PATIENCE, TIMEOUT = 120.0, 5.0  # seconds, of steps before the one in question and of that one
SHAPES = ((6, 4), (5, 3), (8, 8), (7,))
FAULT_STEP = 3  # the steps before the one in which a rank differs
GRID = (2, 2)  # of a mesh of two dimensions
# Cases in which a rank is lost: the other ranks wait for it until their timeout.
TIMEOUT_CASES = ("raise", "skip", "extra")
PARALLEL_TIMEOUTS = 3

Factory = Callable[[list[Any]], Any]


def mixed(params: list[Any]) -> Any:
    groups = [
        {"params": params[:3], "rule": "Muon", "lr": 0.02},
        {"params": params[3:], "rule": "AdamW", "lr": 0.01},
    ]
    return optim.Mixed(groups, clip_grad_norm=1.0)


OPTIMIZERS: dict[str, Factory] = {
    "AdamW": lambda params: optim.AdamW(params, lr=0.02, clip_grad_norm=1.0, ema_decay=0.9),
    "Mixed": mixed,
    "SGD": lambda params: optim.SGD(params, lr=0.02, clip_grad_norm=1.0),
    "LAMB": lambda params: optim.LAMB(params, lr=0.02),
    "Prodigy": lambda params: optim.Prodigy(params),
    "StableAdamW": lambda params: optim.StableAdamW(params, lr=0.02),
    "TensorFlow": lambda params: optim.tensorflow.Adam(params, lr=0.02, clip_grad_norm=1.0),
    "measured": lambda params: optim.AdamW(params, lr=0.02, diagnostics=2),
    "grid": lambda params: optim.AdamW(params, lr=0.02, clip_grad_norm=1.0),
    "grid Mixed": mixed,
    "misplaced": lambda params: optim.AdamW(params, lr=0.02),
    "plain": lambda params: optim.AdamW(params, lr=0.02),
    "Keras": lambda _: Adam(0.02, global_clipnorm=1.0),
    "v1": lambda _: LARSOptimizer(0.02),
}
ON_GRID = "grid", "grid Mixed"


class Training:
    def __init__(self, name: str, rank: int, count: int) -> None:
        self.is_of_torch = name not in ("Keras", "v1")
        self.rank, self.is_bad = rank, rank == count - 1
        if name in ON_GRID:
            self.mesh, self.placements = init_device_mesh("cpu", GRID), [Shard(0), Shard(0)]
        else:
            self.mesh, self.placements = init_device_mesh("cpu", (count,)), [Shard(0)]
        self.of_gradients = [Replicate()] if name == "misplaced" else self.placements
        self.params = [self._placed(shape, place) for place, shape in enumerate(SHAPES)]
        for param in self.params:
            param.requires_grad_()
        self.optimizer = OPTIMIZERS[name](self.params)

    def _placed(self, shape: tuple[int, ...], seed: int, placements: Any = None) -> Any:
        value = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        placements = placements or self.placements
        return distribute_tensor(value, self.mesh, placements, src_data_rank=None)

    def differentiate(self, step: int) -> None:
        for place, param in enumerate(self.params):
            param.grad = self._placed(param.shape, 100 * step + place, self.of_gradients)

    def step(self, closure: Any = None) -> None:
        if self.is_of_torch:
            self.optimizer.step(closure)
        else:
            if closure is not None:
                closure()
            self.optimizer.apply_gradients([(param.grad, param) for param in self.params])

    def kept(self) -> list[Tensor]:
        """Return copies of all tensors of the training."""
        tensors: list[Any] = list(self.params)
        if self.is_of_torch:
            for slots in self.optimizer.state.values():
                tensors += [entry for entry in slots.values() if isinstance(entry, Tensor)]
        local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors)
        return [tensor.detach().clone() for tensor in local]

    def differ(self, case: str) -> None:  # noqa: C901
        """Make this rank deviate in the way of the case."""
        params, optimizer = self.params, self.optimizer
        if case == "shape":
            params[0].grad = None
        elif case == "nograd":
            for param in params:
                param.grad = None
        elif case == "nan":
            params[0].grad.to_local().fill_(float("nan"))
        elif case == "cut":
            params[0].grad.to_local().untyped_storage().resize_(0)
        elif case == "lr" and self.is_of_torch:
            optimizer.param_groups[0]["lr"] = 0.5
        elif case == "lr":
            optimizer.learning_rate = 0.5
        elif case == "slotgone":
            optimizer.state[params[0]].popitem()
        elif case == "fewer":
            del optimizer.param_groups[0]["params"][0]
        elif case == "order":
            optimizer.param_groups[0]["params"].reverse()
        elif case == "found_inf":
            optimizer.found_inf = torch.ones(())
        elif case == "extra":
            self.step()


def raising() -> None:
    raise ValueError("mine")


def tried(training: Training, case: str, folder: Path) -> str:
    """Return the class and message of the error that the step of the case raises."""
    if case == "save":
        if training.is_bad:
            training.params[0].to_local().untyped_storage().resize_(0)
        variables = dict(enumerate(training.params))
        named_vars = {f"w{place}": param for place, param in variables.items()}
        checkpoint.save(str(folder / "saved"), optimizer=training.optimizer, variables=named_vars)
    elif training.is_bad and case == "skip":
        return "skipped"
    elif training.is_bad and case == "raise":
        training.step(raising)
    else:
        if training.is_bad:
            training.differ(case)
        training.step()
    return "stepped"


def run(name: str, case: str, rank: int, count: int, folder: Path) -> dict[str, Any]:
    training = Training(name, rank, count)
    for step in range(FAULT_STEP):
        training.differentiate(step)
        training.step()
    training.differentiate(FAULT_STEP)
    distributed.barrier()
    if case in TIMEOUT_CASES:
        for dim in range(training.mesh.ndim):
            limit = timedelta(seconds=TIMEOUT)
            distributed.distributed_c10d._set_pg_timeout(limit, training.mesh.get_group(dim))
    messages: list[int] = []
    begin: Any = RankMessage.__init__

    def counted(*args: Any, **keywords: Any) -> None:
        messages.append(1)
        begin(*args, **keywords)

    RankMessage.__init__ = counted
    initial, start, notes = training.kept(), time.monotonic(), list[str]()
    try:
        message = tried(training, case, folder)
    except BaseException as error:
        message, notes = f"{type(error).__name__}: {error}", getattr(error, "__notes__", [])
    seconds, final = time.monotonic() - start, [] if case == "save" else training.kept()
    report = {
        "said": message,
        "notes": notes,
        "seconds": seconds,
        "messages": len(messages),
        "unchanged": len(initial) == len(final) and all(map(torch.equal, initial, final)),
    }
    if case in ("shape", "nograd", "cut"):  # of which nothing is left but the gradients
        training.differentiate(FAULT_STEP)
        training.step()
        report["after"] = (
            training.optimizer.last_step.count if training.is_of_torch else FAULT_STEP + 1
        )
    return report


def fork_case(name: str, case: str, rank: int, count: int, folder: Path) -> tuple[int, Path]:
    """Start a case in a fork.

    Returns:
        The id of the process, and the file that it writes its result to.
    """
    case_folder = folder / f"{name}-{case}"
    case_folder.mkdir(exist_ok=True)
    result = case_folder / f"rank-{rank}.json"
    child = os.fork()
    if not child:
        distributed.init_process_group(
            "gloo",
            init_method=f"file://{case_folder / 'store'}",
            rank=rank,
            world_size=count,
            timeout=timedelta(seconds=scale_to_load(PATIENCE)),
        )
        result.write_text(json.dumps(run(name, case, rank, count, case_folder)))
        # The end of this process must not tell the other ranks that it is lost.
        time.sleep(TIMEOUT * (case == "raise"))
        os._exit(0)
    return child, result


def read_result(child: int, result: Path) -> dict[str, Any]:
    """Wait for a fork; return its result, or how its process ended."""
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return json.loads(result.read_text()) if status == 0 else {"said": f"ended with {status}"}


def run_cases(
    pairs: list[tuple[str, str]], rank: int, count: int, folder: Path
) -> dict[str, dict[str, Any]]:
    """Run cases one after another, except that those in `LOST` wait while others run.

    Args:
        pairs: The case and the optimizer of each.
        rank: The rank of this process.
        count: How many ranks there are.
        folder: A folder that all ranks share.

    Returns:
        The results by "case:optimizer".
    """
    reports: dict[str, dict[str, Any]] = {}
    timeout_pairs = [pair for pair in pairs if pair[0] in TIMEOUT_CASES]
    other_pairs = [pair for pair in pairs if pair[0] not in TIMEOUT_CASES]
    parts = max(1, -(-len(timeout_pairs) // PARALLEL_TIMEOUTS))
    for part in range(parts):
        waiting = {
            f"{case}:{name}": fork_case(name, case, rank, count, folder)
            for case, name in timeout_pairs[part::parts]
        }
        for case, name in other_pairs[part::parts]:
            reports[f"{case}:{name}"] = read_result(*fork_case(name, case, rank, count, folder))
        reports |= {title: read_result(*handle) for title, handle in waiting.items()}
    return reports


def main() -> None:
    rank, store, count = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    pairs = [(case, name) for case, name in (argument.split(":") for argument in sys.argv[4:])]
    sys.stdout.write(json.dumps(run_cases(pairs, rank, count, store.parent)))


if __name__ == "__main__":
    main()
