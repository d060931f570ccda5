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

SUMMARY = (
    "trainings of keras, v1, optimize_loss, sessions and optim with 12 random changes between steps"
)
CASES = {False: 200, True: 20_000}
CHANGES = 12
GOOD = ("same", "spoilt")
BATCH = 25
DOCUMENTED = (thalweg.errors.ThalwegError, ValueError, TypeError, RuntimeError, ZeroDivisionError)


def attempt(seed: int, number: int) -> str:
    """Run one training with changes; return "same", or the first failure with the changes."""
    title = f"{seed}/{number}"
    face = FACES[number % len(FACES)]
    training, twin = (face(random.Random(title), is_twin) for is_twin in (False, True))
    failure = _stepped((training, twin), "first") or _stepped((training, twin), "second")
    names = [face.face]
    try:
        for change in range(CHANGES):
            dice = random.Random(f"{title}/{change}")
            move, steps = dice.choice(MOVES), dice.choice([1, 1, 2])
            failure = failure or _changed((training, twin), move, f"{title}/{change}")
            names.append(move.__name__)
            for step in range(steps):
                failure = failure or _stepped((training, twin), f"{title}/{change}/{step}")
            if failure:
                return f"{failure}, after {', '.join(names)}"
    except Spoilt:
        return "spoilt"
    return "same"


def _changed(pair: tuple[Training, Training], move: Move, title: str) -> str:
    """Do the same to both."""
    bits_before = [training.bits() for training in pair] if move in CUTS else None
    errors: list[str] = []
    for training in pair:
        try:
            move(training, random.Random(f"{title}/move"))
            errors.append("")
        except Exception as error:
            if not isinstance(error, DOCUMENTED):
                return f"{move.__name__} raised {type(error).__name__}: {error}"
            errors.append(f"{type(error).__name__}: {error}")
    if bits_before is not None:
        for training, bits in zip(pair, bits_before, strict=True):
            training.before = bits
    return "" if _kind(errors[0]) == _kind(errors[1]) else f"changes differ: {errors}"


def _kind(text: str) -> str:
    return text.split(":")[0]


def _stepped(pair: tuple[Training, Training], title: str) -> str:
    """Take a step of both; returns what is wrong."""
    first, twin = pair
    was_cut = first.is_cut
    error, wrong = _tried(first)
    if was_cut and error:  # the twin cannot know
        first.repair(random.Random(f"{title}/repair"))
        twin.repair(random.Random(f"{title}/repair"))
        # Of its kind; or of what else was done to it, which was found first.
        phrases = "does not support", "Make a new optimizer for it"
        is_expected = _kind(error) == "LayoutError" or any(map(error.__contains__, phrases))
        return wrong or ("" if is_expected else error)
    twin_error, also_wrong = _tried(twin)
    if wrong or also_wrong:
        return wrong or f"{also_wrong} of the twin"
    if _kind(error) != _kind(twin_error):
        return f"one was refused: {[error, twin_error]}"
    for training in pair:
        if error:
            training.repair(random.Random(f"{title}/repair"))
        if not training.waits:
            training.undo.clear()
    wrong = _differing(first.bits(), twin.bits())
    return f"{wrong} differs" if wrong else ""


def _tried(training: Training) -> tuple[str, str]:
    """Take a step; return the error and the changes made in spite of it."""
    bits_before, error = training.before if training.is_cut else training.bits(), ""
    added_names: tuple[str, ...] = ()
    try:
        training.step()
    except Exception as raised:
        error, added_names = f"{type(raised).__name__}: {raised}", training.added(raised)
        if not isinstance(raised, DOCUMENTED):
            return error, f"a step raised {error}"
    if training.is_cut:  # what has no memory cannot be looked at
        training.take_back()
    compared = {name: bits for name, bits in bits_before.items() if not name.endswith(added_names)}
    difference = _differing(compared, training.bits()) if error else ""
    return error, f"a refused step changed {difference} ({error})" if difference else ""


def _differing(first: dict[str, Any], second: dict[str, Any]) -> str:
    names = [name for name in first if name not in second or first[name] != second[name]]
    return ", ".join(names[:4])


def warm() -> None:
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
    return figures_of(__name__, seed, CASES[long], BATCH, GOOD)
