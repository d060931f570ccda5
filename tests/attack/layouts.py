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

SUMMARY = "random layouts of variables, slots, 16-bit copies and gradients, 1 to 4 steps each"
CASES = {False: 1000, True: 100_000}
GOOD = ("taken", "refused")
BATCH = 100


@dataclass(frozen=True)
class Rows:
    """Places of a sparse gradient."""

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
        slots = [slot for slots in self.slots for slot in slots]
        return [*self.variables, *slots, *(copy for copy in self.copies if copy is not None)]

    def read(self) -> list[Place]:
        places: list[Place] = []
        for grad in self.gradients:
            places += [grad.values, grad.indices] if isinstance(grad, Rows) else [grad]
        return places

    def must_be_refused(self) -> bool:
        written_places = [place for place in self.written() if 0 not in place.shape]
        return (
            any(place.is_negative for place in self.written())
            or any(map(overlaps_itself, written_places))
            or share(written_places)
        )


def scene(dice: random.Random) -> tuple[Scene, Drawer]:
    """Return a random scene."""
    rule = dice.choice(list(arithmetic.RULES))
    drawer = Drawer(dice, dice.choice([1, 1, 2, 4]))
    new_scene = Scene(rule, [], [], [], [], [])
    for _ in range(dice.choice([1, 1, 2, 3])):
        extents, dtype = shape(dice), dice.choice([*FLOATS, "float32"])
        var = drawer.place(extents, dtype)
        slots = [drawer.place(extents, dtype, var.strides) for _ in case(rule).rule.slots]
        copy = None
        if dtype in ("float32", "float64") and dice.random() < 0.25:
            copy = drawer.place(extents, dice.choice(_HALVES), var.strides)
        new_scene.variables.append(var)
        new_scene.slots.append(slots)
        new_scene.copies.append(copy)
        new_scene.gradients.append(_gradient(new_scene, len(new_scene.order), drawer, dice))
        new_scene.order.append(len(new_scene.order))
    if dice.random() < 0.1:  # a variable may come twice
        repeated = dice.choice(new_scene.order)
        new_scene.order.append(repeated)
        new_scene.gradients.append(_gradient(new_scene, repeated, drawer, dice))
    return new_scene, drawer


_HALVES = ("float16", "bfloat16")


def _gradient(scene: Scene, index: int, drawer: Drawer, dice: random.Random) -> Place | Rows:
    """Return a place for a gradient of a variable; that of a master may be of a 16-bit type."""
    var, dtype = scene.variables[index], scene.variables[index].dtype
    if scene.copies[index] is not None and dtype == "float32" and dice.random() < 0.6:
        dtype = dice.choice(_HALVES)
    if not var.shape or dice.random() < 0.7:
        return drawer.place(var.shape, dtype, var.strides)
    count = dice.choice([0, 1, 2, 3, 5, 9, 30]) if var.shape[0] else 0
    values = drawer.place((count, *var.shape[1:]), dtype, var.strides)
    return Rows(values, drawer.place((count,), dice.choice(["int32", "int64"])))


class Oracle:
    """Step on copies of the buffers, computed by NumPy."""

    def __init__(self, scene: Scene, buffers: list[bytearray]) -> None:
        self._scene = scene
        self.bytes = [np.frombuffer(bytes(buffer), np.uint8).copy() for buffer in buffers]

    def _get(self, place: Place) -> Array:
        raw = self.bytes[place.buffer][place.bytes()]
        values = arithmetic.widened(raw, place.dtype)
        return (-values if place.is_negative else values).reshape(place.shape)

    def _set(self, place: Place, values: Array) -> None:
        self.bytes[place.buffer][place.bytes()] = arithmetic.narrowed(values, place.dtype)

    def _is_outside(self, index: int, grad: Place | Rows) -> bool:
        if not isinstance(grad, Rows):
            return False
        rows, rows_named = self._scene.variables[index].shape[0], self._get(grad.indices)
        return bool(((rows_named < 0) | (rows_named >= rows)).any())

    def must_be_refused(self) -> bool:
        """Return whether an index is out of range with the present bytes."""
        scene = self._scene
        return any(map(self._is_outside, scene.order, scene.gradients))

    def step(self, case: Case, number: int) -> None:
        scene = self._scene
        grads = [
            (self._get(grad.values), self._get(grad.indices))
            if isinstance(grad, Rows)
            else (self._get(grad), None)
            for grad in scene.gradients
        ]
        for index, (values, indices) in zip(scene.order, grads, strict=True):
            places = [scene.variables[index], *scene.slots[index]]
            tensors = [self._get(place) for place in places]
            copy = scene.copies[index]
            rows: Any = ...
            if indices is not None and (
                scene.rule not in arithmetic.OTHERS
                or (scene.from_copies and scene.rule == "RMSprop")
            ):  # whose other rows keep their variable
                rows = indices
            if copy is not None and scene.from_copies:
                tensors[0][rows] = self._begun(tensors[0], copy)[rows]
            args, dtype = case.scalars(tensors[0].dtype.type, number), places[0].dtype
            with np.errstate(all="ignore"):
                if indices is None:
                    var, *slots = tensors
                    results = list(arithmetic.RULES[scene.rule](var, values, *slots, args))
                else:
                    results = arithmetic.sparse(scene.rule, tensors, values, indices, args, dtype)
            for place, numbers in zip(places, results, strict=True):
                self._set(place, numbers)
            if copy is not None:
                copy_values = self._get(copy).astype(results[0].dtype)
                copy_values[rows] = arithmetic.saturated(np.asarray(results[0])[rows], copy.dtype)
                self._set(copy, copy_values)

    def _begun(self, var: Array, copy: Place) -> Array:
        """Return a variable, or its copy where that is not the variable, rounded."""
        raw = self.bytes[copy.buffer][copy.bytes()]
        narrowed = arithmetic.narrowed(arithmetic.saturated(var, copy.dtype), copy.dtype)
        is_equal = (raw == narrowed).all(1).reshape(var.shape)
        return np.where(is_equal, var, self._get(copy).astype(var.dtype))


def _fill(scene: Scene, buffers: list[bytearray], dice: random.Random) -> None:
    """Write random bytes everywhere, usual numbers into tensors, and rows into indices."""
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
    """Return indices as bytes; now and then one is out of range."""
    (count,) = grad.indices.shape
    rows_named = [dice.randrange(height) for _ in range(count)]
    if rows_named and dice.random() < 0.06:
        rows_named[dice.randrange(count)] = dice.choice([-1, height, 2**31 - 1, -(2**31)])
    return np.array(rows_named, grad.indices.dtype).reshape(-1, 1).view(np.uint8)


def _differing(scene: Scene, oracle: Oracle, buffers: list[bytearray]) -> str | None:
    """Return the first wrong number of a written tensor, or a changed byte outside; else None."""
    got = [np.frombuffer(bytes(buffer), np.uint8).copy() for buffer in buffers]
    for place in scene.written():
        rows = place.bytes()
        first, second = got[place.buffer][rows], oracle.bytes[place.buffer][rows]
        with np.errstate(invalid="ignore"):
            a, b = (arithmetic.widened(first, place.dtype), arithmetic.widened(second, place.dtype))
        wrong = (first != second).any(1) & ~(np.isnan(a) & np.isnan(b))
        if wrong.any():
            element = int(np.flatnonzero(wrong)[0])
            return f"wrong number {a[element]!r}, not {b[element]!r}, at {element} of {place}"
        got[place.buffer][rows] = oracle.bytes[place.buffer][rows]
    for index, (first, second) in enumerate(zip(got, oracle.bytes, strict=True)):
        if not np.array_equal(first, second):
            return f"a byte of nobody changed: {int(np.flatnonzero(first != second)[0])} of {index}"
    return None


def attempt(seed: int, number: int) -> str:
    """Run one scene; return "taken", "refused", or the failure."""
    dice = random.Random(f"{seed}/{number}")
    case_scene, drawer = scene(dice)
    case_scene.from_copies = random.Random(f"{seed}/{number}/copies").random() < 0.5
    buffers = [bytearray(BYTES) for _ in range(4)]
    _fill(case_scene, buffers, dice)
    # Bytes of other tensors make denormals, which the oracle does not flush.
    everything = [*case_scene.written(), *case_scene.read()]
    is_simple = not any(map(overlaps_itself, everything)) and not share(everything)
    selection = FLUSH if is_simple and dice.random() < 0.5 else KEEP
    selection = selection._replace(name=dice.choice(["auto", "cpu", "cpu", "reference"]))
    oracle, engines, rule_case = Oracle(case_scene, buffers), Engines(), case(case_scene.rule)
    problem, copies = _tensors(case_scene, buffers)
    must_raise = False
    for step in range(1, dice.randint(1, 4) + 1):
        must_raise = case_scene.must_be_refused() or oracle.must_be_refused()
        try:
            _take(rule_case, problem, copies, selection, engines, step, case_scene.from_copies)
        except (LayoutError, InvalidArgumentError) as error:
            if not must_raise:
                return f"refused without a reason: {error}"
        else:
            if must_raise:
                return "not refused"
            oracle.step(rule_case, step)
        difference = _differing(case_scene, oracle, buffers)
        if difference is not None:
            return f"step {step}: {difference}"
        if dice.random() < 0.4:
            _move_a_gradient(case_scene, problem, drawer, buffers, oracle, dice)
    return "refused" if must_raise else "taken"


def _tensors(scene: Scene, buffers: list[bytearray]) -> tuple[Problem, list[Any] | None]:
    """Return the tensors of a step and the copies of its variables; None if there are none."""
    variables = [place.tensor(buffers) for place in scene.variables]
    slots = [[place.tensor(buffers) for place in places] for places in scene.slots]
    copies = [None if place is None else place.tensor(buffers) for place in scene.copies]
    gradients = [_given(grad, buffers) for grad in scene.gradients]
    problem = Problem(
        [variables[i] for i in scene.order], [slots[i] for i in scene.order], gradients
    )
    has_copies = any(copy is not None for copy in copies)
    return problem, [copies[i] for i in scene.order] if has_copies else None


def _given(grad: Place | Rows, buffers: list[bytearray]) -> Any:
    if not isinstance(grad, Rows):
        return grad.tensor(buffers)
    return IndexedSlices(grad.values.tensor(buffers), grad.indices.tensor(buffers))


def _take(
    rule_case: Case,
    problem: Problem,
    copies: Any,
    selection: Any,
    engines: Engines,
    step: int,
    from_copies: bool,
) -> None:
    scalars = type(rule_case).scalars

    class Later(Case):
        def scalars(self, dtype: Any, _: int = 0) -> dict[str, Any]:
            return scalars(self, dtype, step)

    late_case = Later(rule_case.row, rule_case.config, rule_case.hypers)
    options = {"copies": copies, "from_copies": from_copies and copies is not None}
    take(late_case, problem, selection, engines=engines, **options)


def _move_a_gradient(
    scene: Scene,
    problem: Problem,
    drawer: Drawer,
    buffers: list[bytearray],
    oracle: Oracle,
    dice: random.Random,
) -> None:
    """Set another layout for a gradient of the next step, over whatever numbers are there."""
    position = dice.randrange(len(scene.gradients))
    index = scene.order[position]
    grad = _gradient(scene, index, drawer, dice)
    if isinstance(grad, Rows):
        raw = _rows(scene.variables[index].shape[0], grad, dice)
        _put(grad.indices, raw, buffers)
        _put(grad.indices, raw, oracle.bytes)
    elif dice.random() < 0.05:
        grad = replace(grad, is_negative=True)
    scene.gradients[position] = grad
    problem.gradients[position] = _given(grad, buffers)


def warm() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", PerformanceWarning)
    for rule in arithmetic.RULES:
        dtypes = [getattr(torch, name) for name in FLOATS]
        take(case(rule), Problem.make(case(rule).row, [5] * len(dtypes), dtypes, 0))
    for number in range(100):
        attempt(-1, number)


def attack(long: bool, seed: int) -> Figures:
    return figures_of(__name__, seed, CASES[long], BATCH, GOOD)
