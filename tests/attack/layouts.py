"""Steps over tensors of random layouts, compared byte by byte with NumPy over the same bytes.

Variables, slots, 16-bit copies and gradients, or their rows and indices, lie somewhere in buffers
of random bytes: dense or strided, transposed, expanded, overlapping, misaligned, side by side, one
in another, of one storage or of many. A step must be refused if two elements that it writes share
memory, or an index is out of range, and then nothing may change; else every byte must be what a few
lines of NumPy make of the buffers.
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
from attack.places import BYTES, FLOATS, Array, Drawer, Place, overlaps_itself, shape, share
from attack.server import figures_of
from rulebook import FLUSH, KEEP, Case, Engines, Problem, case, take
from thalweg import IndexedSlices
from thalweg.errors import InvalidArgumentError, LayoutError, PerformanceWarning

TRIED = "random layouts of variables, slots, 16-bit copies and gradients, 1 to 4 steps each"
CASES = {False: 2000, True: 100_000}
GOOD = ("taken", "refused")
BATCH = 100


@dataclass(frozen=True)
class Rows:
    """Where a sparse gradient lies."""

    values: Place
    indices: Place


@dataclass
class Scene:
    """A step to take: places, and which of them is whose."""

    rule: str
    variables: list[Place]
    slots: list[list[Place]]
    copies: list[Place | None]
    gradients: list[Place | Rows]
    order: list[int]  # which variable each gradient is for
    from_copies: bool = False  # whether a step begins at copies that are not their variables

    def written(self) -> list[Place]:
        slots = [slot for own in self.slots for slot in own]
        return [*self.variables, *slots, *(copy for copy in self.copies if copy is not None)]

    def read(self) -> list[Place]:
        found: list[Place] = []
        for grad in self.gradients:
            found += [grad.values, grad.indices] if isinstance(grad, Rows) else [grad]
        return found

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
    made = Scene(rule, [], [], [], [], [])
    for _ in range(dice.choice([1, 1, 2, 3])):
        extents, dtype = shape(dice), dice.choice([*FLOATS, "float32"])
        var = drawer.place(extents, dtype)
        slots = [drawer.place(extents, dtype, var.strides) for _ in case(rule).rule.slots]
        copy = None
        if dtype in ("float32", "float64") and dice.random() < 0.25:
            copy = drawer.place(extents, dice.choice(_HALVES), var.strides)
        made.variables.append(var)
        made.slots.append(slots)
        made.copies.append(copy)
        made.gradients.append(_gradient(made, len(made.order), drawer, dice))
        made.order.append(len(made.order))
    if dice.random() < 0.1:  # a variable may come twice
        again = dice.choice(made.order)
        made.order.append(again)
        made.gradients.append(_gradient(made, again, drawer, dice))
    return made, drawer


_HALVES = ("float16", "bfloat16")


def _gradient(scene: Scene, index: int, drawer: Drawer, dice: random.Random) -> Place | Rows:
    """A place for a gradient of a variable; that of a master may be of a 16-bit type."""
    var, dtype = scene.variables[index], scene.variables[index].dtype
    if scene.copies[index] is not None and dtype == "float32" and dice.random() < 0.6:
        dtype = dice.choice(_HALVES)
    if not var.shape or dice.random() < 0.7:
        return drawer.place(var.shape, dtype, var.strides)
    count = dice.choice([0, 1, 2, 3, 5, 9, 30]) if var.shape[0] else 0
    values = drawer.place((count, *var.shape[1:]), dtype, var.strides)
    return Rows(values, drawer.place((count,), dice.choice(["int32", "int64"])))


class Oracle:
    """The same step on copies of the buffers."""

    def __init__(self, scene: Scene, buffers: list[bytearray]) -> None:
        self._scene = scene
        self.bytes = [np.frombuffer(bytes(each), np.uint8).copy() for each in buffers]

    def _get(self, place: Place) -> Array:
        raw = self.bytes[place.buffer][place.bytes()]
        values = arithmetic.widened(raw, place.dtype)
        return (-values if place.is_negative else values).reshape(place.shape)

    def _set(self, place: Place, values: Array) -> None:
        self.bytes[place.buffer][place.bytes()] = arithmetic.narrowed(values, place.dtype)

    def _is_outside(self, index: int, grad: Place | Rows) -> bool:
        if not isinstance(grad, Rows):
            return False
        rows, found = self._scene.variables[index].shape[0], self._get(grad.indices)
        return bool(((found < 0) | (found >= rows)).any())

    def must_be_refused(self) -> bool:
        """Whether an index is out of range, as the bytes are now."""
        own = self._scene
        return any(map(self._is_outside, own.order, own.gradients))

    def step(self, of: Case, number: int) -> None:
        own = self._scene
        given = [
            (self._get(grad.values), self._get(grad.indices))
            if isinstance(grad, Rows)
            else (self._get(grad), None)
            for grad in own.gradients
        ]
        for index, (values, indices) in zip(own.order, given, strict=True):
            places = [own.variables[index], *own.slots[index]]
            tensors = [self._get(place) for place in places]
            copy = own.copies[index]
            rows: Any = ...
            if indices is not None and (
                own.rule not in arithmetic.OTHERS or (own.from_copies and own.rule == "RMSprop")
            ):  # whose other rows keep their variable
                rows = indices
            if copy is not None and own.from_copies:
                tensors[0][rows] = self._begun(tensors[0], copy)[rows]
            by, dtype = of.scalars(tensors[0].dtype.type, number), places[0].dtype
            with np.errstate(all="ignore"):
                if indices is None:
                    var, *slots = tensors
                    made = list(arithmetic.RULES[own.rule](var, values, *slots, by))
                else:
                    made = arithmetic.sparse(own.rule, tensors, values, indices, by, dtype)
            for place, numbers in zip(places, made, strict=True):
                self._set(place, numbers)
            if copy is not None:
                kept = self._get(copy).astype(made[0].dtype)
                kept[rows] = arithmetic.saturated(np.asarray(made[0])[rows], copy.dtype)
                self._set(copy, kept)

    def _begun(self, var: Array, copy: Place) -> Array:
        """A variable, or its copy where that is not the variable, rounded."""
        raw = self.bytes[copy.buffer][copy.bytes()]
        left = arithmetic.narrowed(arithmetic.saturated(var, copy.dtype), copy.dtype)
        same = (raw == left).all(1).reshape(var.shape)
        return np.where(same, var, self._get(copy).astype(var.dtype))


def _fill(scene: Scene, buffers: list[bytearray], dice: random.Random) -> None:
    """Random bytes everywhere, numbers of usual size where tensors are, and rows where indices."""
    rng = np.random.default_rng(dice.randrange(2**32))
    for index in range(len(buffers)):
        buffers[index][:] = rng.integers(0, 256, BYTES, np.uint8).tobytes()
    for place in [*scene.written(), *scene.read()]:
        if place.dtype in FLOATS:
            values = rng.uniform(0.5, 2.0, len(place.bytes()))
            if place in scene.variables or place in scene.read():
                values *= rng.choice([-1.0, 1.0], len(values))
            _put(place, arithmetic.narrowed(values, place.dtype), buffers)
    for index, grad in zip(scene.order, scene.gradients, strict=True):
        if isinstance(grad, Rows):
            _put(grad.indices, _rows(scene.variables[index].shape[0], grad, dice), buffers)


def _put(place: Place, raw: Array, buffers: list[bytearray]) -> None:
    if 0 not in place.shape:
        np.frombuffer(buffers[place.buffer], np.uint8)[place.bytes()] = raw


def _rows(height: int, grad: Rows, dice: random.Random) -> Array:
    """Indices as bytes; now and then one is out of range."""
    (count,) = grad.indices.shape
    found = [dice.randrange(height) for _ in range(count)]
    if found and dice.random() < 0.06:
        found[dice.randrange(count)] = dice.choice([-1, height, 2**31 - 1, -(2**31)])
    return np.array(found, grad.indices.dtype).reshape(-1, 1).view(np.uint8)


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
    drawn.from_copies = random.Random(f"{seed}/{number}/copies").random() < 0.5
    buffers = [bytearray(BYTES) for _ in range(4)]
    _fill(drawn, buffers, dice)
    # Bytes of other tensors make denormals, which the oracle does not flush.
    everything = [*drawn.written(), *drawn.read()]
    is_plain = not any(map(overlaps_itself, everything)) and not share(everything)
    selection = FLUSH if is_plain and dice.random() < 0.5 else KEEP
    selection = selection._replace(name=dice.choice(["auto", "cpu", "cpu", "reference"]))
    oracle, engines, of = Oracle(drawn, buffers), Engines(), case(drawn.rule)
    problem, copies = _tensors(drawn, buffers)
    is_refused = False
    for step in range(1, dice.randint(1, 4) + 1):
        is_refused = drawn.must_be_refused() or oracle.must_be_refused()
        try:
            _take(of, problem, copies, selection, engines, step, drawn.from_copies)
        except (LayoutError, InvalidArgumentError) as error:
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
            _move_a_gradient(drawn, problem, drawer, buffers, oracle, dice)
    return "refused" if is_refused else "taken"


def _tensors(scene: Scene, buffers: list[bytearray]) -> tuple[Problem, list[Any] | None]:
    """The tensors of a step, and the copies of its variables; None if there are none."""
    own = [place.tensor(buffers) for place in scene.variables]
    slots = [[place.tensor(buffers) for place in each] for each in scene.slots]
    copies = [None if place is None else place.tensor(buffers) for place in scene.copies]
    gradients = [_given(grad, buffers) for grad in scene.gradients]
    problem = Problem([own[i] for i in scene.order], [slots[i] for i in scene.order], gradients)
    has_some = any(copy is not None for copy in copies)
    return problem, [copies[i] for i in scene.order] if has_some else None


def _given(grad: Place | Rows, buffers: list[bytearray]) -> Any:
    if not isinstance(grad, Rows):
        return grad.tensor(buffers)
    return IndexedSlices(grad.values.tensor(buffers), grad.indices.tensor(buffers))


def _take(
    of: Case,
    problem: Problem,
    copies: Any,
    selection: Any,
    engines: Engines,
    step: int,
    from_copies: bool,
) -> None:
    scalars = type(of).scalars

    class Later(Case):
        def scalars(self, dtype: Any, _: int = 0) -> dict[str, Any]:
            return scalars(self, dtype, step)

    later = Later(of.row, of.config, of.hypers)
    given = {"copies": copies, "from_copies": from_copies and copies is not None}
    take(later, problem, selection, engines=engines, **given)


def _move_a_gradient(
    scene: Scene,
    problem: Problem,
    drawer: Drawer,
    buffers: list[bytearray],
    oracle: Oracle,
    dice: random.Random,
) -> None:
    """Another layout for a gradient of the next step, over whatever numbers are there."""
    which = dice.randrange(len(scene.gradients))
    index = scene.order[which]
    grad = _gradient(scene, index, drawer, dice)
    if isinstance(grad, Rows):
        raw = _rows(scene.variables[index].shape[0], grad, dice)
        _put(grad.indices, raw, buffers)
        _put(grad.indices, raw, oracle.bytes)
    elif dice.random() < 0.05:
        grad = replace(grad, is_negative=True)
    scene.gradients[which] = grad
    problem.gradients[which] = _given(grad, buffers)


def warm() -> None:
    """Have every kernel in memory."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", PerformanceWarning)
    for rule in arithmetic.RULES:
        dtypes = [getattr(torch, name) for name in FLOATS]
        take(case(rule), Problem.make(case(rule).row, [5] * len(dtypes), dtypes, 0))
    for number in range(100):
        attempt(-1, number)


def attack(long: bool, seed: int) -> Figures:
    """Run scenes in children, so that a signal is a failure of one."""
    return figures_of(__name__, seed, CASES[long], BATCH, GOOD)
