"""The state of a graph is a session's: whoever asks an object for it is sent to `Saver`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import thalweg.v1 as tf
from attack.states import same
from thalweg import FailedPreconditionError, Variable
from thalweg.keras.optimizers import Adam
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler
from thalweg.openseq2seq.optimizers.mp_wrapper import MixedPrecisionOptimizerWrapper
from thalweg.openseq2seq.optimizers.optimizers import optimize_loss
from thalweg.v1 import train
from thalweg.v1.contrib.opt import MovingAverageOptimizer, VariableClippingOptimizer


def trained(opt: Any) -> Any:
    w = tf.Variable([1.0, 2.0], name="w")
    opt.apply_gradients([(2.0 * w, w)])
    return opt


def averaged() -> Any:
    averages = train.ExponentialMovingAverage(0.5)
    averages.apply([tf.Variable([1.0, 2.0], name="w")])
    return averages


def synchronised() -> Any:
    opt = train.SyncReplicasOptimizer(train.AdamOptimizer(), 1)
    w = tf.Variable([1.0, 2.0], name="w")
    opt.apply_gradients([(2.0 * w, w)], tf.train.get_or_create_global_step())
    return opt


def mixed() -> Any:
    w = tf.Variable([1.0, 2.0], name="w", dtype=tf.float16)
    opt = MixedPrecisionOptimizerWrapper(train.AdamOptimizer())
    opt.apply_gradients(opt.compute_gradients((w * w).sum(), [w]))
    return opt


def empty() -> Any:
    return MixedPrecisionOptimizerWrapper(train.AdamOptimizer())


MAKE: dict[str, Callable[[], Any]] = {
    "keras": lambda: trained(Adam()),
    "v1": lambda: trained(train.AdamOptimizer()),
    "without slots": lambda: trained(train.GradientDescentOptimizer(0.1)),
    "averages": averaged,
    "an optimizer of averages": lambda: trained(MovingAverageOptimizer(train.AdamOptimizer())),
    "clipping": lambda: trained(VariableClippingOptimizer(train.AdamOptimizer(), {}, 1.0)),
    "replicas": synchronised,
    "mixed precision": mixed,
    "mixed precision of nothing yet": empty,
    "loss scale": AutomaticLossScaler,
}
calls = pytest.mark.parametrize(
    "call",
    [lambda opt: opt.state_dict(), lambda opt: opt.load_state_dict({})],
    ids=["", "load"],
)


@calls
@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_graph_state_dict_raises_and_names_saver(make: Callable[..., Any], call: Any) -> None:
    with tf.Graph().as_default():
        opt = make()
        with pytest.raises(FailedPreconditionError, match=r"by thalweg\.v1\.train\.Saver\.$"):
            call(opt)
    if make not in (empty, MAKE["without slots"]):  # they know no variable of the graph
        with pytest.raises(FailedPreconditionError, match=r"by thalweg\.v1\.train\.Saver\.$"):
            call(opt)


def test_a_step_of_eager_mode_keeps_its_state_while_a_graph_is_built() -> None:
    w = Variable([1.0, 2.0], name="w")
    step = optimize_loss(lambda: (w * w).sum(), "Adam", {}, lambda step: 0.1, [w])
    step()
    state = step.state_dict()
    with tf.Graph().as_default():
        assert same(step.state_dict(), state)
        step.load_state_dict(state)


def test_average_around_masters_raises_for_state_dict() -> None:
    opt = MovingAverageOptimizer(MixedPrecisionOptimizerWrapper(train.AdamOptimizer()))
    for call in (opt.state_dict, lambda: opt.load_state_dict({})):
        with pytest.raises(TypeError, match=r"has no names for its masters\. Put it inside"):
            call()
