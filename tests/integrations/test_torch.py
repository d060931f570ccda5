"""torch's features around optimizers: schedules, compiling, profiling, copies, processes."""

from __future__ import annotations

import copy
import io
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from attribute_access import assert_known, touching, watched
from thalweg import optim
from torch_inputs import SCHEDULES
from training import (
    OPTIMIZERS,
    assert_same_training,
    data,
    loss_of,
    model,
    on,
    schedule,
    send_on,
    trained,
)

# What parts of torch 2.13 ask an optimizer for.
ATTRIBUTES = {
    "torch.optim.lr_scheduler": "_opt_called defaults param_groups step",
    "torch.amp.grad_scaler": ("_step_supports_amp_scaling found_inf grad_scale param_groups step"),
    "torch.distributed.checkpoint": (
        "load_state_dict param_groups state state_dict step zero_grad"
    ),
    "torch.optim.swa_utils": "param_groups",
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)], ids=["number", "tensor"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_torch_scheduler_equals_manual_rates(name: str, rate: Any) -> None:
    scheduled, by_hand = model(), model()
    scheduled_opt, reference_opt = (
        optim.tensorflow.Momentum(module.parameters(), lr=copy.deepcopy(rate))
        for module in (scheduled, by_hand)
    )
    rates = SCHEDULES[name](scheduled_opt)
    for batch in data(9 if name == "OneCycleLR" else 20):
        for module, optimizer in ((scheduled, scheduled_opt), (by_hand, reference_opt)):
            loss_of(module, batch).backward()
            group = scheduled_opt.param_groups[0]
            reference_opt.param_groups[0].update(lr=float(group["lr"]), momentum=group["momentum"])
            optimizer.step()
            optimizer.zero_grad()
        rates.step(*([1.0] if name == "ReduceLROnPlateau" else []))
    assert_same_training((scheduled, scheduled_opt), (by_hand, reference_opt))


def compiled(make: Any, batches: Any) -> tuple[nn.Module, Any]:
    module = model()
    optimizer = make(module.parameters())
    rate = schedule(optimizer)

    @torch.compile(backend="aot_eager")
    def step(batch: Any) -> torch.Tensor:
        loss = loss_of(module, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss * 2

    for batch in batches:
        step(batch)
        rate.step()
    return module, optimizer


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_compiled_step_has_the_bits_of_eager_mode(name: str) -> None:
    torch._dynamo.reset()
    actual = compiled(OPTIMIZERS[name], data(4))
    torch._dynamo.reset()
    assert_same_training(actual, trained(OPTIMIZERS[name], data(4)))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_profiler_records_steps_by_name(name: str) -> None:
    module = model()
    optimizer = OPTIMIZERS[name](module.parameters())
    loss_of(module, data()[0]).backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        optimizer.step()
        optimizer.zero_grad()
    names = [event.key for event in profile.key_averages() if event.key.startswith("Optimizer")]
    kind = name.removeprefix("tensorflow.")
    assert sorted(names) == [f"Optimizer.step#{kind}.step", f"Optimizer.zero_grad#{kind}.zero_grad"]


@pytest.mark.parametrize("dup", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_copied_optimizer_trains_separately(name: str, dup: Any) -> None:
    module, optimizer = trained(OPTIMIZERS[name], data()[:4])
    second_module, second_opt = dup((module, optimizer))
    for training in ((module, optimizer), (second_module, second_opt)):
        on(*training)
    assert_same_training((second_module, second_opt), (module, optimizer))


@pytest.mark.slow  # a process that imports all anew
def test_pickled_training_resumes_in_another_process() -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    trainings = [trained(make, data()[:4]) for make in OPTIMIZERS.values()]
    process = context.Process(target=send_on, args=(queue, pickle.dumps(trainings)))
    process.start()
    actual = queue.get()
    process.join()
    assert actual == [[tensor.tolist() for tensor in on(*pair)] for pair in trainings]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_saved_state_loads_with_weights_only(name: str) -> None:
    module, optimizer = trained(OPTIMIZERS[name], data()[:4])
    file = io.BytesIO()
    torch.save([module.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    target = model()
    target.load_state_dict(weights)
    resumed = OPTIMIZERS[name](target.parameters())
    resumed.load_state_dict(state)
    on(module, optimizer), on(target, resumed)
    assert_same_training((target, resumed), (module, optimizer))


def test_hooks_see_and_change_states() -> None:
    _, optimizer = trained(OPTIMIZERS["tensorflow.Adam"], data()[:1])
    events: list[str] = []
    optimizer.register_state_dict_pre_hook(lambda _: events.append("before"))
    optimizer.register_state_dict_post_hook(lambda _, state: {**state, "more": 1})
    optimizer.register_load_state_dict_pre_hook(
        lambda _, state: {key: state[key] for key in ("state", "param_groups")}
    )
    optimizer.register_load_state_dict_post_hook(lambda _: events.append("after"))
    state = optimizer.state_dict()
    assert state["more"] == 1
    optimizer.load_state_dict(state)
    assert events == ["before", "after"]


def _use(part: str, folder: Path) -> None:
    module = model()
    optimizer = watched(optim.AdamW)(module.parameters(), lr=0.05)
    if part == "torch.optim.lr_scheduler":
        for make in SCHEDULES.values():
            rate = make(watched(optim.AdamW)(model().parameters(), lr=0.05))
            rate.optimizer.step()
            rate.step(*([1.0] if isinstance(rate, optim.lr_scheduler.ReduceLROnPlateau) else []))
    elif part == "torch.amp.grad_scaler":
        for fused in (False, True):
            optimizer = watched(optim.AdamW)(module.parameters(), lr=0.05, fused_unscale=fused)
            scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
            scaler.scale(loss_of(module, data()[0])).backward()
            scaler.step(optimizer)
            scaler.update()
    elif part == "torch.optim.swa_utils":
        rate = optim.swa_utils.SWALR(optimizer, swa_lr=0.01)
        optimizer.step()
        rate.step()
    else:
        from torch.distributed.checkpoint import state_dict

        state = state_dict.get_optimizer_state_dict(module, optimizer)
        state_dict.set_optimizer_state_dict(module, optimizer, state)


@pytest.mark.parametrize("part", ATTRIBUTES)
def test_torch_uses_only_available_attributes(part: str, tmp_path: Path) -> None:
    with touching(part) as accessed:
        _use(part, tmp_path)
    assert_known(accessed, ATTRIBUTES[part])
