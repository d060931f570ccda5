"""Trainings that are killed at random moments, and go on from the file that is there.

Each is the process that trains, saves after each step, and is killed by a signal that it cannot
handle. What it leaves must be readable, and be what an uninterrupted training has at that step, to
the bit. `python -m attack.kills COUNT [SEED [DEFECT]]`, in the folder of the tests, kills so many.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from attack.figures import Figures
from attack.planted import DEFECTS
from thalweg import Variable
from thalweg._formats import container, stored_tensor
from thalweg.errors import ThalwegError
from thalweg.keras.optimizers import Adam

SUMMARY = "trainings of 16 MB that are killed at random moments, and go on from what they saved"
CASES = {False: 15, True: 300}
GOOD = ("intact", "ended", "not begun")
STEPS = 40
SHAPES = {"kernel": (1150, 1150), "bias": (1150,), "table": (19, 64)}
LONGEST = 0.6  # seconds, at least


class Training:
    """Adam over three variables, with gradients that depend on the step alone."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.own = {
            name: Variable(torch.randn(shape, generator=generator), name)
            for name, shape in SHAPES.items()
        }
        self.optimizer = Adam(0.01)

    def step(self, number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        self.optimizer.apply_gradients(
            [(torch.randn(var.shape, generator=generator), var) for var in self.own.values()]
        )

    def save(self, path: Path, number: int) -> None:
        tensors: dict[str, torch.Tensor] = dict(self.own)
        state = _taken(self.optimizer.state_dict(), "optimizer", tensors)
        stored = {name: stored_tensor.of_tensor(tensor) for name, tensor in tensors.items()}
        container.write(path, stored, {"step": number, "state": state})

    def load(self, path: Path) -> int:
        """Load a file to go on from; return the number of the next step."""
        contents = container.read(path)
        tensors = {name: tensor.tensor() for name, tensor in contents.tensors.items()}
        with torch.no_grad():
            for name, var in self.own.items():
                var.copy_(tensors[name])
        state = _given(contents.document["state"], tensors)
        self.optimizer.load_state_dict(state, list(self.own.values()))
        return contents.document["step"]


def _taken(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Return a state with a list of its path for each tensor; write tensors to `tensors`."""
    if isinstance(value, dict):
        return {key: _taken(nested, f"{path}/{key}", tensors) for key, nested in value.items()}
    if not isinstance(value, torch.Tensor):
        return value
    tensors[path] = value
    return [path]


def _given(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, dict):
        return {key: _given(nested, tensors) for key, nested in value.items()}
    return tensors[value[0]] if isinstance(value, list) else value


def digest(path: Path) -> tuple[int, str]:
    """Return the step that a file is of, and a hash of all bytes of its tensors."""
    contents, hash_state = container.read(path), hashlib.blake2b()
    for name, tensor in sorted(contents.tensors.items()):
        hash_state.update(name.encode())
        hash_state.update(tensor.data)
    return contents.document["step"], hash_state.hexdigest()


def train(path: Path) -> None:
    training = Training()
    for number in range(training.load(path) if path.exists() else 0, STEPS):
        training.step(number)
        training.save(path, number + 1)


def uninterrupted(path: Path) -> dict[int, str]:
    """Return the hashes after each step of a training that nobody kills."""
    training, digests = Training(), dict[int, str]()
    for number in range(STEPS):
        training.step(number)
        training.save(path, number + 1)
        digests.update([digest(path)])
    return digests


def started(path: Path) -> int:
    """Return the number of a process that trains."""
    child = os.fork()
    if not child:
        try:
            train(path)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return child


def killed(path: Path, expected: dict[int, str], dice: random.Random, longest: float) -> str:
    """Train, kill the process at a random time and return one of `GOOD`, or the failure."""
    child = started(path)
    time.sleep(dice.uniform(0, longest))
    os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status not in (0, -signal.SIGKILL):
        return f"the training ended with {status}"
    if not path.exists():
        return "not begun"
    try:
        step, actual = digest(path)
    except ThalwegError as error:
        path.unlink()
        return f"unreadable: {error}"
    if actual != expected[step]:
        path.unlink()
        return f"step {step} has other bits"
    if status == 0:
        path.unlink()  # to begin again
        return "ended"
    return "intact"


def told(count: int, seed: int, defect: str = "") -> Figures:
    """Kill trainings of one file, one after the other; return the figures.

    Args:
        count: How many.
        seed: Chooses the moments.
        defect: One of `attack.planted` that they are to have; the first failure ends the attack.
    """
    torch.set_num_threads(1)
    figures, dice = Figures(), random.Random(f"kills/{seed}")
    with tempfile.TemporaryDirectory() as folder:
        start = time.monotonic()
        expected = uninterrupted(Path(folder) / "other")
        # A whole training takes longer beside other processes.
        longest = max(LONGEST, time.monotonic() - start)
        if defect:
            DEFECTS[defect]()
        path = Path(folder) / "ckpt"
        for number in range(count):
            outcome = killed(path, expected, dice, longest)
            figures.note(f"kill {number}, seed {seed}", outcome, outcome in GOOD)
            if defect and figures.failures:
                break
        leftovers = [name for name in os.listdir(folder) if name.endswith(".tmp")]
        if len(leftovers) > 1:  # that of the last one
            figures.note("files", f"{len(leftovers)} temporary files were left", is_good=False)
    return figures


def attack(long: bool, seed: int) -> Figures:
    """Run and kill as many trainings as a test run or a night has time for."""
    return told(CASES[long], seed)


def main(count: str, seed: str = "0", defect: str = "") -> int:
    result = told(int(count), int(seed), defect)
    sys.stdout.write(f"{result.line()}\n")
    sys.stderr.writelines(f"{failure}\n" for failure in result.failures)
    return int(bool(result.failures))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
