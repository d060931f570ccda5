"""Each attack at the size of a test run, and the defects that it must notice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from attack import ATTACKS, interruptions, load, syscalls
from attack.server import Server, serving
from attack.torch_trainings import FACES
from thalweg import optim

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
SEED = 0
RUN = Path(__file__).with_name("run.py")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("names", interruptions.PARTS)
def test_interrupted_steps_are_atomic(names: str) -> None:
    figures = interruptions.attacked(names, SEED)
    assert not figures.failures, "\n".join(figures.failures)
    count = interruptions.CASES[False] * len(interruptions.KINDS)
    assert figures.cases == count * len(names.split(","))


def test_resealed_files_pass_in_a_short_attack() -> None:
    module = load("resealed")
    with Server(module.__name__) as server:
        outcomes = server.run([(SEED, number) for number in range(100)])
    assert set(outcomes) == set(module.GOOD), set(outcomes) - set(module.GOOD)


# An attack that cannot fail says nothing: each is set upon a library that lacks a check.

NOTICED = {
    "layouts": (
        "strides of gradients are not compared",
        "elements may overlap",
        "gradients may lie in what is written",
        "copies are not looked at",
        "what is written to copies is not seen",
        "indices are not looked at",
    ),
    "changes": (
        "slots are not watched",
        "everything is alike",
        "a block is told by its first slot",
        "sums are not looked at",
        "gradients are read at once",
    ),
    "torch_states": ("states of optim are loaded as they come",),
    "beside_torch": ("what torch refuses is half done", "what a scaler found is not asked"),
    "states": ("weights are set as they come",),
    "caches": ("machine code is not sealed",),
    "keras_files": ("what lies beyond the end is not looked for",),
    "bundles": ("entries are believed", "tensors may share bytes"),
    "restores": ("states are loaded as they come", "documents are believed"),
    "resealed": ("states are loaded as they come", "documents are believed"),
    "files": ("checksums are not compared", "headers and manifests are not compared"),
}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "interruptions"])
def test_attacks_pass_and_notice_planted_defects(name: str) -> None:
    # One test, as the server of its cases takes seconds to begin.
    module = load(name).__name__
    with serving(module) if name in NOTICED else nullcontext():
        figures = load(name).attack(False, SEED)
        assert figures.cases
        assert not figures.failures, "\n".join(figures.failures[:20])
        for defect in NOTICED.get(name, ()):
            with serving(module) as server:
                assert noticed(server, name, defect), defect


@pytest.fixture(scope="module")
def served() -> Iterator[Callable[[str], Server]]:
    """The server of an attack's cases, which is kept until another's is asked for.

    It is warm after seconds, and each of its children is given a defect of its own.
    """
    servers: dict[str, Server] = {}

    def server_of(name: str) -> Server:
        if name not in servers:
            while servers:
                servers.popitem()[1].close()
            servers[name] = Server(load(name).__name__)
        return servers[name]

    yield server_of
    for server in servers.values():
        server.close()


# In which of the cases some were found, hundreds of others before it: a search begins there.
SEEDS = {
    ("changes", "gradients are read at once"): 400,
    ("changes", "sums are not looked at"): 490,
    ("changes", "sums may lie anywhere"): 710,
    ("changes", "what torch refuses is half done"): 1630,
}


# Those that each face must meet; no other case needs to notice them.
IN_A_FACE = [
    *(("changes", face, "plans always stand") for face in range(len(FACES))),
    *(("changes", face, "elements may overlap") for face in range(len(FACES))),
    ("changes", len(FACES) - 1, "what torch refuses is half done"),
    ("changes", len(FACES) - 1, "sums may lie anywhere"),
    *(("states", face, "states are loaded as they come") for face in range(4)),
]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("name", "face", "defect"), IN_A_FACE)
def test_attack_detects_a_missing_check_in_every_front_end(
    name: str, face: int, defect: str, served: Callable[[str], Server]
) -> None:
    assert noticed(served(name), name, defect, face, len(load(name).FACES))


@pytest.mark.slow
def test_interruption_attack_detects_a_split_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THALWEG_NATIVE_LOOK", "0")  # a step in one call has none
    outcomes, _ = interruptions.run_interrupted(
        "keras", "signal", 40, SEED, 900, "sections are split"
    )
    assert set(outcomes) & set(interruptions.WRONG)


@pytest.mark.slow
def test_kill_attack_detects_files_written_in_place() -> None:
    command = [sys.executable, "-m", "attack.kills", "40", str(SEED), "files are written in place"]
    process = subprocess.run(
        command, cwd=RUN.parents[1], capture_output=True, text=True, check=False
    )
    assert process.returncode == 1, process.stderr
    assert "unreadable" in process.stderr


@pytest.mark.skipif(bool(syscalls.unavailable()), reason=syscalls.unavailable() or "strace")
def test_system_call_attack_detects_files_written_in_place() -> None:
    with syscalls.Place(in_place=True) as place:
        outcomes = syscalls.cases(place, lambda call: call.name == "write")
        assert any("a broken file" in outcome for _, outcome in outcomes)


def noticed(server: Server, name: str, defect: str, face: int = 0, faces: int = 1) -> bool:
    """Return whether one of some hundred cases fails with a planted defect."""
    good, begin = load(name).GOOD, SEEDS.get((name, defect), 0)
    numbers = range(face, (begin + 800) * faces, faces)
    for first in (*range(begin, begin + 800, 10), *range(0, begin, 10)):
        cases = [(SEED, number) for number in numbers[first : first + 10]]
        if set(server.run(cases, defect)) - set(good):
            return True
    return False


def test_command_prints_figures_and_failures() -> None:
    process = subprocess.run(
        [sys.executable, str(RUN), "no such attack"], capture_output=True, text=True, check=False
    )
    assert process.returncode == 2
    assert "no attack is called no such attack" in process.stderr


def test_interruption_attack_excuses_only_switches_of_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_grad_enabled = torch._C._set_grad_enabled

    def interrupt(mode: bool) -> None:
        set_grad_enabled(mode)
        raise KeyboardInterrupt

    param = torch.nn.Parameter(torch.ones(3))
    param.grad = torch.ones(3)
    opt = optim.Adam([param], clip_grad_norm=1.0)
    excused = []
    monkeypatch.setattr(torch._C, "_set_grad_enabled", interrupt)
    for call in (torch.no_grad().__enter__, opt.step):
        with pytest.raises(KeyboardInterrupt) as raised:
            call()
        excused.append(interruptions.is_in_no_grad_of_torch(raised.value))
        set_grad_enabled(True)
    assert excused == [True, False]
