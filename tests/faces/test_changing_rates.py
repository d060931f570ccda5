"""Steps whose hyperparameters change each time are taken in one native call, with the same bits.

The twin of each training takes careful steps: the native look is switched off for them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import thalweg.v1 as tf
from bit_comparison import assert_same
from pairwise import cover_pairs, cover_values
from thalweg import Variable, optim, schedules
from thalweg._core.replay_pairs import ReplayedPairs
from thalweg._engines import torch_layout_probe
from thalweg.keras import backend, optimizers
from thalweg.openseq2seq.optimizers import lr_policies, optimize_loss
from thalweg.v1 import train
from thalweg.v1.contrib import opt

pytestmark = pytest.mark.skipif(
    isinstance(torch_layout_probe.layout(), str), reason="torch's objects cannot be read here"
)
KINDS = [((3, 2), torch.float32), ((70,), torch.float64), ((), torch.bfloat16)]
STEPS = 40
Change = Callable[["Training", int], object]


class Training:
    """An optimizer over three variables, and what is changed before each of its steps."""

    def __init__(self, make: Callable[..., Any], change: Change | None = None) -> None:
        torch.manual_seed(0)
        self.variables = [Variable(torch.randn(shape).to(dtype)) for shape, dtype in KINDS]
        self.global_step = Variable(0, dtype=torch.int64, trainable=False)
        self.optimizer = make(self)
        self.change = change
        self.calls = 0
        self.count_replayed = 0  # that `compare` saw taken in one call

    def pairs(self, seed: int) -> list[tuple[Tensor, Variable]]:
        dice = torch.Generator().manual_seed(seed)
        return [
            (torch.randn(var.shape, generator=dice).to(var.dtype), var) for var in self.variables
        ]

    def step(self, seed: int) -> None:
        if self.change is not None:
            self.change(self, seed)
        if isinstance(self.optimizer, optimizers.Optimizer):
            self.optimizer.apply_gradients(self.pairs(seed))
        else:
            self.optimizer.apply_gradients(self.pairs(seed), self.global_step)

    def rate(self) -> float:
        """Return another learning rate each time; a function that an optimizer is given."""
        self.calls += 1
        return 0.1 / self.calls

    @property
    def taken(self) -> int:
        return getattr(self.optimizer._plans.now().replay, "taken", 0)

    def written(self) -> list[Tensor]:
        tensors = (*self.variables, *self.optimizer.variables(), self.global_step)
        return [tensor.detach().clone() for tensor in tensors]


def compare(make: Callable[..., Any], change: Change | None, monkeypatch: Any) -> Training:
    """Take steps beside a twin that takes careful ones, and return the training."""
    run, twin = Training(make, change), Training(make, change)
    for seed in range(STEPS):
        count = run.taken
        run.step(seed)
        run.count_replayed += run.taken > count
        with monkeypatch.context() as careful:
            careful.setenv("THALWEG_NATIVE_LOOK", "0")
            twin.step(seed)
        for tensor, twin_tensor in zip(run.written(), twin.written(), strict=True):
            assert_same([tensor.nan_to_num()], [twin_tensor.nan_to_num()], f"step {seed}")
    assert twin.taken == 0
    assert run.calls == twin.calls
    return run


class _Inverse(schedules.LearningRateSchedule):
    """A schedule of a user's."""

    def __call__(self, step: Any) -> Any:
        return 0.1 / (1 + step)


SCHEDULES: dict[str, Callable[[], Any]] = {
    "exponential": lambda: schedules.ExponentialDecay(0.1, 10, 0.9),
    "exponential in float64": lambda: schedules.ExponentialDecay(np.float64(0.1), 10, 0.9),
    "staircase": lambda: schedules.ExponentialDecay(0.1, 10, 0.9, staircase=True),
    "not a number at first": lambda: schedules.ExponentialDecay(0.1, 0, 0.9),
    "inverse time": lambda: schedules.InverseTimeDecay(0.1, 10, 0.9),
    "polynomial": lambda: schedules.PolynomialDecay(0.1, 30, power=0.5, cycle=True),
    "piecewise": lambda: schedules.PiecewiseConstantDecay([5, 20.5], [0.1, 0.05, 0.01]),
    "tuples": lambda: schedules.PiecewiseConstantDecay((5, 20), (0.1, 0.05, 0.01)),
    "cosine": lambda: schedules.CosineDecay(0.0, 30, 0.1, None, 0.1, 10),
    "restarts": lambda: schedules.CosineDecayRestarts(0.1, 7),
    "linear cosine": lambda: schedules.LinearCosineDecay(0.1, 30),
    "noisy": lambda: schedules.NoisyLinearCosineDecay(0.1, 30, seed=3),
    "a field that is a tensor": lambda: schedules.ExponentialDecay(0.1, torch.tensor(9.0), 0.9),
    "a user's": _Inverse,
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("name", SCHEDULES)
def test_replay_follows_keras_schedules(
    name: str, decay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = SCHEDULES[name]
    run = compare(lambda _: optimizers.Adam(make(), decay=decay), None, monkeypatch)
    assert run.taken == STEPS - 2


def _keras(rate: Any = 0.1, **options: Any) -> Callable[[Any], Any]:
    return lambda _: optimizers.Adam(rate() if callable(rate) else rate, **options)


def _sgd(_: Any) -> Any:
    return optimizers.SGD(0.1, momentum=0.9)


def _set(name: str, factor: float = 0.1) -> Change:
    return lambda run, k: setattr(run.optimizer, name, factor / (1 + k))


def _assign_rate(run: Training, k: int) -> None:
    if k:
        run.optimizer._hyper["learning_rate"].assign(0.1 / k)


def _call_back(run: Training, k: int) -> None:
    if k:
        backend.set_value(run.optimizer._hyper["learning_rate"], 0.1 / k)


def _fill_without_a_version(run: Training, k: int) -> None:
    if k:
        run.optimizer._hyper["learning_rate"].data.fill_(0.1 / k)


def _set_two(run: Training, k: int) -> None:
    run.optimizer.learning_rate, run.optimizer.momentum = 0.1 / (1 + k), 0.9 - 0.01 * k


def _set_rarely(run: Training, k: int) -> None:
    if k % 7 == 6:
        run.optimizer.learning_rate = 0.1 / k


def _set_field(run: Training, k: int) -> None:
    run.optimizer.learning_rate.decay_rate = 0.9 - 0.01 * k


def _set_item(run: Training, k: int) -> None:
    run.optimizer.learning_rate.values[1] = 0.05 / (1 + k)


def _set_count(run: Training, k: int) -> None:
    if k > 5 and k % 7 == 0:
        run.optimizer.iterations.assign(k // 2)


def _set_schedule(run: Training, k: int) -> None:
    run.optimizer.learning_rate = schedules.ExponentialDecay(0.1 + k, 10, 0.9)


def _scale_tensor(run: Training, k: int) -> None:
    run.optimizer._hyper["learning_rate"].mul_(0.9)


BY_HAND: dict[str, tuple[Callable[[Any], Any], Change]] = {
    "rate": (_keras(), _set("learning_rate")),
    "rate of the constructor's decay": (_keras(decay=0.1), _set("learning_rate")),
    "beta": (_keras(), _set("beta_1", 0.9)),
    "momentum": (_sgd, _set("momentum", 0.9)),
    "rate and momentum": (_sgd, _set_two),
    "rate, rarely": (_keras(), _set_rarely),
    "rate by assign": (_keras(), _assign_rate),
    "rate by a callback": (_keras(), _call_back),
    "rate without a version": (_keras(), _fill_without_a_version),
    "rate in a tensor": (_keras(lambda: torch.tensor(0.1)), _scale_tensor),
    "number over a schedule": (_keras(SCHEDULES["exponential"]), _set("learning_rate")),
    "schedule over a schedule": (_keras(SCHEDULES["cosine"]), _set_schedule),
    "field of a schedule": (_keras(SCHEDULES["exponential"]), _set_field),
    "item of a schedule": (_keras(SCHEDULES["piecewise"]), _set_item),
    "count of steps": (_keras(SCHEDULES["exponential"]), _set_count),
    "clipping beside a rate": (_keras(global_clipnorm=0.5), _set("learning_rate")),
    "clipping beside a schedule": (
        _keras(SCHEDULES["exponential"], global_clipnorm=0.5),
        lambda run, k: None,
    ),
    "coefficient of Ftrl": (
        lambda _: optimizers.Ftrl(0.1, l1_regularization_strength=0.1),
        _set("l1_regularization_strength"),
    ),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", BY_HAND)
def test_replay_follows_assigned_keras_hyperparameters(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compare(*BY_HAND[name], monkeypatch).count_replayed == STEPS - 2


def test_replay_follows_assigned_user_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    def note(run: Training, k: int) -> None:
        run.optimizer.note = k
        run.optimizer.learning_rate = 0.1 / (1 + k)

    assert compare(_keras(), note, monkeypatch).count_replayed > STEPS - 8


def test_replay_follows_a_replaced_attribute_dictionary(monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(run: Training, k: int) -> None:
        run.optimizer.__dict__ = dict(run.optimizer.__dict__)

    compare(_keras(SCHEDULES["exponential"]), replace, monkeypatch)
    compare(
        lambda run: train.AdamOptimizer(DECAYS["cosine"](run.global_step)), replace, monkeypatch
    )


DECAYS: dict[str, Callable[[Any], Any]] = {
    "exponential": lambda step: train.exponential_decay(0.1, step, 10, 0.9),
    "float64": lambda step: train.exponential_decay(np.float64(0.1), step, 10, 0.9),
    "natural": lambda step: train.natural_exp_decay(0.1, step, 10, 0.9, True),
    "inverse time": lambda step: train.inverse_time_decay(0.1, step, 10, 0.9),
    "polynomial": lambda step: train.polynomial_decay(0.1, step, 30, power=0.5, cycle=True),
    "cosine": lambda step: train.cosine_decay(0.1, step, 30, alpha=0.1),
    "restarts": lambda step: train.cosine_decay_restarts(0.1, step, 7),
    "linear cosine": lambda step: train.linear_cosine_decay(0.1, step, 30),
    "piecewise": lambda step: train.piecewise_constant(step, [5, 20], [0.1, 0.05, 0.01]),
    "not a number at first": lambda step: train.exponential_decay(0.1, step, 0, 0.9),
    "arithmetic": lambda step: 1e-3 + 2 * train.exponential_decay(0.1, step, 10, 0.9),
    "product of two": lambda step: DECAYS["cosine"](step) * DECAYS["inverse time"](step),
    "torch's function": lambda step: torch.clamp(DECAYS["cosine"](step), max=0.05),
    "rate in a tensor": lambda step: train.exponential_decay(torch.tensor(0.1), step, 10, 0.9),
    "rate in a variable": lambda step: train.exponential_decay(Variable(0.1), step, 10, 0.9),
    "of a fixed step": lambda step: train.exponential_decay(0.1, 5, 10, 0.9),
    "policy, piecewise": lambda step: lr_policies.piecewise_constant(
        step, 0.1, [5, 20], [0.5, 0.1]
    ),
    "policy, exp": lambda step: lr_policies.exp_decay(step, 0.1, 10, 0.9, False, 5, 0.01),
    "policy, poly": lambda step: lr_policies.poly_decay(step, 0.1, 30, 2.0, 5, 1e-3, 8),
    "policy, cosine": lambda step: lr_policies.cosine_decay(step, 0.1, 30, 1.0, 5, 0.1, 8),
    "policy, transformer": lambda step: lr_policies.transformer_policy(step, 1.0, 64, 20),
    "policy, inverse": lambda step: lr_policies.inv_poly_decay(step, 0.1, 30, 1e-3),
    "a user's function": lambda step: lambda: 0.1 / (1 + int(step)),
    "a user's tensor": lambda step: lambda: torch.tensor(0.1) / (1 + step),
}
V1: dict[str, Callable[[Any], Any]] = {
    "Adam": train.AdamOptimizer,
    "Momentum": lambda rate: train.MomentumOptimizer(rate, 0.9),
    "AdamW": lambda rate: opt.AdamWOptimizer(0.01, learning_rate=rate),
}


def _move_step(run: Training, k: int) -> None:
    if k in (20, 21):
        run.global_step.assign(10)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("optimizer", "name"), cover_values(product(V1, DECAYS), 1))
def test_replay_follows_v1_decays(
    optimizer: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = compare(lambda run: V1[optimizer](DECAYS[name](run.global_step)), _move_step, monkeypatch)
    assert run.taken == STEPS - 2


def _scale_rate(run: Training, k: int) -> None:
    run.rate_tensor.mul_(0.9 if k % 9 else 1e-30)


def _lose_rate(run: Training, k: int) -> None:
    run.rate_tensor.fill_(0.1 if k % 9 else float("nan"))


def _move_rate(run: Training, k: int) -> None:
    run.rate_tensor.data = run.rate_tensor.data.clone() * 0.9


RATES: dict[str, Callable[[], Tensor]] = {
    "float32": lambda: torch.tensor(0.1),
    "float64": lambda: torch.tensor(0.1, dtype=torch.float64),
    "bfloat16": lambda: torch.tensor(0.1, dtype=torch.bfloat16),
    "variable": lambda: Variable(0.1, trainable=False),
    "item of a vector": lambda: torch.tensor([3.0, 0.1])[1],
    "complement": lambda: torch._neg_view(torch.tensor(-0.1)),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("optimizer", "name", "change"),
    cover_pairs(product(V1, RATES, (_scale_rate, _lose_rate, _move_rate))),
)
def test_replay_follows_tensor_rates(
    optimizer: str, name: str, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(run: Any) -> Any:
        run.rate_tensor = RATES[name]()
        return V1[optimizer](run.rate_tensor)

    count = compare(make, change, monkeypatch).count_replayed
    assert count == STEPS - 2 or change is _move_rate


def _optimize_loss(weights: Variable) -> Callable[[], object]:
    loss = lambda: (weights * weights).sum()  # noqa: E731
    return optimize_loss(loss, "Adam", {}, DECAYS["policy, exp"], [weights])


FORESEEN: dict[str, Callable[[Any], Any]] = {
    "Keras, number": lambda _: optimizers.Adam(0.1),
    "Keras, schedule": lambda _: optimizers.Adam(SCHEDULES["cosine"]()),
    "Keras, clipping": lambda _: optimizers.Adam(SCHEDULES["cosine"](), global_clipnorm=0.5),
    "v1, number": lambda _: train.AdamOptimizer(0.1),
    "v1, decay": lambda run: train.AdamOptimizer(DECAYS["cosine"](run.global_step)),
    "v1, tensor": lambda _: train.AdamOptimizer(torch.tensor(0.1)),
}


def _count_computations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    counts: list[int] = []
    set_coming = ReplayedPairs.set_coming

    def counting(self: Any, first: int, steps: Any) -> bool:
        counts.append(len(steps))
        return set_coming(self, first, steps)

    monkeypatch.setattr(ReplayedPairs, "set_coming", counting)
    return counts


@pytest.mark.parametrize("name", FORESEEN)
def test_rates_are_computed_for_several_steps(name: str, monkeypatch: Any) -> None:
    run, counts = Training(FORESEEN[name]), _count_computations(monkeypatch)
    for seed in range(STEPS):
        run.step(seed)
    assert run.taken == STEPS - 2
    assert counts == [0, 1, 2, 4, 8, 16, 32]  # none when it is planned


def test_optimize_loss_rates_are_computed_for_several_steps(monkeypatch: Any) -> None:
    step, counts = _optimize_loss(Variable(torch.ones(3))), _count_computations(monkeypatch)
    for _ in range(STEPS):
        step()
    assert counts == [0, 1, 2, 4, 8, 16, 32]  # none when it is planned


def test_a_schedule_that_fails_fails_at_its_step() -> None:
    """Steps before it are taken, although their numbers were to be computed together."""

    def make(_: Any) -> Any:
        rate = schedules.PiecewiseConstantDecay([10], [0.1, 10**400])
        return optimizers.Adam(rate)

    errors: list[Any] = []
    for is_careful in (False, True):
        run = Training(make)
        for seed in range(STEPS):
            if is_careful:
                run.optimizer._plans.now().replay = None
            try:
                run.step(seed)
            except (TypeError, ValueError, ArithmeticError) as error:
                errors.append((seed, type(error), str(error), error.__notes__))
                break
    assert errors[0] == errors[1]


def test_replay_follows_a_random_decay() -> None:
    run = Training(lambda run: train.AdamOptimizer(_noisy(run.global_step)))
    for seed in range(STEPS):
        run.step(seed)
    assert run.taken == STEPS - 2


def _noisy(step: Any) -> Any:
    return train.noisy_linear_cosine_decay(0.1, step, 30)


def test_replay_follows_a_decay_of_another_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(run: Any) -> Any:
        run.epoch = Variable(0, dtype=torch.int64)
        return train.AdamOptimizer(train.exponential_decay(0.1, run.epoch, 3, 0.9))

    def begin_epoch(run: Any, k: int) -> None:
        if k % 5 == 4:
            run.epoch.assign(k)

    assert compare(make, begin_epoch, monkeypatch).count_replayed == STEPS - 2


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "Keras, rate": lambda run: optimizers.Adam(run.rate),
    "Keras, beta": lambda run: optimizers.Adam(0.1, beta_1=run.rate),
    "Keras, rate that decays": lambda run: optimizers.Adam(run.rate, decay=0.1),
    "v1, rate": lambda run: train.AdamOptimizer(run.rate),
    "v1, beta": lambda run: train.AdamOptimizer(0.1, beta1=run.rate),
    "v1, momentum": lambda run: train.MomentumOptimizer(0.1, run.rate),
    "v1, weight decay": lambda run: opt.AdamWOptimizer(run.rate, learning_rate=0.1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_called_once_a_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = compare(FUNCTIONS[name], None, monkeypatch)
    assert run.calls == run.taken + 2 + (name == "v1, beta")  # which makes a first value of it
    assert run.taken == STEPS - 2


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_that_change_the_step_are_called_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After such a call the step is not the one that was compared, and is taken carefully."""

    def make(run: Any) -> Any:
        source = run.rate

        def rate() -> float:
            if run.calls % 5 == 4:  # its memory is another one then
                run.variables[0].data = run.variables[0].data.clone()
            return source()

        run.rate = rate
        return FUNCTIONS[name](run)

    assert 0 < compare(make, None, monkeypatch).count_replayed < STEPS - 2


@pytest.mark.parametrize("name", FUNCTIONS)
def test_rejected_step_calls_no_rate_function(name: str) -> None:
    run = Training(FUNCTIONS[name])
    for seed in range(5):
        run.step(seed)
    tensors_before, calls = run.written(), run.calls
    grads = [(grad[:1] if grad.dim() else grad, var) for grad, var in run.pairs(5)]
    with pytest.raises((ValueError, TypeError)):
        run.optimizer.apply_gradients(grads)
    assert run.calls == calls
    assert_same(tensors_before, run.written())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("result", ["a word", float("nan"), ValueError("no rate")], ids=str)
def test_failing_rate_function_takes_no_step(name: str, result: Any) -> None:
    errors: list[tuple[Any, ...]] = []
    for is_careful in (False, True):
        run = Training(FUNCTIONS[name])
        source = run.rate

        def rate(run: Any = run, rate: Any = source) -> Any:
            if run.calls != 6:
                return rate()
            run.calls += 1
            if isinstance(result, Exception):
                raise type(result)(*result.args)
            return result

        run.rate = rate  # pyright: ignore[reportAttributeAccessIssue]
        run.optimizer = FUNCTIONS[name](run)
        raised: list[Any] = []
        for seed in range(10):
            if is_careful:
                run.optimizer._plans.now().replay = None
            tensors_before = run.written()
            try:
                run.step(seed)
            except (TypeError, ValueError) as error:
                assert_same(tensors_before, run.written())
                raised.append((seed, type(error), str(error), error.__notes__))
        errors.append((raised, run.calls, [tensor.tolist() for tensor in run.written()]))
    assert repr(errors[0]) == repr(errors[1])


@pytest.mark.parametrize("by_feed", [False, True])
def test_session_replay_follows_rates(by_feed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    values: list[Any] = []
    for is_careful in (False, True):
        with tf.Graph().as_default(), monkeypatch.context() as careful:
            if is_careful:
                careful.setenv("THALWEG_NATIVE_LOOK", "0")
            step = train.get_or_create_global_step()
            weights = tf.Variable(np.arange(6, dtype="float32"), name="weights")
            feed = tf.placeholder("float32", ())
            rate = feed if by_feed else train.exponential_decay(0.1, step, 10, 0.9)
            optimizer = train.AdamOptimizer(rate)
            op = optimizer.minimize((weights * weights).sum(), global_step=step)
            with tf.Session() as session:
                session.run(tf.global_variables_initializer())
                for k in range(STEPS):
                    session.run(op, {feed: 0.1 / (1 + k)})
                plans = optimizer._plans._sessions[session]
                counts.append(getattr(plans.replay, "taken", 0))
                values.append(session.run(weights))
    assert counts == [STEPS - 2, 0]
    assert values[0].tobytes() == values[1].tobytes()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", [name for name in DECAYS if name.startswith("policy")])
def test_replay_follows_optimize_loss_policies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: list[Any] = []
    for is_careful in (False, True):
        weights = Variable(torch.arange(6.0))
        with monkeypatch.context() as careful:
            if is_careful:
                careful.setenv("THALWEG_NATIVE_LOOK", "0")
            step = optimize_loss(
                lambda w=weights: (w * w).sum(), "Adam", {}, DECAYS[name], [weights]
            )
            for _ in range(STEPS):
                step()
        quick = step._inner._plans.now().replay
        outcomes.append((getattr(quick, "taken", 0), weights.detach()))
    assert [count for count, _ in outcomes] == [STEPS - 2, 0]
    assert_same([outcomes[0][1]], [outcomes[1][1]])


RATES_WITHOUT_MEMORY = {
    "zeros": lambda: torch._efficientzerotensor((), dtype=torch.float32, device="cpu"),
    "negative bit": lambda: torch.view_as_complex(torch.tensor([0.0, -0.1])).conj().imag,
}


@pytest.mark.parametrize("kind", RATES_WITHOUT_MEMORY)
@pytest.mark.parametrize("front_end", ["optim", "keras", "v1"])
def test_lazy_or_meta_rates_are_read_by_torch(front_end: str, kind: str) -> None:
    """Steps read such a rate by torch's functions: its memory is missing, or has another sign."""
    ends: list[Tensor] = []
    for rate in (RATES_WITHOUT_MEMORY[kind](), float(RATES_WITHOUT_MEMORY[kind]())):
        variable: Any = Variable(torch.ones(3))
        if front_end == "optim":
            optimizer: Any = optim.SGD(
                [variable], lr=rate, foreach=isinstance(rate, Tensor) or None
            )
        else:
            make = {"keras": optimizers.SGD, "v1": train.GradientDescentOptimizer}[front_end]
            optimizer = make(rate)
        for _ in range(6):
            gradient = torch.full((3,), 0.5)
            if front_end == "optim":
                variable.grad = gradient
                optimizer.step()
            else:
                optimizer.apply_gradients([(gradient, variable)])
        ends.append(variable.detach().as_subclass(Tensor).clone())
    assert torch.equal(*ends)
