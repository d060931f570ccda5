"""Steps over tensors of random layouts, compared byte by byte with NumPy over the same bytes.

Variables, gradients and slots lie somewhere in buffers of random bytes: dense or strided,
transposed, expanded, overlapping, misaligned, side by side, one in another, of one storage or of
many. A step must be refused if two elements that it writes share memory, and then nothing may
change; else every byte must be what a few lines of NumPy make of the buffers.
"""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from attack import arithmetic
from attack.figures import Figures
from attack.places import BYTES, SIZES, Array, Drawer, Place, overlaps_itself, shape, share
from attack.server import figures_of
from rulebook import FLUSH, KEEP, Case, Engines, Problem, case, take
from thalweg.errors import LayoutError, PerformanceWarning

TRIED = "random layouts of variables, slots and gradients, 1 to 4 steps each"
CASES = {False: 3000, True: 100_000}
GOOD = ("taken", "refused")
BATCH = 100


@dataclass
class Scene:
    """A step to take: places, and which of them is whose."""

    rule: str
    variables: list[Place]
    slots: list[list[Place]]
    gradients: list[Place]
    order: list[int]  # which variable each gradient is for

    def written(self) -> list[Place]:
        return [*self.variables, *(slot for own in self.slots for slot in own)]

    def must_be_refused(self) -> bool:
        written = [place for place in self.written() if 0 not in place.shape]
        return (
            any(place.is_negative for place in self.written())
            or any(map(overlaps_itself, written))
            or share(written)
        )


def scene(dice: random.Random) -> tuple[Scene, Drawer]:
    """A random one."""
    rule = dice.choice(list(arithmetic.RULES))
    drawer = Drawer(dice, dice.choice([1, 1, 2, 4]))
    made = Scene(rule, [], [], [], [])
    for _ in range(dice.choice([1, 1, 2, 3])):
        extents, dtype = shape(dice), dice.choice([*SIZES, "float32"])
        var = drawer.place(extents, dtype)
        slots = [drawer.place(extents, dtype, var.strides) for _ in case(rule).rule.slots]
        made.variables.append(var)
        made.slots.append(slots)
        made.gradients.append(drawer.place(extents, dtype, var.strides))
    made.order = list(range(len(made.variables)))
    if dice.random() < 0.1:  # a variable may come twice
        again = dice.choice(made.order)
        made.order.append(again)
        var = made.variables[again]
        made.gradients.append(drawer.place(var.shape, var.dtype, var.strides))
    return made, drawer


class Oracle:
    """The same step on copies of the buffers."""

    def __init__(self, scene: Scene, buffers: list[bytearray]) -> None:
        self._scene = scene
        self.bytes = [np.frombuffer(bytes(each), np.uint8).copy() for each in buffers]

    def _get(self, place: Place) -> Array:
        raw = self.bytes[place.buffer][place.bytes()]
        values = arithmetic.widened(raw, place.dtype)
        return -values if place.is_negative else values

    def _set(self, place: Place, values: Array) -> None:
        self.bytes[place.buffer][place.bytes()] = arithmetic.narrowed(values, place.dtype)

    def step(self, of: Case, number: int) -> None:
        own = self._scene
        gradients = [self._get(place) for place in own.gradients]
        for index, grad in zip(own.order, gradients, strict=True):
            places = [own.variables[index], *own.slots[index]]
            var, *slots = map(self._get, places)
            with np.errstate(all="ignore"):
                made = arithmetic.RULES[own.rule](
                    var, grad, *slots, of.scalars(var.dtype.type, number)
                )
            for place, values in zip(places, made, strict=True):
                self._set(place, values)


def _fill(scene: Scene, buffers: list[bytearray], dice: random.Random) -> None:
    """Random bytes everywhere, and numbers of usual size where tensors are."""
    rng = np.random.default_rng(dice.randrange(2**32))
    for index in range(len(buffers)):
        buffers[index][:] = rng.integers(0, 256, BYTES, np.uint8).tobytes()
    for place in [*scene.written(), *scene.gradients]:
        if 0 in place.shape:
            continue
        memory = np.frombuffer(buffers[place.buffer], np.uint8)
        rows = place.bytes()
        values = rng.uniform(0.5, 2.0, len(rows))
        if place in scene.variables or place in scene.gradients:
            values *= rng.choice([-1.0, 1.0], len(rows))
        memory[rows] = arithmetic.narrowed(values, place.dtype)


def _differing(scene: Scene, oracle: Oracle, buffers: list[bytearray]) -> str | None:
    """What is not as it must be: a written tensor by its place, or bytes of nobody."""
    got = [np.frombuffer(bytes(each), np.uint8).copy() for each in buffers]
    for place in scene.written():
        rows = place.bytes()
        one, other = got[place.buffer][rows], oracle.bytes[place.buffer][rows]
        with np.errstate(invalid="ignore"):
            a, b = arithmetic.widened(one, place.dtype), arithmetic.widened(other, place.dtype)
        wrong = (one != other).any(1) & ~(np.isnan(a) & np.isnan(b))
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            return f"wrong number {a[first]!r}, not {b[first]!r}, at {first} of {place}"
        got[place.buffer][rows] = oracle.bytes[place.buffer][rows]
    for index, (one, other) in enumerate(zip(got, oracle.bytes, strict=True)):
        if not np.array_equal(one, other):
            return f"a byte of nobody changed: {int(np.flatnonzero(one != other)[0])} of {index}"
    return None


def attempt(seed: int, number: int) -> str:
    """What became of a scene: "taken", "refused", or what went wrong."""
    dice = random.Random(f"{seed}/{number}")
    drawn, drawer = scene(dice)
    buffers = [bytearray(BYTES) for _ in range(4)]
    _fill(drawn, buffers, dice)
    # Bytes of other tensors make denormals, which the oracle does not flush.
    everything = [*drawn.written(), *drawn.gradients]
    is_plain = not any(map(overlaps_itself, everything)) and not share(everything)
    selection = FLUSH if is_plain and dice.random() < 0.5 else KEEP
    selection = selection._replace(name=dice.choice(["auto", "cpu", "cpu"]))
    oracle, engines, of = Oracle(drawn, buffers), Engines(), case(drawn.rule)
    tensors = [place.tensor(buffers) for place in drawn.variables]
    slots = [[place.tensor(buffers) for place in own] for own in drawn.slots]
    gradients = [place.tensor(buffers) for place in drawn.gradients]
    problem = Problem([tensors[i] for i in drawn.order], [slots[i] for i in drawn.order], gradients)
    is_refused = drawn.must_be_refused()
    for step in range(1, dice.randint(1, 4) + 1):
        try:
            _take(of, problem, selection, engines, step)
        except LayoutError as error:
            if not is_refused:
                return f"refused without a reason: {error}"
        else:
            if is_refused:
                return "not refused"
            oracle.step(of, step)
        found = _differing(drawn, oracle, buffers)
        if found is not None:
            return f"step {step}: {found}"
        if dice.random() < 0.4:
            _move_a_gradient(drawn, problem, drawer, buffers, dice)
    return "refused" if is_refused else "taken"


def _take(of: Case, problem: Problem, selection: Any, engines: Engines, step: int) -> None:
    scalars = type(of).scalars

    class Later(Case):
        def scalars(self, dtype: Any, _: int = 0) -> dict[str, Any]:
            return scalars(self, dtype, step)

    take(Later(of.row, of.config, of.hypers), problem, selection, engines=engines)


def _move_a_gradient(
    scene: Scene,
    problem: Problem,
    drawer: Drawer,
    buffers: list[bytearray],
    dice: random.Random,
) -> None:
    """Another layout for a gradient of the next step, over whatever bytes are there."""
    index = dice.randrange(len(scene.gradients))
    old = scene.gradients[index]
    place = drawer.place(old.shape, old.dtype, scene.variables[scene.order[index]].strides)
    scene.gradients[index] = replace(place, is_negative=dice.random() < 0.05)
    problem.gradients[index] = scene.gradients[index].tensor(buffers)


def warm() -> None:
    """Have every kernel in memory."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", PerformanceWarning)
    for rule in arithmetic.RULES:
        dtypes = [getattr(torch, name) for name in SIZES]
        take(case(rule), Problem.make(case(rule).row, [5] * len(dtypes), dtypes, 0))


def attack(long: bool, seed: int) -> Figures:
    """Run scenes in children, so that a signal is a failure of one."""
    return figures_of(__name__, seed, CASES[long], BATCH, GOOD)
