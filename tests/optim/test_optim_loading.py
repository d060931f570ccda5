"""Loading of states: a state that torch accepts is loaded, any other one changes nothing."""

from __future__ import annotations

import copy
import io
import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from interruptions import interrupted_at
from rulebook import assert_same
from thalweg import checkpoint, optim
from thalweg.errors import CheckpointMismatchError, CheckpointWarning
from thalweg.optim import tensorflow
from torch_inputs import CLASSES

SHAPE = (3, 2)
PAIRS = list(itertools.permutations(CLASSES, 2))
ACCEPTED_PAIRS = {
    (source, target)
    for source in ("Adam", "AdamW", "RAdam", "NAdam")
    for target in ("Adam", "AdamW", "RAdam", "SparseAdam")
    if source != target
}


def of_one(module: Any, name: str, **options: Any) -> Any:
    """Return an optimizer of one parameter."""
    values = torch.linspace(-1, 2, 6).reshape(SHAPE)
    return getattr(module, name)([torch.nn.Parameter(values)], lr=0.1, **options)


def step(optimizer: Any, count: int = 1) -> Any:
    """Take steps with gradients of the layout that the class supports."""
    (param,) = optimizer.param_groups[0]["params"]
    for index in range(count):
        grad = torch.full(SHAPE, 0.5, dtype=param.dtype) + 0.125 * index
        param.grad = grad.to_sparse(1) if "Sparse" in type(optimizer).__name__ else grad
        optimizer.step()
    return optimizer


def state_of(name: str, **options: Any) -> dict[str, Any]:
    """Return the state of a torch class after some steps."""
    return copy.deepcopy(step(of_one(torch.optim, name, **options), 3).state_dict())


_FAILURES = (KeyError, RuntimeError, TypeError, ValueError, AttributeError, ArithmeticError,
             AssertionError)  # fmt: skip


def load_and_step(optimizer: Any, state: dict[str, Any]) -> torch.Tensor | None:
    """Load, take a step and return the parameter, or None if torch fails to load or step."""
    try:
        optimizer.load_state_dict(copy.deepcopy(state))
        step(optimizer)
    except _FAILURES:
        return None
    return optimizer.param_groups[0]["params"][0].detach()


def tensors_of(optimizer: Any) -> list[torch.Tensor]:
    """Return parameters and slots."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    slots = [value for state in optimizer.state.values() for value in state.values()]
    return [torch.as_tensor(param).detach().double() for param in (*params, *slots)]


def assert_refused(optimizer: Any, state: dict[str, Any], message: str) -> None:
    """Assert that loading raises and changes no value and replaces no object."""
    groups, slots = optimizer.param_groups, optimizer.state
    options = [dict(group) for group in groups]
    previous = tensors_of(optimizer)
    with pytest.raises(CheckpointMismatchError, match=rf"{message}.*Nothing was loaded\.$"):
        optimizer.load_state_dict(state)
    assert optimizer.param_groups is groups
    assert optimizer.state is slots
    assert [dict(group) for group in groups] == options
    assert_same(tensors_of(optimizer), previous)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_state_of_other_class_loads_as_in_torch(source: str, target: str) -> None:
    state = state_of(source)
    expected = load_and_step(of_one(torch.optim, target), state)
    assert (expected is not None) == ((source, target) in ACCEPTED_PAIRS)
    opt = step(of_one(optim, target))
    if expected is None:
        assert_refused(opt, copy.deepcopy(state), target)
        step(opt)
        return
    actual = load_and_step(of_one(optim, target), state)
    assert actual is not None
    torch.testing.assert_close(actual, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("target", CLASSES)
@pytest.mark.parametrize("source", tensorflow.__all__)
def test_tensorflow_state_does_not_load(source: str, target: str) -> None:
    source_state = step(of_one(tensorflow, source), 2).state_dict()
    if load_and_step(of_one(torch.optim, target), source_state) is None:
        assert_refused(step(of_one(optim, target)), source_state, target)
    else:  # torch reads no missing entry
        assert (source, target) == ("Adadelta", "nothing")
    assert_refused(of_one(tensorflow, source), state_of(target), "its rule is None")


# Options that torch does not read if the others exist, and step counts that are not numbers.
IGNORED_BY_TORCH = {("Rprop", "lr"), *((name, "step") for name in ("RMSprop", "Adadelta", "Rprop"))}
OPTIONS = [(name, key) for name in CLASSES for key in state_of(name)["param_groups"][0]]
STATE_ENTRIES = [
    (name, options, key)
    for name, options in [
        *((name, ()) for name in CLASSES),
        ("SGD", (("momentum", 0.9),)),
        ("Adam", (("amsgrad", True),)),
        ("RMSprop", (("momentum", 0.9), ("centered", True))),
    ]
    for key in state_of(name, **dict(options))["state"].get(0, ())
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "key"), OPTIONS)
def test_missing_option_is_reported_at_load(name: str, key: str) -> None:
    state = state_of(name)
    del state["param_groups"][0][key]
    if key == "params":
        assert_refused(step(of_one(optim, name)), state, "'params' of group 0 is None, no list")
    elif (expected := load_and_step(of_one(torch.optim, name), state)) is None or (
        name,
        key,
    ) in IGNORED_BY_TORCH:
        assert_refused(step(of_one(optim, name)), state, f"'{key}' of group 0 is missing")
    else:
        actual = load_and_step(of_one(optim, name), state)
        torch.testing.assert_close(actual, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "options", "key"), STATE_ENTRIES)
@pytest.mark.parametrize("change", ["missing", "shape", "text", "nothing"])
def test_load_rejects_unusable_state(name: str, options: Any, key: str, change: str) -> None:
    options = dict(options)
    state = state_of(name, **options)
    slots = state["state"][0]
    if change == "missing":
        del slots[key]
    else:
        slots[key] = {"shape": torch.ones(2, 2), "text": "much", "nothing": None}[change]
    expected = load_and_step(of_one(torch.optim, name, **options), state)
    if expected is None or (name, key) in IGNORED_BY_TORCH:
        assert_refused(step(of_one(optim, name, **options)), state, f"'0/{key}' is ")
    else:
        actual = load_and_step(of_one(optim, name, **options), state)
        torch.testing.assert_close(actual, expected, rtol=2e-5, atol=1e-6)


def _without_groups(state: dict[str, Any]) -> None:
    del state["param_groups"]


MALFORMED: dict[str, tuple[Any, str]] = {
    "no groups": (_without_groups, "'param_groups' is missing"),
    "groups are a number": (lambda s: s.update(param_groups=3), "'param_groups' is 3, no list"),
    "a group is text": (lambda s: s.update(param_groups=["lr"]), "group 0 is 'lr', no dict"),
    "state is a list": (lambda s: s.update(state=[]), "'state' is a list, no dict"),
    "a state is a list": (lambda s: s["state"].update({0: [1]}), "the state of '0' is a list, no"),
    "the user's alone": (
        lambda s: s["state"].update({0: {"mine": 1}}),
        "'0/step' is missing; '0/exp_avg' is missing; '0/exp_avg_sq' is missing",
    ),
    "one beta": (
        lambda s: s["param_groups"][0].update(betas=(0.9,)),
        "'betas' of group 0 is a tuple, no pair of numbers",
    ),
    "rate": (lambda s: s["param_groups"][0].update(lr="1"), "'lr' of group 0 is '1', no number"),
    "all at once": (
        lambda s: (s["param_groups"][0].pop("eps"), s["state"][0].pop("exp_avg")),
        "'eps' of group 0 is missing; '0/exp_avg' is missing",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_load_rejects_malformed_state(case: str) -> None:
    change, message = MALFORMED[case]
    state = state_of("Adam")
    change(state)
    assert_refused(step(of_one(optim, "Adam")), state, f"Adam: {message}")


@pytest.mark.parametrize("make", [optim.Adam, tensorflow.Adam])
def test_load_rejects_other_types(make: Any) -> None:
    for argument in (None, [], "state"):
        with pytest.raises(TypeError, match="state_dict must be a dict, not a "):
            make([torch.ones(1, requires_grad=True)]).load_state_dict(argument)


def test_torch_errors_are_kept() -> None:
    state = state_of("Adam")
    state["param_groups"][0]["params"] = [0, 1]
    for module in (torch.optim, optim):
        with pytest.raises(ValueError, match="doesn't match the size of optimizer's group"):
            of_one(module, "Adam").load_state_dict(state)


def test_user_entries_are_kept() -> None:
    optimizers = [step(of_one(module, "Adam"), 2) for module in (torch.optim, optim)]
    for opt in optimizers:
        state = copy.deepcopy(opt.state_dict())
        state["state"][0] |= {"mine": torch.ones(4), "note": 7}
        state["state"]["elsewhere"] = {"y": 1}
        state["param_groups"][0]["name"] = "decoder"
        opt.load_state_dict(state)
        (param,) = opt.param_groups[0]["params"]
        assert opt.state[param]["note"] == 7
        assert torch.equal(opt.state[param]["mine"], torch.ones(4))
        assert opt.param_groups[0]["name"] == "decoder"
        assert opt.state["elsewhere"] == {"y": 1}
        del opt.state["elsewhere"]
    actual, expected = (step(opt).param_groups[0]["params"][0] for opt in reversed(optimizers))
    torch.testing.assert_close(actual, expected, rtol=2e-5, atol=1e-6)


NEW_OPTIONS: dict[str, tuple[Any, str, dict[str, Any], torch.dtype]] = {
    f"{face}-{option}": (make, name, {option: value}, dtype)
    for face, make, name in (("torch", optim, "AdamW"), ("tensorflow", tensorflow, "Adam"))
    for option, value, dtype in (
        ("ema_decay", 0.9, torch.float32),
        ("masters", True, torch.bfloat16),
    )
}


@pytest.mark.parametrize("case", NEW_OPTIONS)
def test_new_option_starts_at_params(case: str) -> None:
    module, name, options, dtype = NEW_OPTIONS[case]
    source = torch.optim if module is optim else module
    values = torch.linspace(-1, 2, 6).reshape(SHAPE).to(dtype)
    old = step(getattr(source, name)([torch.nn.Parameter(values.clone())], lr=0.1), 3)
    (param,) = old.param_groups[0]["params"]
    new = torch.nn.Parameter(torch.zeros(SHAPE, dtype=dtype))
    opt = getattr(module, name)([new], lr=0.1, **options)
    with pytest.warns(CheckpointWarning, match=f"{name} with .* begins at the parameters"):
        opt.load_state_dict(copy.deepcopy(old.state_dict()))
    with torch.no_grad():
        new.copy_(param)  # a model may be loaded after its optimizer
    step(opt)
    if "ema_decay" in options:
        step(old)
        assert_same([opt.state[new]["ema"]], [new.detach()])
        previous = new.detach().clone()
        step(opt)
        torch.testing.assert_close(opt.state[new]["ema"], previous + 0.1 * (new - previous))
        return
    wide = torch.nn.Parameter(param.detach().float())
    reference = getattr(source, name)([wide], lr=0.1)
    state = copy.deepcopy(old.state_dict())
    if module is tensorflow:
        state["state"][0] = {
            k: v if k == "step" else v.float() for k, v in state["state"][0].items()
        }
    reference.load_state_dict(state)
    step(reference)
    torch.testing.assert_close(opt.state[new]["master"], wide.detach(), rtol=2e-5, atol=1e-6)
    assert_same([new.detach()], [opt.state[new]["master"].to(dtype)])
    loaded = getattr(module, name)([torch.nn.Parameter(new.detach().clone())], lr=0.1, **options)
    loaded.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert_same([p.detach() for p in step(loaded).state], [p.detach() for p in step(opt).state])


REMOVED_OPTIONS = {
    "master": (optim, "AdamW", {"masters": True}),
    "ema": (optim, "AdamW", {"ema_decay": 0.9}),
    "slow": (optim, "AdamW", {"lookahead": 2}),
    "radius": (optim, "AdamW", {"sphere": True}),
    "tensorflow's ema": (tensorflow, "Adam", {"ema_decay": 0.9}),
}


@pytest.mark.parametrize("is_file", [False, True])
@pytest.mark.parametrize("case", REMOVED_OPTIONS)
def test_state_of_removed_option_is_dropped(case: str, is_file: bool, tmp_path: Path) -> None:
    """Stale state would be continued by a later optimizer with the option."""
    module, name, options = REMOVED_OPTIONS[case]
    key = case.split()[-1]
    values = torch.linspace(-1, 2, 6).reshape(SHAPE).to(torch.bfloat16)
    source, opt = (
        getattr(module, name)({"w": torch.nn.Parameter(values.clone())}.items(), **kwargs)
        for kwargs in (options, {})
    )
    assert key in step(source).state_dict()["state"][0]
    if is_file:
        checkpoint.save(tmp_path / "run", optimizer=source)

    def load() -> None:
        if is_file:
            checkpoint.restore(tmp_path / "run", optimizer=opt, check_arguments=False)
        else:
            opt.load_state_dict(source.state_dict())

    with pytest.warns(CheckpointWarning, match=f"{name}: .* has '{key}', which is left behind"):
        load()
    assert key not in step(opt).state_dict()["state"][0]
    source.load_state_dict(source.state_dict())  # without a warning


@pytest.mark.parametrize(
    ("key", "case"), [(option, REMOVED_OPTIONS[option]) for option in list(REMOVED_OPTIONS)[:3]]
)
def test_state_that_torch_rounded_is_dropped(key: str, case: Any) -> None:
    module, name, options = case
    values = torch.linspace(-1, 2, 6).reshape(SHAPE).to(torch.bfloat16)
    source, opt = (
        getattr(module, name)([torch.nn.Parameter(values.clone())], **options) for _ in range(2)
    )
    torch_opt = torch.optim.AdamW([torch.nn.Parameter(values.clone())])
    torch_opt.load_state_dict(step(source).state_dict())
    assert torch_opt.state_dict()["state"][0][key].dtype == torch.bfloat16
    with (
        pytest.warns(CheckpointWarning, match=f"'{key}' .* of 16 bits, .* is left behind"),
        pytest.warns(CheckpointWarning, match=f"no '{key}', which begins at the parameters"),
    ):
        opt.load_state_dict(step(torch_opt).state_dict())
    assert step(opt).state_dict()["state"][0][key].dtype == torch.float32


@pytest.mark.parametrize("option", ["accumulate", "clip_grad_norm", "wide_sums"])
def test_new_option_without_state_does_not_warn(option: str) -> None:
    opt = of_one(optim, "AdamW", **{option: {"accumulate": 2, "wide_sums": True}.get(option, 1.0)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opt.load_state_dict(state_of("AdamW"))
    step(opt, 2)
    assert opt.last_step.taken


def test_load_hooks_match_torch() -> None:
    calls_by_module: dict[Any, list[Any]] = {}
    for module in (torch.optim, optim):
        opt, calls = of_one(module, "Adam"), calls_by_module.setdefault(module, [])
        state = state_of("Adam")

        def before(optimizer: Any, state_dict: Any, opt: Any = opt, calls: Any = calls) -> Any:
            calls.append((optimizer is opt, len(optimizer.state), sorted(state_dict)))
            return {**state_dict, "param_groups": [{**state_dict["param_groups"][0], "lr": 0.5}]}

        def after(optimizer: Any, opt: Any = opt, calls: Any = calls) -> None:
            calls.append((optimizer is opt, len(optimizer.state), optimizer.param_groups[0]["lr"]))

        opt.register_load_state_dict_pre_hook(before)
        opt.register_load_state_dict_post_hook(after)
        opt.load_state_dict(state)
        opt.load_state_dict(state)
    assert calls_by_module[optim] == calls_by_module[torch.optim]


class Subclass(optim.Adam):
    """User-defined class that completes older states."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.call_count = getattr(self, "call_count", 0) + 1
        for group in self.param_groups:
            group.setdefault("mine", 1)


def test_user_class_completes_state() -> None:
    opt = Subclass([torch.nn.Parameter(torch.ones(SHAPE))])
    opt.load_state_dict(state_of("Adam"))
    assert (opt.call_count, opt.param_groups[0]["mine"]) == (1, 1)
    assert_refused(opt, state_of("RMSprop"), "Subclass: ")
    assert opt.call_count == 1


def rows_with_momentum(module: Any, state: Any = None) -> Any:
    """Return an SGD with sparse momentum, two steps after loading a state."""
    opt = of_one(module, "SGD", momentum=0.9)
    if state is not None:
        opt.load_state_dict(copy.deepcopy(state))
    (param,) = opt.param_groups[0]["params"]
    for row in (1, 2):
        param.grad = torch.sparse_coo_tensor(
            [[row, 0, row]], torch.ones(3, 2), SHAPE, check_invariants=True
        )
        opt.step()
    return opt


def test_sparse_momentum_is_loaded() -> None:
    state = rows_with_momentum(torch.optim).state_dict()
    opt, torch_opt = (rows_with_momentum(module, state) for module in (optim, torch.optim))
    assert_same([p.detach() for p in opt.state], [p.detach() for p in torch_opt.state])
    (state_entry,) = copy.deepcopy(state["state"]).values()
    state_entry["momentum_buffer"]._indices()[0, 0] = 3
    sgd = of_one(optim, "SGD", momentum=0.9)
    assert_refused(sgd, {**state, "state": {0: state_entry}}, r"indices\[0\] = \[3\] is not in it")
    with_rows = {
        0: {"step": 1, "exp_avg": state_entry["momentum_buffer"], "exp_avg_sq": torch.ones(SHAPE)}
    }
    adam = of_one(optim, "Adam")
    assert_refused(adam, {**adam.state_dict(), "state": with_rows}, "sparse_coo")


def test_array_lr_is_loaded() -> None:
    opt = of_one(optim, "Adam")
    opt.param_groups[0]["lr"] = np.array(0.05)
    step(opt)
    opt.load_state_dict(copy.deepcopy(opt.state_dict()))
    step(opt)


def test_scheduler_uses_loaded_lr() -> None:
    opt = of_one(optim, "Adam")
    rates = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)
    opt.load_state_dict({**state_of("Adam")})
    step(opt)
    rates.step()
    assert opt.param_groups[0]["lr"] == 0.05


LOADERS: dict[str, Any] = {
    "Adam": lambda: of_one(optim, "Adam"),
    "options": lambda: of_one(optim, "AdamW", ema_decay=0.9, clip_grad_norm=1.0),
    "sums": lambda: of_one(optim, "SGD", momentum=0.9, accumulate=3),
    "tensorflow": lambda: of_one(tensorflow, "Nadam", ema_decay=0.5),
}


@pytest.mark.parametrize("make", [optim.Adam, tensorflow.Adam, torch.optim.Adam])
def test_swapped_states_are_loaded(make: Any) -> None:
    first, second = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    opt = make([first, second], lr=0.1)
    for param, start in ((first, 1.0), (second, 10.0)):
        param.grad = torch.arange(start, start + 3)
    opt.step()
    state_dict = opt.state_dict()  # refers to the same tensors
    expected = [copy.deepcopy(state_dict["state"][key]) for key in (1, 0)]
    opt.load_state_dict(
        {**state_dict, "state": {0: state_dict["state"][1], 1: state_dict["state"][0]}}
    )
    for param, state in zip((first, second), expected, strict=True):
        for name, value in state.items():
            assert torch.equal(opt.state[param][name], value)


@pytest.mark.parametrize("name", LOADERS)
def test_interrupted_load_is_atomic(name: str) -> None:
    make = LOADERS[name]
    source, target = step(make(), 4), step(make(), 2)
    source.param_groups[0]["lr"] = 0.25

    def snapshot(optimizer: Any) -> Any:
        group = {**optimizer.param_groups[0], "params": 0}
        return group, [x.tolist() for state in optimizer.state.values() for x in state.values()]

    states = copy.deepcopy(source.state_dict())
    new, old, number, outcomes = snapshot(source), snapshot(target), 0, set[bool]()
    while True:
        opt = copy.deepcopy(target)
        was_interrupted = interrupted_at(number, lambda: opt.load_state_dict(states))  # noqa: B023
        outcome = snapshot(opt)
        assert outcome in (old, new), number
        outcomes.add(outcome == new)
        if not was_interrupted:
            break
        number += 1 + number // 100  # few interruption points lie in the library
    assert outcomes == {False, True}


def test_saved_file_loads_in_torch() -> None:
    file = io.BytesIO()
    torch.save(
        step(of_one(optim, "AdamW", clip_grad_norm=1.0, ema_decay=0.9), 2).state_dict(), file
    )
    file.seek(0)
    torch_opt = of_one(torch.optim, "AdamW")
    torch_opt.load_state_dict(torch.load(file, weights_only=True))
    assert set(torch_opt.param_groups[0]) == {*of_one(torch.optim, "AdamW").param_groups[0]}
    step(torch_opt)
