"""`optimize_loss` in graphs calls hooks of a subclass once, as the graph is built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import thalweg.tf as tf
from thalweg import Variable
from thalweg.openseq2seq.optimizers import optimize_loss
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler
from thalweg.openseq2seq.optimizers.mp_wrapper import MixedPrecisionOptimizerWrapper
from thalweg.v1 import train

v1 = tf.compat.v1
HALF, SINGLE = torch.float16, torch.float32


class Momentum(train.Optimizer):
    """Momentum by a hook, in operations that eager mode and graphs have."""

    NAME = "Momentum"

    def __init__(self, learning_rate: Any = 0.1) -> None:
        super().__init__(False, self.NAME)
        self._rate = learning_rate
        self.calls = 0

    def _create_slots(self, var_list: Any) -> None:
        for var in var_list:
            self._zeros_slot(var, "momentum", self._name)

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        self.calls += 1
        m = self.get_slot(var, "momentum")
        new_m = m.assign(m * 0.5 + grad)
        return var.assign_sub(new_m * self._rate)

    def _apply_sparse(self, grad: Any, var: Any) -> Any:
        self.calls += 1
        return var.scatter_sub(tf.IndexedSlices(grad.values * self._rate, grad.indices))


class Own(Momentum):
    """Momentum by an overriding `apply_gradients`."""

    NAME = "Own"

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: Any = None
    ) -> Any:
        pairs = list(grads_and_vars)
        self._create_slots([var for _, var in pairs])
        updates = [
            self._apply_sparse_duplicate_indices(grad, var)
            if isinstance(grad, tf.IndexedSlices)
            else self._apply_dense(grad, var)
            for grad, var in pairs
        ]
        with tf.control_dependencies(updates):
            updates.append(global_step.assign_add(1))
        return tf.group(*updates)


class InTorch(Momentum):
    """Momentum by torch's functions that write in place."""

    NAME = "InTorch"

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        self.calls += 1
        m = self.get_slot(var, "momentum")
        m.mul_(0.5)
        m.add_(grad)
        var.sub_(m * self._rate)


class AtEachRun(Momentum):
    HOOKS_AT_EACH_RUN = True


BACKOFF = {"loss_scaling": "Backoff", "loss_scaling_params": {"scale_max": 1024.0}}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipped": {"clip_gradients": 0.5},
    "larc": {"larc_params": {"larc_eta": 0.01}},
    "mixed": {"dtype": "mixed", "loss_scaling": 8.0},
    "scaled": {"dtype": "mixed", **BACKOFF, "clip_gradients": 0.5},
    "log": {"dtype": "mixed", "loss_scaling": "LogMax", "larc_params": {"larc_eta": 0.01}},
    "added up": {"iter_size": 2},
    "all": {
        "iter_size": 2,
        "dtype": "mixed",
        **BACKOFF,
        "clip_gradients": 0.5,
        "on_horovod": True,
    },
}
FACTORS = [1.0, 2.0, float("inf"), -1.0, 0.5, 1.0]
ROWS = torch.tensor([2, 0, 2])


def loss_of(params: dict[str, Any], factor: Any) -> Any:
    loss = (params["w"].float() ** 2).sum() * factor + (params["w"].float() * params["b"]).sum()
    return loss + (tf.gather(params["emb"], ROWS) ** 2).sum()


def starts(options: dict[str, Any]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    kind = HALF if "dtype" in options else SINGLE
    shapes = {"w": (3,), "b": (3,), "emb": (4, 2)}
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {**tensors, "w": tensors["w"].to(kind)}


def factors_of(options: dict[str, Any]) -> list[float]:
    decides = options.get("loss_scaling") in ("Backoff", "LogMax")
    return [factor for factor in FACTORS if decides or np.isfinite(factor)]


def rate(step: Any) -> Any:
    return 0.1 / (1.0 + tf.cast(step, tf.float32))


def eagerly(options: dict[str, Any]) -> list[Any]:
    """The values of all variables and of the global step after each run."""
    factor, skip = torch.tensor(1.0), torch.tensor(False)
    params = {name: Variable(value, name=name) for name, value in starts(options).items()}
    skips: dict[str, Any] = {"skip_update_ph": lambda: skip} if "iter_size" in options else {}
    step = optimize_loss(
        lambda: loss_of(params, factor), Momentum, {}, rate, [*params.values()], **options, **skips
    )
    outcomes = []
    for index, value in enumerate(factors_of(options)):
        factor.fill_(value)
        skip.fill_(index % 2 == 0)
        loss = step()
        outcomes.append(
            [loss.tolist(), *(var.tolist() for var in params.values()), int(step.global_step)]
        )
    return outcomes


def in_a_session(options: dict[str, Any], optimizer: Any) -> tuple[list[Any], Any]:
    """Return the values after each step in a graph, and the optimizer."""
    optimizers = []

    def make(learning_rate: Any) -> Any:
        optimizers.append(optimizer(learning_rate))
        return optimizers[0]

    with tf.Graph().as_default(), v1.Session() as session:
        params = {key: v1.Variable(value, name=key) for key, value in starts(options).items()}
        factor, skip = v1.placeholder(tf.float32, []), v1.placeholder(tf.bool, [])
        skips: dict[str, Any] = {"skip_update_ph": skip} if "iter_size" in options else {}
        op = optimize_loss(loss_of(params, factor), make, {}, rate, **options, **skips)
        assert v1.get_collection(v1.GraphKeys.TRAIN_OP) == [op.op]
        session.run(v1.global_variables_initializer())
        outcomes = []
        for index, value in enumerate(factors_of(options)):
            loss = session.run(op, {factor: value, skip: index % 2 == 0})
            values = session.run([*params.values(), train.get_global_step()])
            outcomes.append([loss.tolist(), *(array.tolist() for array in values)])
    return outcomes, optimizers[0]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("optimizer", [Momentum, Own, InTorch])
@pytest.mark.parametrize("case", OPTIONS)
def test_recorded_hooks_equal_hooks_of_each_run(case: str, optimizer: Any) -> None:
    outcomes, opt = in_a_session(OPTIONS[case], optimizer)
    references, _ = in_a_session(OPTIONS[case], AtEachRun)
    assert opt.calls == 3
    assert references[-1][-1] > 1
    for run, reference, eager in zip(outcomes, references, eagerly(OPTIONS[case]), strict=True):
        for array, two, three in zip(run, reference, eager, strict=True):
            np.testing.assert_array_equal(array, two)
            np.testing.assert_allclose(array, three, rtol=1e-5)  # gradients add up otherwise


def test_a_global_step_in_a_hook_is_that_of_the_graph() -> None:
    class ByStep(train.GradientDescentOptimizer):
        def _apply_dense(self, grad: Any, var: Any) -> Any:
            assert not tf.executing_eagerly()
            step = tf.cast(v1.train.get_or_create_global_step(), tf.float32)
            return super()._apply_dense(grad / (step + 1.0), var)

    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.Variable([1.0], name="w")
        op = optimize_loss(tf.reduce_sum(w), ByStep, {}, lambda step: 0.1)
        session.run(v1.global_variables_initializer())
        for _ in range(3):
            session.run(op)
        np.testing.assert_allclose(session.run(w), [1 - 0.1 * (1 + 1 / 2 + 1 / 3)], rtol=1e-6)


@pytest.mark.parametrize("case", ["plain", "scaled", "all"])
def test_failing_update_restores_sums_masters_and_scale(case: str) -> None:
    options = OPTIONS[case]

    class Failing(Momentum):
        def _finish(self, update_ops: Any, name_scope: str) -> Any:
            with tf.control_dependencies(update_ops):
                return tf.group(v1.assert_equal(fails, 0.0), name=name_scope)

    with tf.Graph().as_default(), v1.Session() as session:
        params = {key: v1.Variable(value, name=key) for key, value in starts(options).items()}
        fails, skip = v1.placeholder(tf.float32, []), v1.placeholder(tf.bool, [])
        skips: dict[str, Any] = {"skip_update_ph": skip} if "iter_size" in options else {}
        op = optimize_loss(loss_of(params, 1.0), Failing, {}, rate, **options, **skips)
        session.run(v1.global_variables_initializer())
        session.run(op, {fails: 0.0, skip: True})
        values_before = session.run(v1.global_variables())
        with pytest.raises(Exception, match="assert") as excinfo:
            session.run(op, {fails: 1.0, skip: False})
        assert any("The step was not taken" in note for note in excinfo.value.__notes__)
        values_after = session.run(v1.global_variables())
        for value_after, value_before in zip(values_after, values_before, strict=True):
            np.testing.assert_array_equal(value_after, value_before)
        step = session.run(train.get_global_step())
        session.run(op, {fails: 0.0, skip: False})
        assert session.run(train.get_global_step()) == step + 1


class Writer:
    def __init__(self) -> None:
        self.messages: list[Any] = []

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.messages.append((tag, value, step))

    def add_histogram(self, tag: str, values: Any, step: int) -> None:
        self.messages.append((tag, values.tolist(), step))


@pytest.mark.parametrize("case", ["clipped", "scaled", "all"])
def test_writer_gets_the_summaries_of_other_optimizers(case: str) -> None:
    def told(optimizer: Any) -> list[Any]:
        options, writer = OPTIONS[case], Writer()
        with tf.Graph().as_default(), v1.Session() as session:
            params = {key: v1.Variable(value, name=key) for key, value in starts(options).items()}
            factor, skip = v1.placeholder(tf.float32, []), v1.placeholder(tf.bool, [])
            skips: dict[str, Any] = {"skip_update_ph": skip} if "iter_size" in options else {}
            summaries = ["learning_rate", "loss_scale", "global_gradient_norm", "variables"]
            summaries = [*summaries, "gradients"]
            op = optimize_loss(
                loss_of(params, factor), optimizer, {}, rate, summaries=summaries,
                summary_writer=writer, **options, **skips,
            )  # fmt: skip
            session.run(v1.global_variables_initializer())
            for index, value in enumerate(factors_of(options)):
                session.run(op, {factor: value, skip: index % 2 == 0})
        return writer.messages

    messages = told(Momentum)
    assert repr(messages) == repr(told(AtEachRun))  # NaN among them
    assert messages


@pytest.mark.parametrize("optimizer", [Momentum, Own])
@pytest.mark.parametrize("scale", [None, 8.0, "Backoff"])
def test_recorded_hooks_work_with_masters_only(optimizer: Any, scale: Any) -> None:
    def steps(cls: Callable[..., Any]) -> list[Any]:
        with tf.Graph().as_default(), v1.Session() as session:
            w = v1.Variable(torch.tensor([1.0, 2.0], dtype=HALF), name="w")
            u, factor = v1.Variable([1.0], name="other"), v1.placeholder(tf.float32, [])
            loss_scale = AutomaticLossScaler() if scale == "Backoff" else scale
            opt, count = (
                MixedPrecisionOptimizerWrapper(cls(0.1), loss_scale),
                train.create_global_step(),
            )
            loss = tf.reduce_sum(w.float() * factor) + tf.reduce_sum(u * w.float())
            op = opt.minimize(loss, count)
            assert v1.get_collection(v1.GraphKeys.TRAIN_OP) == [op]
            session.run(v1.global_variables_initializer())
            for value in (1.0, float("inf"), 2.0) if scale == "Backoff" else (1.0, 2.0):
                session.run(op, {factor: value})
            return session.run([w, u, opt.get_master(w), count])

    for array, two in zip(steps(optimizer), steps(AtEachRun), strict=True):
        np.testing.assert_array_equal(array, two)
