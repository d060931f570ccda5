"""Copies and pickles of an optimizer while another thread steps: each is of one step."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any, ClassVar

import pytest
import torch
from torch.nn import Parameter

from bit_comparison import assert_same
from replay_twins import params, set_grads
from thalweg import optim
from thalweg.rules import LARS


class Reduced(optim.AdamW):
    """A user's optimizer with pickles of a form of its own."""

    def __reduce__(self) -> Any:
        return Reduced.__new__, (Reduced,), {"inner": self.__getstate__()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state["inner"])


class Stepping:
    """Entry of a state, or option, that has another thread take a step while it is copied."""

    steps: ClassVar[list[Callable[[], Future[Any]]]] = []

    def __reduce__(self) -> Any:
        if self.steps:
            wait([self.steps.pop()()], 0.03)
        return int, ()


def _save(opt: Any) -> Any:
    file = io.BytesIO()
    torch.save(opt, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


MAKERS: dict[str, Callable[[list[Parameter]], Any]] = {
    "AdamW": optim.AdamW,
    "8 bit": lambda weights: optim.AdamW(weights, state_storage="8bit", ema_decay=0.9),
    "Mixed": lambda weights: optim.Mixed([{"params": weights, "rule": "Lion"}]),
    "ScheduleFreeSGD": optim.ScheduleFreeSGD,
    "RuleOptimizer": lambda weights: optim.RuleOptimizer(weights, LARS, lr=0.1),
    "subclass": Reduced,
}
DUPLICATES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda opt: pickle.loads(pickle.dumps(opt)),
    "torch.save": _save,
}


@pytest.fixture
def other_thread() -> Iterator[ThreadPoolExecutor]:
    """Return an executor with one thread, which has started."""
    with ThreadPoolExecutor(1) as executor:
        executor.submit(int).result()
        yield executor


def _contents(opt: Any) -> list[torch.Tensor]:
    """Return copies of all tensors of a state."""
    entries = [entry for numbers in opt.state.values() for entry in numbers.values()]
    return [entry.clone() for entry in entries if isinstance(entry, torch.Tensor)]


@pytest.mark.parametrize("duplicate", DUPLICATES.values(), ids=DUPLICATES)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_copies_are_of_one_step(
    make: Any, duplicate: Any, other_thread: ThreadPoolExecutor
) -> None:
    weights = params(3)
    opt = make(weights)
    for step in range(5):
        set_grads(weights, step)
        opt.step()
    opt.state[weights[1]]["stepping"] = Stepping()
    expected, values = _contents(opt), [param.detach().clone() for param in weights]
    futures: list[Future[Any]] = []
    Stepping.steps[:] = [lambda: futures.append(other_thread.submit(opt.step)) or futures[0]]
    clone = duplicate(opt)
    futures[0].result()
    assert_same(_contents(clone), expected)
    if duplicate is copy.deepcopy:
        assert_same([x.detach() for x in clone.param_groups[0]["params"]], values)
    assert not torch.equal(weights[0], values[0])


def test_state_dict_waits_for_a_step(other_thread: ThreadPoolExecutor) -> None:
    weights = params(3)
    opt, waits = optim.AdamW(weights), []
    set_grads(weights, 0)
    opt.register_state_dict_pre_hook(
        lambda _: waits.append(not wait([other_thread.submit(opt.step)], 0.03).done)
    )
    assert not opt.state_dict()["state"]
    assert waits == [True]


@pytest.mark.usefixtures("other_thread")
def test_pickles_share_parameters_and_options() -> None:
    model, rate = torch.nn.Linear(2, 2), torch.tensor(0.5)
    opt = optim.AdamW(model.parameters(), lr=rate)
    model(torch.ones(2)).sum().backward()
    opt.step()
    for duplicate in DUPLICATES.values():
        new_opt, new_model, new_rate = duplicate((opt, model, rate))
        assert new_opt.param_groups[0]["params"][0] is new_model.weight
        assert new_opt.param_groups[0]["lr"] is new_rate
        assert list(new_opt.state) == list(new_model.parameters())
    shallow = copy.copy(opt)
    assert shallow.state is opt.state
    assert shallow.param_groups is opt.param_groups


@pytest.mark.usefixtures("other_thread")
def test_memory_of_several_processes_stays_shared() -> None:
    weights = params(1)
    opt = optim.AdamW(weights)
    set_grads(weights, 0)
    opt.step()
    opt.state["note"] = 3
    opt.state[weights[0]]["exp_avg"].share_memory_()
    clone: Any = ForkingPickler.loads(ForkingPickler.dumps(opt))
    entries, note = clone.state.values()
    assert note == 3
    entries["exp_avg"].fill_(7.0)
    assert (opt.state[weights[0]]["exp_avg"] == 7.0).all()
