"""Random changes between steady steps; after each step all bits are those of a twin.

The twin has the same done to it, steps by the reference engine, and keeps nothing from one step to
the next. What refuses the one must refuse the other, and a refused step changes nothing.
"""

from __future__ import annotations

import contextlib
import random
import warnings
from typing import Any

import torch

import thalweg
from attack.figures import Figures
from attack.moves import CUTS, MOVES, Move, Spoilt
from attack.server import figures_of
from attack.torch_trainings import FACES, encode_all
from attack.trainings import Training
from thalweg._core.plan_cache import PlanCache

TRIED = (
    "trainings of keras, v1, optimize_loss, sessions and optim with 12 random changes between steps"
)
CASES = {False: 500, True: 20_000}
CHANGES = 12
GOOD = ("same", "spoilt")
BATCH = 25
DOCUMENTED = (thalweg.errors.ThalwegError, ValueError, TypeError, RuntimeError, ZeroDivisionError)


def attempt(seed: int, number: int) -> str:
    """What became of a training: "same", or the first that is not, with the changes so far."""
    title = f"{seed}/{number}"
    face = FACES[number % len(FACES)]
    ours, twin = (face(random.Random(title), is_twin) for is_twin in (False, True))
    found = _stepped((ours, twin), "first") or _stepped((ours, twin), "second")
    said = [face.face]
    try:
        for change in range(CHANGES):
            dice = random.Random(f"{title}/{change}")
            move, steps = dice.choice(MOVES), dice.choice([1, 1, 2])
            found = found or _changed((ours, twin), move, f"{title}/{change}")
            said.append(move.__name__)
            for step in range(steps):
                found = found or _stepped((ours, twin), f"{title}/{change}/{step}")
            if found:
                return f"{found}, after {', '.join(said)}"
    except Spoilt:
        return "spoilt"
    return "same"


def _changed(pair: tuple[Training, Training], move: Move, title: str) -> str:
    """Do the same to both."""
    before = [training.bits() for training in pair] if move in CUTS else None
    errors: list[str] = []
    for training in pair:
        try:
            move(training, random.Random(f"{title}/move"))
            errors.append("")
        except Exception as error:
            if not isinstance(error, DOCUMENTED):
                return f"{move.__name__} raised {type(error).__name__}: {error}"
            errors.append(f"{type(error).__name__}: {error}")
    if before is not None:
        for training, bits in zip(pair, before, strict=True):
            training.before = bits
    return "" if _kind(errors[0]) == _kind(errors[1]) else f"changes differ: {errors}"


def _kind(text: str) -> str:
    return text.split(":")[0]


def _stepped(pair: tuple[Training, Training], title: str) -> str:
    """Take a step of both; returns what is wrong."""
    ours, twin = pair
    was_cut = ours.is_cut
    error, wrong = _tried(ours)
    if was_cut and error:  # the twin cannot know
        ours.repair(random.Random(f"{title}/repair"))
        twin.repair(random.Random(f"{title}/repair"))
        # Of its kind; or of what else was done to it, which was found first.
        said = "does not support", "Make a new optimizer for it"
        is_expected = _kind(error) == "LayoutError" or any(map(error.__contains__, said))
        return wrong or ("" if is_expected else error)
    other, also_wrong = _tried(twin)
    if wrong or also_wrong:
        return wrong or f"{also_wrong} of the twin"
    if _kind(error) != _kind(other):
        return f"one was refused: {[error, other]}"
    for training in pair:
        if error:
            training.repair(random.Random(f"{title}/repair"))
        if not training.waits:
            training.undo.clear()
    wrong = _differing(ours.bits(), twin.bits())
    return f"{wrong} differs" if wrong else ""


def _tried(training: Training) -> tuple[str, str]:
    """Step; returns the error, and what changed in spite of it."""
    before, error = training.before if training.is_cut else training.bits(), ""
    apart: tuple[str, ...] = ()
    try:
        training.step()
    except Exception as raised:
        error, apart = f"{type(raised).__name__}: {raised}", training.added(raised)
        if not isinstance(raised, DOCUMENTED):
            return error, f"a step raised {error}"
    if training.is_cut:  # what has no memory cannot be looked at
        training.take_back()
    kept = {name: bits for name, bits in before.items() if not name.endswith(apart)}
    changed = _differing(kept, training.bits()) if error else ""
    return error, f"a refused step changed {changed} ({error})" if changed else ""


def _differing(one: dict[str, Any], other: dict[str, Any]) -> str:
    """The names of what is not the same."""
    names = [name for name in one if name not in other or one[name] != other[name]]
    return ", ".join(names[:4])


def warm() -> None:
    """Have kernels in memory."""
    torch.set_num_threads(1)
    encode_all()
    warnings.simplefilter("ignore")
    PlanCache.longest_wait = 1  # as many steps as can be are taken in one call
    for number in range(90):
        face = FACES[number % len(FACES)]
        for is_twin in (False, True):
            training = face(random.Random(number), is_twin)
            with contextlib.suppress(RuntimeError):  # what some class does not take
                training.step()


def attack(long: bool, seed: int) -> Figures:
    """Run trainings in children, so that a signal is a failure of one."""
    return figures_of(__name__, seed, CASES[long], BATCH, GOOD)
