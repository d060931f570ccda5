"""Steps of `thalweg.keras.optimizers` in one native call: only their time differs."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from bit_comparison import assert_same as assert_same_tensors
from thalweg import IndexedSlices, Variable
from thalweg._core.plan_cache import PlanCache
from thalweg._engines import torch_layout_probe
from thalweg._engines.cpu import guard_table, replay_block
from thalweg.keras import optimizers
from thalweg.rules import ADAM, ADAM_V1
from thalweg.schedules import ExponentialDecay

pytestmark = pytest.mark.skipif(
    isinstance(torch_layout_probe.layout(), str), reason="torch's objects cannot be read here"
)
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
CLASSES: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("Adam", {}),
    ("Adam", {"amsgrad": True}),
    ("Adam", {"decay": 0.1}),
    ("Adamax", {}),
    ("Nadam", {}),
    ("Nadam", {"schedule_decay": 0.1, "global_clipnorm": 1.0}),
    ("Adagrad", {}),
    ("Adadelta", {}),
    ("Ftrl", {"l2_shrinkage_regularization_strength": 0.1}),
    ("RMSprop", {"momentum": 0.5, "centered": True}),
    ("RuleOptimizer", {"rule": ADAM}),
    ("Adam", {"learning_rate": ExponentialDecay(0.1, 2, 0.5)}),
    ("SGD", {"clipnorm": 1.0}),
    ("Adam", {"clipvalue": 0.5}),
    ("RMSprop", {"global_clipnorm": 1.0}),
    ("Adam", {"global_clipnorm": 0.1, "learning_rate": ExponentialDecay(0.1, 2, 0.5)}),
]


class Training:
    """An optimizer over three variables; its twin takes no step in one call."""

    def __init__(self, name: str = "Adam", is_twin: bool = False, **options: Any) -> None:
        torch.manual_seed(0)
        self.variables = [
            Variable(torch.randn(shape).to(dtype), name=f"{place}_{dtype}")
            for dtype in DTYPES
            for place, shape in enumerate([(3, 2), (70,), ()])
        ]
        self.optimizer = getattr(optimizers, name)(**options)
        self.is_twin = is_twin

    @property
    def kept(self) -> Any:
        return self.optimizer._plans.now()

    @property
    def taken(self) -> int:
        return getattr(self.kept.replay, "taken", 0)

    def pairs(self, seed: int) -> list[tuple[Any, Any]]:
        dice = torch.Generator().manual_seed(seed)
        return [
            (torch.randn(var.shape, generator=dice).to(var.dtype), var) for var in self.variables
        ]

    def step(self, seed: int, change: Callable[..., Any] = lambda pairs: pairs) -> None:
        if self.is_twin:
            self.kept.replay = None
        self.optimizer.apply_gradients(change(self.pairs(seed)))

    def written(self) -> list[Any]:
        return [tensor.clone() for tensor in (*self.variables, *self.optimizer.variables())]


def assert_same(training: Training, twin: Training) -> None:
    assert_same_tensors(training.written(), twin.written())


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "options"), CLASSES, ids=["-".join((n, *o)) for n, o in CLASSES])
def test_every_class_is_replayed(name: str, options: dict[str, Any]) -> None:
    fast, twin = Training(name, **options), Training(name, True, **options)
    for seed in range(8):
        fast.step(seed)
        twin.step(seed)
        assert_same(fast, twin)
    assert fast.taken == 6
    assert twin.taken == 0
    assert int(fast.optimizer.iterations) == 8


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "options"), CLASSES, ids=["-".join((n, *o)) for n, o in CLASSES])
def test_large_steps_are_replayed(name: str, options: dict[str, Any], large_steps: None) -> None:
    fast, twin = Training(name, **options), Training(name, True, **options)
    for seed in range(6):
        fast.step(seed)
        twin.step(seed)
    assert_same(fast, twin)
    assert fast.taken == 4
    assert fast.kept.replay._native_step.guards.releases_lock


def test_zipped_pairs_are_replayed() -> None:
    fast, twin = Training(), Training(is_twin=True)
    for seed in range(8):
        gradients = [grad for grad, _ in fast.pairs(seed)]
        fast.optimizer.apply_gradients(zip(gradients, fast.variables, strict=True))
        twin.step(seed)
        assert_same(fast, twin)
    assert fast.taken == 6


def test_minimize_is_replayed() -> None:
    training = Training()
    for _ in range(8):
        training.optimizer.minimize(
            lambda: sum((var * var).sum().float() for var in training.variables), training.variables
        )
    assert training.taken == 6


def test_replayed_product_is_that_of_its_variables_dtype() -> None:
    for dtypes, replays in (((0, 1, 2), 4), ((1, 0), 0), ((1,), 4), ((2,), 0), ((0, 2), 4)):
        sides = [Training("Nadam", is_twin) for is_twin in (False, True)]
        for training in sides:
            variables = training.variables
            training.variables = [var for k in dtypes for var in variables[3 * k : 3 * k + 3]]
            for seed in range(6):
                training.step(seed)
                if seed == 3:
                    training.optimizer._cache.data.fill_(0.5)
        assert_same(*sides)
        assert sides[0].taken == replays, dtypes


# What may happen between two steps, and whether the next one is taken in a call all the same.


def _other_rate(training: Training) -> None:
    training.optimizer.learning_rate = 0.5


def _written_rate(training: Training) -> None:
    training.optimizer._hyper["learning_rate"].assign(0.5)


def _rate_without_a_version(training: Training) -> None:
    training.optimizer._hyper["learning_rate"].data.fill_(0.5)


def _other_beta(training: Training) -> None:
    training.optimizer.beta_1 = 0.5


def _other_epsilon(training: Training) -> None:
    training.optimizer.epsilon = 1.0


def _other_count(training: Training) -> None:
    training.optimizer.iterations.assign(100)


def _count_without_a_version(training: Training) -> None:
    training.optimizer.iterations.data.fill_(100)


def _written_variable(training: Training) -> None:
    training.variables[0].assign(torch.ones(3, 2))


def _other_memory(training: Training) -> None:
    training.variables[1].data = torch.ones(70)


def _constraint(training: Training) -> None:
    training.variables[0].constraint = torch.abs


def _other_weights(training: Training) -> None:
    weights = training.optimizer.get_weights()
    training.optimizer.set_weights([weight * 0 + 1 for weight in weights])


def _clipped(training: Training) -> None:
    training.optimizer.clipnorm = 0.1


def _rate_is_a_schedule(training: Training) -> None:
    training.optimizer.learning_rate = ExponentialDecay(0.1, 2, 0.5)


def _own_scalars(training: Training) -> None:
    rule_scalars = training.optimizer._rule_scalars
    training.optimizer._rule_scalars = lambda dtype, rate=None: {
        **rule_scalars(dtype),
        "learning_rate": dtype(1),
    }


class _Doubled(optimizers.Adam):
    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        return super()._resource_apply_dense(grad * 2, var, apply_state)


def _other_class(training: Training) -> None:
    training.optimizer.__class__ = _Doubled


CHANGES = [
    (False, _other_class),
    (False, _own_scalars),
    (True, _other_rate),
    (True, _written_rate),
    (True, _rate_without_a_version),
    (True, _other_beta),
    (False, _other_epsilon),
    (True, _other_count),
    (True, _count_without_a_version),
    (True, _written_variable),
    (False, _other_memory),
    (False, _constraint),
    (True, _other_weights),
    (False, _clipped),
    (False, _rate_is_a_schedule),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("replay_stays", "change"), CHANGES, ids=lambda change: getattr(change, "__name__", "")
)
def test_changes_between_replayed_steps_are_detected(
    replay_stays: bool, change: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlanCache, "longest_wait", 1)
    fast, twin = Training(), Training(is_twin=True)
    for seed in range(5):
        fast.step(seed)
        twin.step(seed)
    quick, replay_count = fast.kept.replay, fast.taken
    assert replay_count == 3
    for training in (fast, twin):
        change(training)
    fast.step(5)
    twin.step(5)
    assert_same(fast, twin)
    assert (fast.kept.replay is quick and quick.taken == replay_count + 1) is replay_stays
    for seed in range(6, 10):
        fast.step(seed)
        twin.step(seed)
        assert_same(fast, twin)


OTHER_RULES: list[tuple[str, dict[str, Any], str, Any]] = [
    ("SGD", {"momentum": 0.9}, "nesterov", True),
    ("RuleOptimizer", {"rule": ADAM}, "rule", ADAM_V1),
]


@pytest.mark.parametrize(("name", "options", "attribute", "value"), OTHER_RULES, ids=["SGD", "own"])
def test_changed_rule_is_detected(
    name: str, options: dict[str, Any], attribute: str, value: Any
) -> None:
    fast, twin = Training(name, **options), Training(name, True, **options)
    for seed in range(5):
        fast.step(seed)
        twin.step(seed)
    assert fast.taken == 3
    for seed in range(5, 9):
        for training in (fast, twin):
            setattr(training.optimizer, attribute, value)
            training.step(seed)
        assert_same(fast, twin)


@pytest.mark.parametrize("value", [np.array(0.1), torch.tensor(0.1)], ids=["array", "tensor"])
def test_epsilon_written_in_place_is_used(value: Any) -> None:
    fast, twin = Training(), Training(is_twin=True)
    for training in (fast, twin):
        training.optimizer.epsilon = deepcopy(value)
    for seed in range(8):
        for training in (fast, twin):
            training.step(seed)
            training.optimizer.epsilon += 0.5
        assert_same(fast, twin)


class _Halved(optimizers.Adam):
    def _rate(self, dtype: Any) -> Any:
        return super()._rate(dtype) / dtype(int(self.iterations) + 1)


def test_subclass_rate_is_used_in_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizers, "Halved", _Halved, raising=False)
    fast, twin = Training("Halved"), Training("Halved", True)
    for seed in range(8):
        fast.step(seed)
        twin.step(seed)
        assert_same(fast, twin)


# What else may be given, of which none is taken in a call.


def _a_tuple(pairs: list[Any]) -> Any:
    return tuple(pairs)


def _reversed(pairs: list[Any]) -> Any:
    return pairs[::-1]


def _fewer(pairs: list[Any]) -> Any:
    return pairs[:-1]


def _a_generator(pairs: list[Any]) -> Any:
    return (pair for pair in pairs)


def _lists_as_pairs(pairs: list[Any]) -> Any:
    return list(map(list, pairs))


def _without_one(pairs: list[Any]) -> Any:
    return [(None, pairs[0][1]), *pairs[1:]]


def _rows(pairs: list[Any]) -> Any:
    grad, var = pairs[0]
    return [(IndexedSlices(grad[:2], torch.tensor([2, 0]), (3, 2)), var), *pairs[1:]]


def _parameters(pairs: list[Any]) -> Any:
    return [(torch.nn.Parameter(grad), var) for grad, var in pairs]


def _of_other_strides(pairs: list[Any]) -> Any:
    grad, var = pairs[0]
    return [(grad.t().contiguous().t(), var), *pairs[1:]]


def _variable_itself(pairs: list[Any]) -> Any:
    return [(pairs[0][1].detach().as_subclass(torch.Tensor), pairs[0][1]), *pairs[1:]]


CHANGED_PAIRS = [_a_tuple, _reversed, _fewer, _a_generator, _lists_as_pairs, _without_one, _rows,
          _parameters, _of_other_strides, _variable_itself]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("change", CHANGED_PAIRS)
def test_other_pairs_equal_the_full_step(change: Callable[..., Any]) -> None:
    fast, twin = Training(), Training(is_twin=True)
    for seed in range(5):
        fast.step(seed)
        twin.step(seed)
    quick, replay_count = fast.kept.replay, fast.taken
    fast.step(5, change)
    twin.step(5, change)
    assert quick.taken == replay_count
    for seed in range(6, 9):
        fast.step(seed)
        twin.step(seed)
        assert_same(fast, twin)


INVALID_PAIRS = [
    lambda pairs: [(pairs[0][0].double(), pairs[0][1]), *pairs[1:]],
    lambda pairs: [(pairs[0][0][:1], pairs[0][1]), *pairs[1:]],
    lambda pairs: [(pairs[0][0].to("meta"), pairs[0][1]), *pairs[1:]],
    lambda pairs: [*pairs[:-1], (3.0, None)],
    lambda pairs: [*pairs[:-1], 3.0],
    lambda pairs: 3.0,
]


@pytest.mark.parametrize("change", INVALID_PAIRS, ids=range(len(INVALID_PAIRS)))
def test_invalid_pairs_raise_after_replays(change: Callable[..., Any]) -> None:
    fast, twin = Training(), Training(is_twin=True)
    for seed in range(5):
        fast.step(seed)
        twin.step(seed)
    tensors_before, errors = fast.written(), []
    for training in (fast, twin):
        with pytest.raises((ValueError, TypeError)) as excinfo:
            training.step(5, change)
        errors.append((type(excinfo.value), str(excinfo.value), excinfo.value.__notes__))
    assert errors[0] == errors[1]
    assert_same_tensors(tensors_before, fast.written())
    fast.step(6)
    twin.step(6)
    assert_same(fast, twin)


BLOCKS = {
    "engine": lambda: thalweg.engine("reference"),
    "denormals": lambda: thalweg.engine(denormals="keep"),
    "inference": torch.inference_mode,
}


@pytest.mark.parametrize("block", BLOCKS.values(), ids=list(BLOCKS))
def test_context_blocks_are_detected(block: Callable[[], Any]) -> None:
    fast, twin = Training(), Training(is_twin=True)
    for seed in range(5):
        fast.step(seed)
        twin.step(seed)
    quick = fast.kept.replay
    with block():
        fast.step(5)
        twin.step(5)
    assert quick.taken == 3
    fast.step(6)
    twin.step(6)
    assert_same(fast, twin)


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])  # a signal's function may
@pytest.mark.parametrize("step_is_taken", [False, True])
def test_interrupted_replay_notes_whether_the_step_was_taken(
    step_is_taken: bool, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, twin = Training(), Training(is_twin=True)
    for seed in range(5):
        fast.step(seed)
        twin.step(seed)
    take = guard_table.GuardTable.replay

    def interrupted(*args: Any) -> int:
        mismatch = take(*args) if step_is_taken else 0
        if (
            mismatch == replay_block.NOT_TABLED
        ):  # the numbers of the step are computed, and it is called again
            return mismatch
        raise error

    monkeypatch.setattr(guard_table.GuardTable, "replay", interrupted)
    with pytest.raises(error) as excinfo:
        fast.step(5)
    monkeypatch.undo()
    notes = [
        note for note in getattr(excinfo.value, "__notes__", []) if note == "The step was taken."
    ]
    assert bool(notes) is step_is_taken
    if step_is_taken:
        twin.step(5)
    assert_same(fast, twin)
    fast.step(6)
    twin.step(6)
    assert_same(fast, twin)
    # Not taken, it is planned anew: what was kept may be half of one step, half of another.
    assert fast.taken == (5 if step_is_taken else 0)
    assert int(fast.optimizer.iterations) == 6 + step_is_taken


def test_copied_optimizer_starts_without_replay() -> None:
    training = Training()
    for seed in range(5):
        training.step(seed)
    duplicate = deepcopy(training)
    assert duplicate.taken == 0
    for seed in range(5, 9):
        training.step(seed)
        duplicate.step(seed)
        assert_same(training, duplicate)
