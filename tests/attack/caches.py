"""Damaged kernel caches: whatever lies in the folder, a step has its numbers, and nothing crashes.

A process fills a folder with the kernels of a few steps. Each case damages a copy of it and takes
the steps again, by the names of files and their bytes alone: what is in them is the library's.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from attack.figures import Figures
from attack.server import figures_of, in_child
from thalweg import IndexedSlices, Variable, engine
from thalweg.keras.optimizers import SGD, Adam

SUMMARY = "kernel folders with 1 to 4 damages each, then dense, clipped and sparse steps"
CASES = {False: 20, True: 1500}
GOOD = ("same",)
BATCH = 10
_pristine = Path()
_wanted: list[str] = []


def steps() -> str:
    """Return a hash of numbers after dense, clipped and sparse steps."""
    digest = hashlib.blake2b()
    for opt, is_sparse in ((Adam(0.1, global_clipnorm=1.0), False), (SGD(0.1), True)):
        var = Variable(torch.linspace(-1, 1, 24).view(8, 3), "w")
        grad = torch.linspace(2, -1, 24).view(8, 3)
        rows = IndexedSlices(grad[:4], torch.tensor([5, 2, 5, 0]), (8, 3))
        for _ in range(2):
            opt.apply_gradients([(rows if is_sparse else grad, var)])
        digest.update(var.detach().numpy().tobytes())
    return digest.hexdigest()


# Damages: each gets the folder's files, of which at least one is there.


def _file(folder: Path, dice: random.Random) -> Path:
    return dice.choice(sorted(path for path in folder.rglob("*") if path.is_file()))


def truncated(folder: Path, dice: random.Random) -> None:
    path = _file(folder, dice)
    content = path.read_bytes()
    path.write_bytes(content[: dice.randrange(len(content) + 1)])


def bits_flipped(folder: Path, dice: random.Random) -> None:
    path = _file(folder, dice)
    content = bytearray(path.read_bytes())
    for _ in range(dice.choice([1, 1, 2, 50]) if content else 0):
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
    path.write_bytes(bytes(content))


def zeroed(folder: Path, dice: random.Random) -> None:
    path = _file(folder, dice)
    content = bytearray(path.read_bytes())
    begin = dice.randrange(len(content) + 1)
    end = min(len(content), begin + dice.choice([8, 64, 512]))
    content[begin:end] = bytes(end - begin)
    path.write_bytes(bytes(content))


def longer(folder: Path, dice: random.Random) -> None:
    path = _file(folder, dice)
    path.write_bytes(path.read_bytes() + dice.randbytes(dice.choice([1, 64])))


def garbage(folder: Path, dice: random.Random) -> None:
    _file(folder, dice).write_bytes(dice.choice([b"", b"raise SystemExit", dice.randbytes(200)]))


def exchanged(folder: Path, dice: random.Random) -> None:
    first_path, second_path = _file(folder, dice), _file(folder, dice)
    first, second = first_path.read_bytes(), second_path.read_bytes()
    first_path.write_bytes(second)
    second_path.write_bytes(first)


def under_a_wrong_name(folder: Path, dice: random.Random) -> None:
    path = _file(folder, dice)
    candidates = [candidate for candidate in folder.rglob(f"*{path.suffix}") if candidate.is_file()]
    shutil.copyfile(path, path.with_name("foreign" + path.suffix))
    target = dice.choice(sorted(candidates))
    if target != path:
        os.replace(path, target)


def removed(folder: Path, dice: random.Random) -> None:
    _file(folder, dice).unlink()


def a_folder_instead(folder: Path, dice: random.Random) -> None:
    path = _file(folder, dice)
    path.unlink()
    path.mkdir()


def a_link_instead(folder: Path, dice: random.Random) -> None:
    path = _file(folder, dice)
    path.unlink()
    path.symlink_to(dice.choice(["nowhere", path.name, "/dev/null", "."]))


def not_to_be_read(folder: Path, dice: random.Random) -> None:
    _file(folder, dice).chmod(0)


def open_to_all(folder: Path, dice: random.Random) -> None:
    dice.choice([folder, folder / "kernels"]).chmod(0o777)


DAMAGES: tuple[Callable[[Path, random.Random], None], ...] = (
    truncated, truncated, bits_flipped, bits_flipped, bits_flipped, zeroed, longer, garbage,
    exchanged, exchanged, under_a_wrong_name, under_a_wrong_name, removed, a_folder_instead,
    a_link_instead, not_to_be_read, open_to_all,
)  # fmt: skip


def attempt(seed: int, number: int) -> str:
    """Damage a cache and take a step; return "same", or the failure with the damages."""
    dice = random.Random(f"{seed}/{number}")
    with tempfile.TemporaryDirectory() as place:
        home = Path(place) / "home"
        shutil.copytree(_pristine, home)
        damages = [dice.choice(DAMAGES) for _ in range(dice.choice([1, 1, 2, 4]))]
        for damage in damages:
            if any(path.is_file() for path in home.rglob("*")):
                damage(home, dice)
        os.environ["THALWEG_CACHE_DIR"] = str(home)
        names = " and ".join(damage.__name__ for damage in damages)
        for moment in ("with the damage", "with what was mended"):
            actual = in_child(steps)
            if actual != _wanted[0]:
                failure = actual if actual.startswith("exit ") else "wrong numbers"
                return f"{failure} {moment}: {names}"
    return "same"


def warm() -> None:
    global _pristine
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    _pristine = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, _pristine, ignore_errors=True)
    os.environ["THALWEG_CACHE_DIR"] = str(_pristine)
    with engine("reference"):
        _wanted.append(steps())
    in_child(steps)
    assert any(path.is_file() for path in _pristine.rglob("*")), "no kernel was kept"


def attack(long: bool, seed: int) -> Figures:
    return figures_of(__name__, seed, CASES[long], BATCH, GOOD)
