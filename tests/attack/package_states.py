"""Hostile states of other packages, and files of them: one damage at a time.

A state that is refused leaves every bit of the optimizer and the parameters as they were, with an
error of this library or torch's own; after one that is taken, a step is taken or refused. A damaged
file gives a state or an error of this library, and executes nothing.
"""

from __future__ import annotations

import copy
import random
import tempfile
import warnings
from pathlib import Path

import numpy as np

from attack import mutations
from attack.figures import Figures
from attack.server import figures_of
from attack.states import same
from converted_cases import CASES, ZERO, group_dicts, make_params, set_gradients
from thalweg import checkpoint, optim
from thalweg.errors import ThalwegError

SUMMARY = "states of other packages, and their files, with one damage each"
CASES_OF_RUN = {False: 500, True: 30_000}
GOOD = ("taken", "refused")
BATCH = 250
FOLDER = Path(__file__).parents[1] / "goldens/converted"
DOCUMENTED = (ThalwegError, ValueError, TypeError, RuntimeError, NotImplementedError)


def attempt(seed: int, number: int) -> str:
    """Load one damaged state or file; return "taken", "refused", or the failure."""
    dice = random.Random(f"{seed}/{number}")
    if number % 4 == 0:
        return _damaged_file(dice)
    name = dice.choice([*CASES])
    case = CASES[name]
    params = make_params(case)
    groups = group_dicts(case, params)
    if case.name == "Mixed":
        groups = [
            {"params": [p], "rule": r} for p, r in zip(params, ("Muon", "AdamW"), strict=True)
        ]
    optimizer = getattr(optim, case.name)(groups, **case.ours)
    state = checkpoint.read_state(FOLDER / f"{name}.pt")
    # Tensors of torchao have attributes alone.
    is_coded = name.startswith("torchao")
    coded = vars(state["state"][0][dice.choice(("exp_avg", "exp_avg_sq"))]) if is_coded else state
    damage, _ = mutations.mutated_at(coded, dice)
    previous_state = copy.deepcopy([[p.detach() for p in params], optimizer.state_dict()])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            optimizer.load_state_dict(state, convert=True, allow_loss=dice.random() < 0.5)
        except DOCUMENTED as error:
            present_state = [[p.detach() for p in params], optimizer.state_dict()]
            return (
                "refused"
                if same(present_state, previous_state)
                else f"half a state: {name}, {damage}: {error}"
            )
        except Exception as error:
            return f"{name}, {damage} raised {type(error).__name__}: {error}"
        set_gradients(params, 5)
        try:
            optimizer.step()
        # An option beyond float64 fails in the step of any state.
        except (*DOCUMENTED, OverflowError):
            return "refused"
        except Exception as error:
            return f"{name}, {damage}, step raised {type(error).__name__}: {error}"
    return "taken"


def _damaged_file(dice: random.Random) -> str:
    """Read a file with some other bytes, or a checkpoint of DeepSpeed with such a file."""
    name = dice.choice([*CASES, *ZERO])
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder)
        path = FOLDER / name
        sources = [*path.iterdir()] if path.is_dir() else [FOLDER / f"{name}.pt"]
        for file in sources:
            (target / file.name).write_bytes(file.read_bytes())
        victim = target / dice.choice(sources).name
        data = np.frombuffer(victim.read_bytes(), np.uint8).copy()
        for _ in range(dice.choice((1, 1, 8))):
            data[dice.randrange(len(data))] = dice.randrange(256)
        data = data[: dice.randrange(len(data))] if dice.random() < 0.2 else data
        victim.write_bytes(data.tobytes())
        try:
            checkpoint.read_state(target if path.is_dir() else victim)
        except ThalwegError:
            return "refused"
        except Exception as error:
            return f"file of {name} raised {type(error).__name__}: {error}"
    return "taken"


def warm() -> None:
    """Compile what the cases need."""
    for number in range(40):
        attempt(0, number)


def attack(long: bool, seed: int) -> Figures:
    return figures_of(__name__, seed, CASES_OF_RUN[long], BATCH, GOOD)
