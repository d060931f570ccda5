"""An exception in the user's code: a step of `optimize_loss` is taken as a whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from failing_callable import NOT_TAKEN, Fuse, errors
from interruptions import interrupted_at, interrupted_in_contextlib
from openseq2seq_small import make_step
from openseq2seq_steps import Training, differing_names, each_way, way
from thalweg import Variable, _graph
from thalweg.openseq2seq.optimizers import optimize_loss
from thalweg.openseq2seq.optimizers.mp_wrapper import (
    MixedPrecisionOptimizerWrapper,
    mp_regularizer_wrapper,
)
from thalweg.v1 import train

__all__ = ["way"]

afterwards = pytest.mark.parametrize("updates", [0, 2], ids=["first update", "third update"])


class Hooked(train.AdamOptimizer):
    """Adam with one hook that may fail, after its work is done; in a graph at a run, too."""

    HOOKS_AT_EACH_RUN = True

    def __init__(self, learning_rate: Any, fuse: Fuse, hook: str) -> None:
        super().__init__(learning_rate)
        self.fuse, self.hook = fuse, hook

    def _prepare(self) -> None:
        super()._prepare()
        if self.hook == "_prepare":
            self.fuse()

    def _finish(self, update_ops: list[Any], name_scope: str) -> Any:
        super()._finish(update_ops, name_scope)
        if self.hook == "_finish":
            self.fuse()


class HookedUpdates(train.AdamOptimizer):
    """Adam whose update fails at the second variable, after its work is done."""

    def __init__(self, learning_rate: Any, fuse: Fuse) -> None:
        super().__init__(learning_rate)
        self.fuse = fuse

    def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
        super()._resource_apply_dense(grad, handle)
        if handle.name == "norm:0":
            self.fuse()


class FailingWriter:
    def __init__(self, fuse: Fuse, method: str) -> None:
        self.fuse, self.method = fuse, method

    def add_scalar(self, *args: Any) -> None:
        if self.method == "add_scalar":
            self.fuse()

    def add_histogram(self, *args: Any) -> None:
        if self.method == "add_histogram":
            self.fuse()


class Failing(Training):
    """A training in mixed precision, of which one part may fail; two runs make an update.

    The gradients of every run are other ones.
    """

    def __init__(self, site: str, fuse: Fuse) -> None:
        self.site, self.fuse, self.runs = site, fuse, 0
        rule: Any = "Adam"
        options: dict[str, Any] = {}
        if site in ("_prepare", "_finish"):
            rule, options["optimizer_params"] = Hooked, {"fuse": fuse, "hook": site}
        elif site == "update":
            rule, options["optimizer_params"] = HookedUpdates, {"fuse": fuse}
        elif site == "hyperparameter":
            options["optimizer_params"] = {"beta1": lambda: fuse(0.5)}
        elif site == "weight decay":
            rule, options["optimizer_params"] = "AdamW", {"weight_decay": lambda: fuse(0.5)}
        elif site in ("add_scalar", "add_histogram"):
            options["summary_writer"] = FailingWriter(fuse, site)
            options["summaries"] = ["global_gradient_norm", "gradients"]
        super().__init__(
            rule,
            torch.float16,
            loss_scaling="Backoff",
            loss_scaling_params={"scale_max": 16.0, "step_window": 2},
            learning_rate_decay_fn=lambda step: self.at("policy", 0.1 / (1 + int(step))),
            on_horovod=True,
            iter_size=2,
            skip_update_ph=lambda: self.at("skip_update_ph", self.runs % 2 == 0),
            all_reduce=lambda grad: self.at("all_reduce", grad),
            **options,
        )
        mp_regularizer_wrapper(lambda w: self.at("regularizer", 0.1 * w.square().sum()))(
            self.own["head"]
        )
        assert self.step.loss_scaler is not None
        scaler = self.step.loss_scaler.scaler
        decide = scaler.decide
        scaler.decide = lambda *args: self.at("scaler", decide(*args))

    def at(self, site: str, value: Any) -> Any:
        return self.fuse(value) if site == self.site else value

    def loss(self) -> Any:
        return self.at("loss", super().loss())

    def run(self, count: int) -> None:
        for _ in range(count):
            self.generator.manual_seed(self.runs)
            for name, var in self.own.items():
                self.gradients[name] = self._normal(var.numel())
            self.step()
            self.runs += 1

    def everything(self) -> dict[str, Any]:
        return {**self.state(), **self.scaler_state()}


SWEPT = (
    "loss", "policy", "skip_update_ph", "all_reduce", "regularizer", "scaler", "_prepare",
    "hyperparameter", "weight decay",
)  # fmt: skip
each_part = pytest.mark.parametrize("site", SWEPT)


def assert_changes_nothing(training: Failing) -> None:
    state_before = training.everything()
    training.fuse.lit = True
    with pytest.raises(training.fuse.error, match="burnt") as raised:
        training.run(1)
    training.fuse.lit = False
    assert raised.value.__notes__ == [NOT_TAKEN]
    assert training.step.was_applied is False
    state_after = training.everything()
    assert differing_names(state_before, {name: state_after[name] for name in state_before}) == []


def assert_goes_on(training: Failing, runs: int) -> None:
    """Fail unless the training is as one in which nothing has failed."""
    twin = Failing(training.site, Fuse(RuntimeError))
    twin.run(training.runs)
    for member in (training, twin):
        member.run(runs)
    assert training.step.global_step.item() == twin.step.global_step.item()
    assert differing_names(training.everything(), twin.everything()) == []


@pytest.mark.one_in(3)
@each_way
@errors
@afterwards
@each_part
def test_interrupted_update_is_not_made(site: str, updates: int, error: Any, way: str) -> None:
    training = Failing(site, Fuse(error))
    training.run(2 * updates + 1)
    assert_changes_nothing(training)
    assert_goes_on(training, 3)


@errors
@afterwards
def test_partially_failed_update_is_undone(updates: int, error: Any) -> None:
    training = Failing("update", Fuse(error))
    training.run(2 * updates + 1)
    assert_changes_nothing(training)
    assert_goes_on(training, 3)


@pytest.mark.one_in(3)
@errors
@pytest.mark.parametrize("runs", [0, 2], ids=["first run", "third run"])
@pytest.mark.parametrize("site", ["loss", "policy", "skip_update_ph", "regularizer"])
def test_interrupted_run_adds_no_gradients(site: str, runs: int, error: Any) -> None:
    training = Failing(site, Fuse(error))
    training.run(runs)
    assert_changes_nothing(training)
    assert_goes_on(training, 4)


@pytest.mark.parametrize("site", ["regularizer", "scaler", "all_reduce", "update"])
def test_variables_can_be_set_after_a_failed_first_run(site: str) -> None:
    training, twin = Failing(site, Fuse(RuntimeError)), Failing(site, Fuse(RuntimeError))
    training.runs = twin.runs = 1  # the first run makes an update
    training.fuse.lit = True
    with pytest.raises(RuntimeError, match="burnt"):
        training.run(1)
    training.fuse.lit = False
    for member in (training, twin):
        with torch.no_grad():
            member.own["head"].copy_(torch.linspace(-2, 2, 17))
        member.run(1)
    assert differing_names(training.everything(), twin.everything()) == []


def test_masters_restart_after_repeated_failed_first_runs() -> None:
    w = Variable(torch.ones(2, dtype=torch.float16), name="w")
    fuse = Fuse(RuntimeError)
    inner = Hooked(0.5, fuse, "_prepare")
    step = optimize_loss(lambda: None, lambda learning_rate: inner, {}, lambda _: 0.5, [w], "mixed")
    gradients = [torch.zeros(2, dtype=torch.float16)]
    fuse.lit = True
    for value in (2.0, 3.0, 4.0):
        with pytest.raises(RuntimeError, match="burnt"):
            step.apply_gradients(gradients)
        with torch.no_grad():
            w.fill_(value)
    fuse.lit = False
    step.apply_gradients(gradients)
    assert w.tolist() == [4.0, 4.0]
    assert step.optimizer.get_master(w).tolist() == [4.0, 4.0]


def test_interrupted_first_run_restarts_masters() -> None:
    gradients, number, is_interrupted = [torch.zeros(2, dtype=torch.float16)], 0, True
    while is_interrupted:
        w = Variable(torch.ones(2, dtype=torch.float16), name="w")
        inner = Hooked(0.5, Fuse(RuntimeError), "_prepare")
        make = lambda learning_rate, inner=inner: inner  # noqa: E731
        step = optimize_loss(lambda: None, make, {}, lambda _: 0.5, [w], "mixed")
        opt: Any = step.optimizer
        inner.fuse.lit = True
        with pytest.raises(RuntimeError, match="burnt"):
            step.apply_gradients(gradients)
        inner.fuse.lit = False
        w.assign([2.0, 2.0])
        work = partial(opt.received, [(gradients[0], w)], 1.0)
        is_interrupted = interrupted_at(number, work)
        step.apply_gradients(gradients)
        assert opt.get_master(w).tolist() == [2.0, 2.0]
        number += 1
    assert number > 5


def test_a_state_that_is_loaded_after_a_first_run_that_failed_is_kept() -> None:
    training, twin = Failing("all_reduce", Fuse(RuntimeError)), Failing("", Fuse(RuntimeError))
    twin.run(2)
    training.runs, training.fuse.lit = 1, True
    with pytest.raises(RuntimeError, match="burnt"):
        training.run(1)
    training.fuse.lit = False
    training.step.load_state_dict(twin.step.state_dict())
    training.own["norm"].assign(twin.own["norm"].detach())
    training.runs = 2
    for member in (training, twin):
        member.run(2)
    assert differing_names(training.everything(), twin.everything()) == []


AFTERWARDS = {
    "_finish": "The step was taken, but `_finish` failed.",
    "add_scalar": "The step was taken, but its summaries were not written.",
    "add_histogram": "The step was taken, but its summaries were not written.",
}


@pytest.mark.one_in(3)
@each_way
@errors
@afterwards
@pytest.mark.parametrize(("site", "note"), AFTERWARDS.items())
def test_interrupted_update_is_atomic(
    site: str, note: str, updates: int, error: Any, way: str
) -> None:
    training, twin = Failing(site, Fuse(error)), Failing(site, Fuse(error))
    for member in (training, twin):
        member.run(2 * updates + 1)
    training.fuse.lit = True
    with pytest.raises(error, match="burnt") as raised:
        training.run(1)
    training.runs += 1
    training.fuse.lit = False
    twin.run(1)
    assert raised.value.__notes__ == [note]
    assert training.step.was_applied is True
    assert differing_names(training.everything(), twin.everything()) == []
    assert_goes_on(training, 2)


@errors
def test_failing_writer_after_an_accumulating_run_is_noted(error: Any) -> None:
    training = Failing("add_scalar", Fuse(error))
    pipeline = training.step._pipeline
    post = pipeline.treatment.post._replace(summaries=("learning_rate",))
    training.step._pipeline = replace(pipeline, treatment=pipeline.treatment._replace(post=post))
    training.fuse.lit = True
    with pytest.raises(error, match="burnt") as raised:
        training.run(1)
    assert raised.value.__notes__ == [
        "The run added its gradients up, but its summaries were not written."
    ]
    assert training.step.was_applied is False
    assert training.state()["sum of head"].any()


@each_way
@errors
def test_failing_writer_after_a_skipped_step_is_noted(error: Any, way: str) -> None:
    writer = FailingWriter(Fuse(error), "add_scalar")
    training = Training("Adam", torch.float16, loss_scaling="Backoff", summary_writer=writer)
    writer.fuse.lit = True
    training.gradients["head"][2] = float("inf")
    scale_before = training.scaler_state()["scale"]
    with pytest.raises(error, match="burnt") as raised:
        training.step()
    note = "The step was skipped, but its summaries were not written."
    assert raised.value.__notes__ == [note]
    assert training.step.was_applied is False
    assert training.scaler_state()["scale"] == scale_before / 2


@errors
def test_failing_constraint_leaves_the_update_done(error: Any) -> None:
    fuse = Fuse(error)
    w = Variable(torch.ones(3, dtype=torch.float16), name="w")
    b = Variable([1.0], name="b", constraint=lambda value: fuse(value))
    step = optimize_loss(
        lambda: w.float().sum() + b.sum(),
        "Momentum",
        {"momentum": 0.5},
        lambda s: 0.5,
        dtype="mixed",
        loss_scaling="Backoff",
    )
    fuse.lit = True
    with pytest.raises(error, match="burnt") as raised:
        step()
    assert raised.value.__notes__ == ["The step was taken, but without the constraint of 'b:0'."]
    assert (w.tolist(), b.item(), step.global_step.item()) == ([0.5] * 3, 0.5, 1)
    assert step.was_applied is True
    assert step.loss_scaler.variables["iteration"] == 1


def test_an_interruption_by_the_writer_comes_before_other_errors() -> None:
    fuse = Fuse(KeyboardInterrupt)
    writer = FailingWriter(fuse, "add_scalar")
    b = Variable([1.0], name="b", constraint=lambda value: Fuse.__call__(late, value))
    late = Fuse(RuntimeError)
    step = optimize_loss(lambda: b.sum(), "SGD", {}, lambda s: 0.5, summary_writer=writer)
    fuse.lit = late.lit = True
    with pytest.raises(KeyboardInterrupt, match="burnt") as raised:
        step()
    assert "Also: RuntimeError: burnt" in raised.value.__notes__
    assert (b.item(), step.was_applied) == (0.5, True)


# Sessions


def in_session(site: str, fuse: Fuse) -> tuple[Callable[[], Any], Callable[[], list[Any]]]:
    """A run of a step, and the values of all variables."""
    w = _graph.Variable(torch.ones(3).half(), name="w")
    b = _graph.Variable([1.0], name="b")
    hooked = site in ("_prepare", "_finish")
    op = optimize_loss(
        w.float().sum() * 2 + (b * b).sum(),
        Hooked if hooked else "Adam",
        {"fuse": fuse, "hook": site} if hooked else {},
        lambda step: 0.1,
        dtype="mixed",
        loss_scaling="Backoff",
        summaries=["global_gradient_norm", "variables"],
        on_horovod=True,
        all_reduce=(lambda grad: fuse(grad)) if site == "all_reduce" else None,
        summary_writer=FailingWriter(fuse, site),
    )
    session = _graph.Session()
    session.run(_graph.global_variables_initializer())
    return lambda: session.run(op), lambda: session.run(_graph.global_variables())


@errors
@pytest.mark.parametrize("site", ["all_reduce", *AFTERWARDS])
def test_interrupted_session_step_is_atomic(site: str, error: Any) -> None:
    with _graph.Graph().as_default():
        fuse = Fuse(error)
        run, values = in_session(site, fuse)
        run()
        values_before = values()
        fuse.lit = True
        with pytest.raises(error, match="burnt") as raised:
            run()
        failed, fuse.lit = values(), False
    assert AFTERWARDS.get(site, NOT_TAKEN) in raised.value.__notes__
    with _graph.Graph().as_default():
        run, values = in_session(site, Fuse(error))
        run()
        if site in AFTERWARDS:
            run()
        assert all(map(np.array_equal, failed, values()))
    assert all(map(np.array_equal, failed, values_before)) == (site not in AFTERWARDS)


def test_concurrently_changed_counter_does_not_hide_a_failure() -> None:
    count = Variable(np.int64(0), name="count", trainable=False)
    w = Variable([1.0], name="w")

    class Failing(train.GradientDescentOptimizer):
        def _prepare(self) -> None:
            count.assign_add(1)  # as a step of another thread does
            raise RuntimeError("burnt")

    step = make_step([w], Failing, dtype=torch.float32, global_step=count)
    with pytest.raises(RuntimeError, match="burnt") as excinfo:
        step.apply_gradients([torch.ones(1)])
    notes = " ".join(getattr(excinfo.value, "__notes__", []))
    assert "was not taken" in notes
    assert "The step was taken" not in notes
    assert w.item() == 1.0


def test_failed_step_restores_the_scaler_and_plain_steps_work() -> None:
    w = Variable(torch.ones(3), name="w")
    armed = False

    class Failing(train.MomentumOptimizer):
        def _group_variables(self, *args: Any) -> Any:
            if armed:
                raise RuntimeError("burnt")
            return super()._group_variables(*args)

    step = make_step([w], Failing, params={"momentum": 0.9}, loss_scaling="Backoff")
    step.apply_gradients([torch.ones(3)])
    state_before = {name: value.clone() for name, value in step.state_dict().items()}
    armed = True
    with pytest.raises(RuntimeError, match="burnt"):
        step.apply_gradients([torch.ones(3)])
    armed = False
    assert all(torch.equal(state_before[name], value) for name, value in step.state_dict().items())
    inner = step.optimizer.optimizer
    initial: Tensor = w.detach().clone()
    inner.apply_gradients([(torch.zeros(3), w)])  # without unscaling and copies
    assert torch.equal(w.detach(), initial - 0.5 * inner.get_slot(w, "momentum"))


@pytest.mark.slow
def test_an_interrupted_run_with_an_override_leaves_no_step_under_way() -> None:
    """Keep the tracebacks of interruptions, as a notebook does."""
    with _graph.Graph().as_default(), _graph.Session() as session:
        variable = _graph.Variable(torch.ones(3).half(), name="w")
        optimizer = train.MomentumOptimizer(0.1, 0.5)
        wrapper = MixedPrecisionOptimizerWrapper(optimizer)
        operation = wrapper.minimize((variable.float() ** 2).sum())
        session.run(_graph.global_variables_initializer())
        calls: list[object] = []
        apply_gradients = optimizer.apply_gradients

        def override(pairs: Any, *arguments: Any) -> Any:
            calls.append(optimizer._under_way)
            return apply_gradients(pairs, *arguments)

        # One that replaces the method before the graph is built is called at the build.
        optimizer.apply_gradients = override
        errors: list[KeyboardInterrupt] = []
        while error := interrupted_in_contextlib(len(errors), lambda: session.run(operation)):
            errors.append(error)
            assert optimizer._under_way is None, len(errors)
    assert errors
    assert None not in calls
