"""Errors state truly whether their step was taken, while other threads take steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from failing_callable import NOT_TAKEN
from thalweg import Variable, keras, optim, v1


class Lock:
    """Lock of an optimizer, around which another thread takes steps.

    Attributes:
        entry_action, exit_action: Called once before this is acquired, and after it is released.
    """

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        self.entry_action: Callable[[], Any] = tuple
        self.exit_action: Callable[[], Any] = tuple

    def __enter__(self) -> Any:
        action, self.entry_action = self.entry_action, tuple
        action()
        return self.lock.__enter__()

    def __exit__(self, *error: object) -> None:
        self.lock.__exit__(*error)
        if not self.lock.is_mine():
            action, self.exit_action = self.exit_action, tuple
            action()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lock, name)


class Training:
    """Replayed steps of an optimizer, and a step with an invalid gradient."""

    def __init__(self, name: str) -> None:
        self.var: Any = Variable(torch.ones(3))
        if name == "optim":
            opt: Any = optim.Adam([self.var], lr=0.1)
            self.lock = opt.step_cache.lock = Lock(opt.step_cache.lock)
            self.step, self.fail = self.step_of(opt), partial(opt.step, self.cut)
        else:
            opt = keras.optimizers.Adam(0.1) if name == "keras" else v1.train.AdamOptimizer(0.1)
            self.lock = opt._lock = Lock(opt._lock)
            self.step = partial(opt.apply_gradients, [(torch.ones(3), self.var)])
            self.fail = partial(opt.apply_gradients, [(torch.ones(4), self.var)])
        for _ in range(6):
            self.step()

    def step_of(self, opt: Any) -> Callable[[], Any]:
        def step() -> None:
            self.var.grad = torch.ones(3)
            opt.step()

        return step

    def cut(self) -> None:
        self.var.grad = torch.ones(3)
        self.var.grad.untyped_storage().resize_(0)

    def step_over_zip(self) -> None:
        def fail(grad: int) -> Any:
            raise KeyError(grad)

        assert isinstance(self.step, partial)
        self.step.func(zip(map(fail, [0]), [self.var], strict=True))

    def step_elsewhere(self) -> None:
        thread = threading.Thread(target=self.step, daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()


def notes_of(work: Callable[[], Any]) -> list[str]:
    with pytest.raises(BaseException) as raised:  # noqa: PT011
        work()
    return getattr(raised.value, "__notes__", [])


@pytest.mark.parametrize("name", ["optim", "keras", "v1"])
def test_steps_of_other_threads_after_a_failed_step_do_not_count(name: str) -> None:
    training = Training(name)
    training.lock.exit_action = training.step_elsewhere
    assert notes_of(training.fail) == [NOT_TAKEN]


@pytest.mark.parametrize("name", ["keras", "v1"])
def test_errors_of_pairs_have_notes(name: str) -> None:
    assert notes_of(Training(name).step_over_zip) == [NOT_TAKEN]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, TimeoutError])
@pytest.mark.parametrize("name", ["optim", "optim closure", "keras", "v1"])
def test_interruption_while_a_step_waits_has_no_false_note(name: str, kind: Any) -> None:
    training = Training(name.split()[0])

    def interrupt() -> None:
        training.step_elsewhere()
        raise kind

    training.lock.entry_action = interrupt
    notes = notes_of(training.fail if "closure" in name else training.step)
    assert notes == [NOT_TAKEN] or (name, kind, notes) == ("v1", KeyboardInterrupt, [])


def test_note_tells_of_steps_in_the_closure() -> None:
    training = Training("optim")

    def closure() -> None:
        training.step()
        raise KeyError

    assert notes_of(partial(training.fail.func, closure)) == [
        "The step was not taken, but other steps were while its closure ran."
    ]
    assert notes_of(partial(training.fail.func, training.fail)) == [NOT_TAKEN]
