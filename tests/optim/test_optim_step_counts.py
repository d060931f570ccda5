"""Per-parameter scalars: one block by default, or updated in tensors that users hand in."""

from __future__ import annotations

import copy
import ctypes
import pickle
from typing import Any

import pytest
import torch
import torch.multiprocessing as processes

from rulebook import assert_same
from thalweg import optim
from thalweg.optim import tensorflow
from thalweg.optim.device_param_scalars import ForeignDeviceColumn
from torch_inputs import CLASSES, ROWS, params_of, set_grads

SCALARS = ("step", "eta", "mu", "mu_product")
CLASSES_WITH_STEP = [name for name in CLASSES if name not in ("SGD", "SparseAdam")]
OPTIONS: dict[str, dict[str, Any]] = {"ASGD": {"t0": 2, "lambd": 0.1}, "Adagrad": {"lr_decay": 0.1}}


def run_steps(optimizer: Any, first: int, end: int) -> Any:
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for step in range(first, end):
        set_grads(params, step, "Sparse" in type(optimizer).__name__)
        optimizer.step()
    return optimizer


def make(module: Any, name: str, **options: Any) -> Any:
    kwargs = {**OPTIONS.get(name, {}), **options}
    return getattr(module, name)(params_of(torch.float32, ROWS), lr=0.1, **kwargs)


def scalars(optimizer: Any) -> list[torch.Tensor]:
    return [state[name] for state in optimizer.state.values() for name in SCALARS if name in state]


def is_one_block(optimizer: Any) -> bool:
    """Return whether the counts of all parameters are elements of one tensor."""
    bases = {id(state["step"]._base) for state in optimizer.state.values()}
    return len(bases) == 1 and bases != {id(None)}


@pytest.mark.parametrize("name", CLASSES_WITH_STEP)
@pytest.mark.parametrize("selection", ["all", "first"])
def test_handed_in_scalars_are_updated_in_place(name: str, selection: str) -> None:  # noqa: C901
    opt, torch_opt = (run_steps(make(module, name), 0, 2) for module in (optim, torch.optim))
    new_scalars: list[torch.Tensor] = []
    for state in list(opt.state.values())[: 1 if selection == "first" else None]:
        for key in SCALARS:
            if key in state:
                state[key] = state[key].clone()
                new_scalars.append(state[key])
    addresses = [scalar.data_ptr() for scalar in new_scalars]
    for step in range(2, 6):
        if step == 4:  # as another process writes, without a version change
            for scalar in new_scalars:
                scalar.numpy()[...] += 1
            for state in list(torch_opt.state.values())[: 1 if selection == "first" else None]:
                for key in SCALARS:
                    if key in state:
                        state[key].add_(1)
        for stepped in (opt, torch_opt):
            run_steps(stepped, step, step + 1)
        assert all(any(scalar is present for present in scalars(opt)) for scalar in new_scalars)
        assert [scalar.data_ptr() for scalar in new_scalars] == addresses
        for actual, expected in zip(scalars(opt), scalars(torch_opt), strict=True):
            torch.testing.assert_close(actual, expected)
    for actual, expected in zip(opt.state, torch_opt.state, strict=True):
        torch.testing.assert_close(actual, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["NAdam", "ASGD"])
@pytest.mark.parametrize("second_dtype", [torch.float32, torch.bfloat16])
def test_loaded_scalars_keep_their_dtypes(name: str, second_dtype: Any) -> None:
    """Torch converts loaded state to the parameter's dtype, except step counts; here a number does
    not lose bits.
    """
    opts: list[Any] = []
    for module in (optim, torch.optim):
        params = [
            torch.full((3,), 0.7, dtype=dtype).requires_grad_()
            for dtype in (torch.float64, second_dtype)
        ]
        cls = getattr(module, name)
        first, loaded = (cls(params, lr=0.1, **OPTIONS.get(name, {})) for _ in range(2))
        run_steps(first, 0, 2)
        loaded.load_state_dict(copy.deepcopy(first.state_dict()))
        opts.append(run_steps(loaded, 2, 6))
    # Torch goes on with a rate that it has rounded to bfloat16.
    close = {torch.float64: 1e-13, torch.float32: 2e-6, torch.bfloat16: 0.03}
    actual, expected = (scalars(opt) + [param.detach() for param in opt.state] for opt in opts)
    for left_scalar, torch_scalar in zip(actual, expected, strict=True):
        torch.testing.assert_close(
            left_scalar, torch_scalar, rtol=close[torch_scalar.dtype], atol=0, check_dtype=False
        )
        if torch_scalar.dtype != torch.bfloat16:
            assert left_scalar.dtype == torch_scalar.dtype


def share_scalars(optimizer: Any, sharing: str) -> Any:
    """Take steps with scalars that all parameters share, and return the optimizer."""
    run_steps(optimizer, 0, 2)
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for name in SCALARS:
        if name in optimizer.state[params[0]]:
            scalar = optimizer.state[params[0]][name]
            scalar = torch.as_tensor(scalar).clone() if sharing == "handed in" else scalar
            for param in params:
                is_memory = sharing == "by memory" and isinstance(scalar, torch.Tensor)
                param_scalar = torch.from_numpy(scalar.numpy()) if is_memory else scalar
                optimizer.state[param][name] = param_scalar
    return run_steps(optimizer, 2, 5)


@pytest.mark.parametrize("sharing", ["handed in", "by memory", "the first one's"])
@pytest.mark.parametrize("name", [name for name in CLASSES if name not in ("SGD",)])
def test_shared_count_equals_torch(name: str, sharing: str) -> None:
    """Torch increments the shared count once per parameter."""
    opt, torch_opt = (share_scalars(make(module, name), sharing) for module in (optim, torch.optim))
    for actual, expected in zip(scalars(opt), scalars(torch_opt), strict=True):
        torch.testing.assert_close(actual, expected)
    for actual, expected in zip(opt.state, torch_opt.state, strict=True):
        torch.testing.assert_close(actual, expected, rtol=2e-5, atol=1e-6)


def test_params_of_two_rules_share_a_count() -> None:
    opts: list[Any] = []
    for module in (optim, torch.optim):
        params = params_of(torch.float32, ROWS)
        groups = [{"params": params[:1]}, {"params": params[1:], "amsgrad": True}]
        opts.append(share_scalars(module.Adam(groups, lr=0.1), "handed in"))
    for actual, expected in zip(*(opt.state for opt in opts), strict=True):
        torch.testing.assert_close(actual, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{"clip_grad_norm": 1.0}, {"ema_decay": 0.9}], ids=str)
def test_shared_count_with_options_raises(options: dict[str, Any]) -> None:
    opt = make(optim, "Adam", **options)
    with pytest.raises(
        NotImplementedError, match=r"'step' of '.*' and of '.*' is one tensor"
    ) as error:
        share_scalars(opt, "handed in")
    assert "The step was not taken: no variable and no slot has changed." in error.value.__notes__


def test_optimizer_wide_step_is_counted_once() -> None:
    params = params_of(torch.float32, ROWS)
    opt = share_scalars(tensorflow.Adam(params, lr=0.1), "handed in")
    reference = run_steps(tensorflow.Adam(params_of(torch.float32, ROWS), lr=0.1), 0, 5)
    assert {int(state["step"]) for state in opt.state.values()} == {5}
    assert_same([p.detach() for p in opt.state], [p.detach() for p in reference.state])


def test_new_param_joins_user_supplied_count() -> None:
    params = params_of(torch.float32, ROWS)
    opt = optim.Adam(params)
    params[0].grad = torch.ones_like(params[0])
    opt.step()
    step = opt.state[params[0]]["step"] = torch.tensor(7.0)
    run_steps(opt, 0, 2)
    assert step is opt.state[params[0]]["step"]
    assert [state["step"].item() for state in opt.state.values()] == [9, 2]


@pytest.mark.parametrize("name", ["Nadam", "LazyAdam"])
def test_handed_in_counts_of_rules_are_updated_in_place(name: str) -> None:
    opt, reference = (run_steps(make(tensorflow, name), 0, 2) for _ in range(2))
    new_scalars = {
        param: {key: x.clone() for key, x in state.items()} for param, state in opt.state.items()
    }
    for param, slots in new_scalars.items():
        opt.state[param].update(slots)
    for stepped in (opt, reference):
        run_steps(stepped, 2, 5)
    for param, slots in new_scalars.items():
        assert all(opt.state[param][key] is value for key, value in slots.items())
    assert {slots["step"].item() for slots in new_scalars.values()} == {5}
    assert_same([p.detach() for p in opt.state], [p.detach() for p in reference.state])


def test_count_of_sparse_adam_may_be_a_tensor() -> None:
    """SparseAdam, whose counts are numbers, loads a state of Adam."""
    opts = [make(module, "SparseAdam") for module in (torch.optim, optim)]
    state = run_steps(make(torch.optim, "Adam"), 0, 3).state_dict()
    for opt in opts:
        opt.load_state_dict(copy.deepcopy(state))
        counts = [slots["step"] for slots in opt.state.values()]
        run_steps(opt, 3, 5)
        assert all(x is y["step"] for x, y in zip(counts, opt.state.values(), strict=True))
    assert [x.item() for x in scalars(opts[1])] == [x.item() for x in scalars(opts[0])] == [5, 5]
    for actual, expected in zip(opts[1].state, opts[0].state, strict=True):
        torch.testing.assert_close(actual, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", CLASSES_WITH_STEP)
def test_counts_are_one_block(name: str) -> None:
    """Check new, loaded, copied and unpickled optimizers, and one with a state of torch."""
    opt = run_steps(make(optim, name), 0, 2)
    loaded, of_torch = make(optim, name), make(optim, name)
    loaded.load_state_dict(opt.state_dict())
    of_torch.load_state_dict(run_steps(make(torch.optim, name), 0, 2).state_dict())
    opts = (opt, loaded, of_torch, copy.deepcopy(opt), pickle.loads(pickle.dumps(opt)))
    for side in opts:
        assert is_one_block(side)
        previous_ids = [id(tensor) for tensor in scalars(side)]
        run_steps(side, 2, 4)
        assert is_one_block(side)
        assert [id(tensor) for tensor in scalars(side)] == previous_ids
        assert {state["step"].item() for state in side.state.values()} == {4}
    assert len({x.data_ptr() for side in opts for x in scalars(side)}) == len(scalars(opt)) * 5


@pytest.mark.parametrize("moment", ["before", "after"])
def test_shared_memory_counts_are_read_every_step(moment: str) -> None:
    opt = run_steps(make(optim, "NAdam"), 0, 2)
    for scalar in scalars(opt):
        scalar.share_memory_()
    addresses = [scalar.data_ptr() for scalar in scalars(opt)]
    if moment == "after":
        run_steps(opt, 2, 3)
    for state in opt.state.values():
        state["step"].numpy()[...] = 10
    run_steps(opt, 3, 4)
    assert [scalar.data_ptr() for scalar in scalars(opt)] == addresses
    assert {state["step"].item() for state in opt.state.values()} == {11}


def test_load_keeps_shared_memory_counts() -> None:
    state = run_steps(make(torch.optim, "Adam"), 0, 2).state_dict()
    for slots in state["state"].values():
        slots["step"].share_memory_()
    opt = make(optim, "Adam")
    opt.load_state_dict(state)
    run_steps(opt, 2, 3)
    for slots, loaded_slots in zip(opt.state.values(), state["state"].values(), strict=True):
        assert slots["step"] is loaded_slots["step"]
        assert loaded_slots["step"].item() == 3


def _work(optimizer: Any) -> None:
    torch.set_num_threads(1)
    run_steps(optimizer, 2, 5)


def test_worker_process_updates_shared_counts() -> None:
    opt, reference = (make(optim, "Adagrad") for _ in range(2))
    for param, state in opt.state.items():
        param.share_memory_()
        for slot in state.values():
            slot.share_memory_()
    run_steps(opt, 0, 2)
    worker = processes.get_context("fork").Process(target=_work, args=(opt,))
    worker.start()
    worker.join(120)
    assert worker.exitcode == 0
    run_steps(reference, 0, 5)
    assert {state["step"].item() for state in opt.state.values()} == {5}
    assert_same([p.detach() for p in opt.state], [p.detach() for p in reference.state])
    for stepped in (opt, reference):
        run_steps(stepped, 5, 6)
    assert_same([p.detach() for p in opt.state], [p.detach() for p in reference.state])


def test_foreign_device_scalars_are_updated_in_place() -> None:
    """Use a GPU's code with count tensors that are not one block."""
    counts = [torch.tensor(3.0), torch.tensor(5.0)]
    column = ForeignDeviceColumn("step", counts)
    column.counting(None)()
    column.counting(torch.tensor(False))()
    counts[0].add_(10)
    column.read()
    assert column.common.tolist() == [14, 6]
    column.moving(torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor(True))()
    assert [count.item() for count in counts] == [1, 2]
    column.read()
    column.moving(torch.tensor([7.0, 8.0]), torch.tensor(False))()
    assert [count.item() for count in counts] == [1, 2]
    column.moving(torch.tensor(9.0), None)()
    assert [count.item() for count in counts] == [9, 9]


@pytest.mark.parametrize("is_loaded", [False, True])
def test_float32_count_saturates_as_in_torch(is_loaded: bool) -> None:
    opts = [make(module, "Adam") for module in (optim, torch.optim)]
    for opt in opts:
        run_steps(opt, 0, 1)
        for state in opt.state.values():
            state["step"].fill_(2.0**24 - 3)
        if is_loaded:
            opt.load_state_dict(copy.deepcopy(opt.state_dict()))
        run_steps(opt, 1, 9)
    assert [float(tensor) for tensor in scalars(opts[0])] == [2.0**24] * len(opts[0].state)
    assert_same(*map(scalars, opts))


def write_through_data(count: torch.Tensor) -> None:
    count.data.fill_(40)


def write_through_numpy(count: torch.Tensor) -> None:
    count.numpy()[...] = 40


def write_to_memory(count: torch.Tensor) -> None:
    """Write to memory as a process group does."""
    ctypes.c_float.from_address(count.data_ptr()).value = 40


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", [{}, {"ema_decay": 0.9}, {"clip_grad_norm": 1.0}])
@pytest.mark.parametrize("selection", ["all", "one"])
@pytest.mark.parametrize("write", [write_through_data, write_through_numpy, write_to_memory])
@pytest.mark.parametrize("name", ["Adam", "NAdam", "RAdam"])
def test_writes_without_version_change_count(
    name: str, write: Any, selection: str, options: dict[str, Any]
) -> None:
    fused_opt, torch_opt = make(optim, name, **options), make(torch.optim, name)
    for opt in (fused_opt, torch_opt):
        for first, end in ((0, 5), (5, 7)):
            run_steps(opt, first, end)
            counts = [state["step"] for state in opt.state.values()]
            for count in counts if selection == "all" else counts[1:2]:
                write(count)
        run_steps(opt, 7, 9)
    actual, expected = (
        [state["step"].item() for state in opt.state.values()] for opt in (fused_opt, torch_opt)
    )
    assert actual == expected
    assert 42 in actual
    if not options:
        for actual_param, torch_param in zip(fused_opt.state, torch_opt.state, strict=True):
            torch.testing.assert_close(actual_param, torch_param, rtol=1e-5, atol=1e-5)
