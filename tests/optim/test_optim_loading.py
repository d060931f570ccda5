"""A state that is loaded fits, or nothing of it is loaded; torch is the judge of what fits."""

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
TAKEN = {
    (source, target)
    for source in ("Adam", "AdamW", "RAdam", "NAdam")
    for target in ("Adam", "AdamW", "RAdam", "SparseAdam")
    if source != target
}


def of_one(module: Any, name: str, **options: Any) -> Any:
    """An optimizer of one parameter."""
    values = torch.linspace(-1, 2, 6).reshape(SHAPE)
    return getattr(module, name)([torch.nn.Parameter(values)], lr=0.1, **options)


def step(optimizer: Any, count: int = 1) -> Any:
    """Take steps with gradients of the kind that the class takes."""
    (param,) = optimizer.param_groups[0]["params"]
    for each in range(count):
        grad = torch.full(SHAPE, 0.5, dtype=param.dtype) + 0.125 * each
        param.grad = grad.to_sparse(1) if "Sparse" in type(optimizer).__name__ else grad
        optimizer.step()
    return optimizer


def state_of(name: str, **options: Any) -> dict[str, Any]:
    """The state of a class of torch's after some steps."""
    return copy.deepcopy(step(of_one(torch.optim, name, **options), 3).state_dict())


_FAILURES = (KeyError, RuntimeError, TypeError, ValueError, AttributeError, ArithmeticError,
             AssertionError)  # fmt: skip


def taken_by(optimizer: Any, state: dict[str, Any]) -> torch.Tensor | None:
    """The parameter after one more step; None where a class of torch's fails to load or step."""
    try:
        optimizer.load_state_dict(copy.deepcopy(state))
        step(optimizer)
    except _FAILURES:
        return None
    return optimizer.param_groups[0]["params"][0].detach()


def everything(optimizer: Any) -> list[torch.Tensor]:
    """Parameters and state."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    kept = [value for own in optimizer.state.values() for value in own.values()]
    return [torch.as_tensor(each).detach().double() for each in (*params, *kept)]


def assert_refused(optimizer: Any, state: dict[str, Any], message: str) -> None:
    """Nothing changes by a state that does not fit, not even the objects that hold it."""
    groups, own = optimizer.param_groups, optimizer.state
    options = [dict(group) for group in groups]
    before = everything(optimizer)
    with pytest.raises(CheckpointMismatchError, match=rf"{message}.*Nothing was loaded\.$"):
        optimizer.load_state_dict(state)
    assert optimizer.param_groups is groups
    assert optimizer.state is own
    assert [dict(group) for group in groups] == options
    assert_same(everything(optimizer), before)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_state_of_another_class_is_taken_where_torch_takes_it(source: str, target: str) -> None:
    state = state_of(source)
    wanted = taken_by(of_one(torch.optim, target), state)
    assert (wanted is not None) == ((source, target) in TAKEN)
    ours = step(of_one(optim, target))
    if wanted is None:
        assert_refused(ours, copy.deepcopy(state), target)
        step(ours)
        return
    got = taken_by(of_one(optim, target), state)
    assert got is not None
    torch.testing.assert_close(got, wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("target", CLASSES)
@pytest.mark.parametrize("source", tensorflow.__all__)
def test_a_state_with_tensorflows_numbers_is_none_of_torchs(source: str, target: str) -> None:
    theirs = step(of_one(tensorflow, source), 2).state_dict()
    if taken_by(of_one(torch.optim, target), theirs) is None:
        assert_refused(step(of_one(optim, target)), theirs, target)
    else:  # torch asks for nothing that is not there
        assert (source, target) == ("Adadelta", "nothing")
    assert_refused(of_one(tensorflow, source), state_of(target), "its rule is None")


# What torch does not look at where the rest is there, and counts of steps that are no number.
UNSEEN = {("Rprop", "lr"), *((name, "step") for name in ("RMSprop", "Adadelta", "Rprop"))}
OPTIONS = [(name, key) for name in CLASSES for key in state_of(name)["param_groups"][0]]
KEPT = [
    (name, options, key)
    for name, options in [
        *((name, ()) for name in CLASSES),
        ("SGD", (("momentum", 0.9),)),
        ("Adam", (("amsgrad", True),)),
        ("RMSprop", (("momentum", 0.9), ("centered", True))),
    ]
    for key in state_of(name, **dict(options))["state"].get(0, ())
]


@pytest.mark.parametrize(("name", "key"), OPTIONS)
def test_options_that_torch_misses_are_missed_at_load(name: str, key: str) -> None:
    state = state_of(name)
    del state["param_groups"][0][key]
    if key == "params":
        assert_refused(step(of_one(optim, name)), state, "'params' of group 0 is None, no list")
    elif (wanted := taken_by(of_one(torch.optim, name), state)) is None or (name, key) in UNSEEN:
        assert_refused(step(of_one(optim, name)), state, f"'{key}' of group 0 is missing")
    else:
        got = taken_by(of_one(optim, name), state)
        torch.testing.assert_close(got, wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "options", "key"), KEPT)
@pytest.mark.parametrize("change", ["missing", "shape", "text", "nothing"])
def test_state_that_torch_fails_on_is_refused(
    name: str, options: Any, key: str, change: str
) -> None:
    options = dict(options)
    state = state_of(name, **options)
    own = state["state"][0]
    if change == "missing":
        del own[key]
    else:
        own[key] = {"shape": torch.ones(2, 2), "text": "much", "nothing": None}[change]
    wanted = taken_by(of_one(torch.optim, name, **options), state)
    if wanted is None or (name, key) in UNSEEN:
        assert_refused(step(of_one(optim, name, **options)), state, f"'0/{key}' is ")
    else:
        got = taken_by(of_one(optim, name, **options), state)
        torch.testing.assert_close(got, wanted, rtol=2e-5, atol=1e-6)


def _without_groups(state: dict[str, Any]) -> None:
    del state["param_groups"]


HOSTILE: dict[str, tuple[Any, str]] = {
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


@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_no_state_is_refused(case: str) -> None:
    change, message = HOSTILE[case]
    state = state_of("Adam")
    change(state)
    assert_refused(step(of_one(optim, "Adam")), state, f"Adam: {message}")


@pytest.mark.parametrize("make", [optim.Adam, tensorflow.Adam])
def test_what_is_no_dict_is_refused(make: Any) -> None:
    for given in (None, [], "state"):
        with pytest.raises(TypeError, match="state_dict must be a dict, not a "):
            make([torch.ones(1, requires_grad=True)]).load_state_dict(given)


def test_torchs_own_errors_stay() -> None:
    state = state_of("Adam")
    state["param_groups"][0]["params"] = [0, 1]
    for module in (torch.optim, optim):
        with pytest.raises(ValueError, match="doesn't match the size of optimizer's group"):
            of_one(module, "Adam").load_state_dict(state)


def test_what_is_the_users_stays() -> None:
    both = [step(of_one(module, "Adam"), 2) for module in (torch.optim, optim)]
    for each in both:
        state = copy.deepcopy(each.state_dict())
        state["state"][0] |= {"mine": torch.ones(4), "note": 7}
        state["state"]["elsewhere"] = {"y": 1}
        state["param_groups"][0]["name"] = "decoder"
        each.load_state_dict(state)
        (param,) = each.param_groups[0]["params"]
        assert each.state[param]["note"] == 7
        assert torch.equal(each.state[param]["mine"], torch.ones(4))
        assert each.param_groups[0]["name"] == "decoder"
        assert each.state["elsewhere"] == {"y": 1}
        del each.state["elsewhere"]
    ours, torchs = (step(each).param_groups[0]["params"][0] for each in reversed(both))
    torch.testing.assert_close(ours, torchs, rtol=2e-5, atol=1e-6)


GAINED: dict[str, tuple[Any, str, dict[str, Any], torch.dtype]] = {
    f"{face}-{option}": (make, name, {option: value}, dtype)
    for face, make, name in (("torch", optim, "AdamW"), ("tensorflow", tensorflow, "Adam"))
    for option, value, dtype in (
        ("ema_decay", 0.9, torch.float32),
        ("masters", True, torch.bfloat16),
    )
}


@pytest.mark.parametrize("case", GAINED)
def test_an_option_that_was_gained_begins_at_the_parameters(case: str) -> None:
    """And the numbers are those of an optimizer that has no such state because it is new."""
    module, name, options, dtype = GAINED[case]
    source = torch.optim if module is optim else module
    values = torch.linspace(-1, 2, 6).reshape(SHAPE).to(dtype)
    old = step(getattr(source, name)([torch.nn.Parameter(values.clone())], lr=0.1), 3)
    (param,) = old.param_groups[0]["params"]
    new = torch.nn.Parameter(torch.zeros(SHAPE, dtype=dtype))
    made = getattr(module, name)([new], lr=0.1, **options)
    with pytest.warns(CheckpointWarning, match=f"{name} with .* begins at the parameters"):
        made.load_state_dict(copy.deepcopy(old.state_dict()))
    with torch.no_grad():
        new.copy_(param)  # a model may be loaded after its optimizer
    step(made)
    if "ema_decay" in options:
        step(old)
        assert_same([made.state[new]["ema"]], [new.detach()])
        before = new.detach().clone()
        step(made)
        torch.testing.assert_close(made.state[new]["ema"], before + 0.1 * (new - before))
        return
    wide = torch.nn.Parameter(param.detach().float())
    other = getattr(source, name)([wide], lr=0.1)
    state = copy.deepcopy(old.state_dict())
    if module is tensorflow:
        state["state"][0] = {
            k: v if k == "step" else v.float() for k, v in state["state"][0].items()
        }
    other.load_state_dict(state)
    step(other)
    torch.testing.assert_close(made.state[new]["master"], wide.detach(), rtol=2e-5, atol=1e-6)
    assert_same([new.detach()], [made.state[new]["master"].to(dtype)])
    again = getattr(module, name)([torch.nn.Parameter(new.detach().clone())], lr=0.1, **options)
    again.load_state_dict(copy.deepcopy(made.state_dict()))
    assert_same([p.detach() for p in step(again).state], [p.detach() for p in step(made).state])


LOST = {
    "master": (optim, "AdamW", {"masters": True}),
    "ema": (optim, "AdamW", {"ema_decay": 0.9}),
    "slow": (optim, "AdamW", {"lookahead": 2}),
    "radius": (optim, "AdamW", {"sphere": True}),
    "tensorflow's ema": (tensorflow, "Adam", {"ema_decay": 0.9}),
}


@pytest.mark.parametrize("by_file", [False, True])
@pytest.mark.parametrize("case", LOST)
def test_what_an_option_has_kept_is_left_behind(case: str, by_file: bool, tmp_path: Path) -> None:
    """No step would move it, and a later optimizer with the option would go on with it."""
    module, name, options = LOST[case]
    key = case.split()[-1]
    values = torch.linspace(-1, 2, 6).reshape(SHAPE).to(torch.bfloat16)
    saved, made = (
        getattr(module, name)({"w": torch.nn.Parameter(values.clone())}.items(), **each)
        for each in (options, {})
    )
    assert key in step(saved).state_dict()["state"][0]
    if by_file:
        checkpoint.save(tmp_path / "run", optimizer=saved)

    def load() -> None:
        if by_file:
            checkpoint.restore(tmp_path / "run", optimizer=made, check_arguments=False)
        else:
            made.load_state_dict(saved.state_dict())

    with pytest.warns(CheckpointWarning, match=f"{name}: .* has '{key}', which is left behind"):
        load()
    assert key not in step(made).state_dict()["state"][0]
    saved.load_state_dict(saved.state_dict())  # without a word


@pytest.mark.parametrize(("key", "case"), [(each, LOST[each]) for each in list(LOST)[:3]])
def test_what_torchs_own_has_made_narrow_begins_anew(key: str, case: Any) -> None:
    module, name, options = case
    values = torch.linspace(-1, 2, 6).reshape(SHAPE).to(torch.bfloat16)
    saved, made = (
        getattr(module, name)([torch.nn.Parameter(values.clone())], **options) for _ in range(2)
    )
    plain = torch.optim.AdamW([torch.nn.Parameter(values.clone())])
    plain.load_state_dict(step(saved).state_dict())
    assert plain.state_dict()["state"][0][key].dtype == torch.bfloat16
    with (
        pytest.warns(CheckpointWarning, match=f"'{key}' .* of 16 bits, .* is left behind"),
        pytest.warns(CheckpointWarning, match=f"no '{key}', which begins at the parameters"),
    ):
        made.load_state_dict(step(plain).state_dict())
    assert step(made).state_dict()["state"][0][key].dtype == torch.float32


@pytest.mark.parametrize("option", ["accumulate", "clip_grad_norm", "wide_sums"])
def test_options_without_state_are_gained_without_a_word(option: str) -> None:
    made = of_one(optim, "AdamW", **{option: {"accumulate": 2, "wide_sums": True}.get(option, 1.0)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made.load_state_dict(state_of("AdamW"))
    step(made, 2)
    assert made.last_step.taken


def test_hooks_are_called_as_torch_calls_them() -> None:
    found: dict[Any, list[Any]] = {}
    for module in (torch.optim, optim):
        made, said = of_one(module, "Adam"), found.setdefault(module, [])
        state = state_of("Adam")

        def before(optimizer: Any, given: Any, made: Any = made, said: Any = said) -> Any:
            said.append((optimizer is made, len(optimizer.state), sorted(given)))
            return {**given, "param_groups": [{**given["param_groups"][0], "lr": 0.5}]}

        def after(optimizer: Any, made: Any = made, said: Any = said) -> None:
            said.append((optimizer is made, len(optimizer.state), optimizer.param_groups[0]["lr"]))

        made.register_load_state_dict_pre_hook(before)
        made.register_load_state_dict_post_hook(after)
        made.load_state_dict(state)
        made.load_state_dict(state)
    assert found[optim] == found[torch.optim]


class Mine(optim.Adam):
    """A class of the user's, which completes older states."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.seen = getattr(self, "seen", 0) + 1
        for group in self.param_groups:
            group.setdefault("mine", 1)


def test_a_class_of_the_users_completes_a_state() -> None:
    made = Mine([torch.nn.Parameter(torch.ones(SHAPE))])
    made.load_state_dict(state_of("Adam"))
    assert (made.seen, made.param_groups[0]["mine"]) == (1, 1)
    assert_refused(made, state_of("RMSprop"), "Mine: ")
    assert made.seen == 1


def rows_with_momentum(module: Any, state: Any = None) -> Any:
    """SGD of sparse gradients, two steps after a state, which has sparse momentum."""
    made = of_one(module, "SGD", momentum=0.9)
    if state is not None:
        made.load_state_dict(copy.deepcopy(state))
    (param,) = made.param_groups[0]["params"]
    for row in (1, 2):
        param.grad = torch.sparse_coo_tensor(
            [[row, 0, row]], torch.ones(3, 2), SHAPE, check_invariants=True
        )
        made.step()
    return made


def test_sparse_momentum_is_loaded() -> None:
    state = rows_with_momentum(torch.optim).state_dict()
    ours, torchs = (rows_with_momentum(module, state) for module in (optim, torch.optim))
    assert_same([p.detach() for p in ours.state], [p.detach() for p in torchs.state])
    (own,) = copy.deepcopy(state["state"]).values()
    own["momentum_buffer"]._indices()[0, 0] = 3
    made = of_one(optim, "SGD", momentum=0.9)
    assert_refused(made, {**state, "state": {0: own}}, r"indices\[0\] = \[3\] is not in it")
    with_rows = {0: {"step": 1, "exp_avg": own["momentum_buffer"], "exp_avg_sq": torch.ones(SHAPE)}}
    other = of_one(optim, "Adam")
    assert_refused(other, {**other.state_dict(), "state": with_rows}, "sparse_coo")


def test_a_rate_that_a_step_takes_is_loaded() -> None:
    made = of_one(optim, "Adam")
    made.param_groups[0]["lr"] = np.array(0.05)
    step(made)
    made.load_state_dict(copy.deepcopy(made.state_dict()))
    step(made)


def test_a_scheduler_follows_what_was_loaded() -> None:
    made = of_one(optim, "Adam")
    rates = torch.optim.lr_scheduler.StepLR(made, 1, gamma=0.5)
    made.load_state_dict({**state_of("Adam")})
    step(made)
    rates.step()
    assert made.param_groups[0]["lr"] == 0.05


LOADERS: dict[str, Any] = {
    "Adam": lambda: of_one(optim, "Adam"),
    "options": lambda: of_one(optim, "AdamW", ema_decay=0.9, clip_grad_norm=1.0),
    "sums": lambda: of_one(optim, "SGD", momentum=0.9, accumulate=3),
    "tensorflow": lambda: of_one(tensorflow, "Nadam", ema_decay=0.5),
}


@pytest.mark.parametrize("make", [optim.Adam, tensorflow.Adam, torch.optim.Adam])
def test_states_of_parameters_change_places(make: Any) -> None:
    one, other = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    opt = make([one, other], lr=0.1)
    for param, start in ((one, 1.0), (other, 10.0)):
        param.grad = torch.arange(start, start + 3)
    opt.step()
    saved = opt.state_dict()  # has the tensors themselves
    wanted = [copy.deepcopy(saved["state"][key]) for key in (1, 0)]
    opt.load_state_dict({**saved, "state": {0: saved["state"][1], 1: saved["state"][0]}})
    for param, state in zip((one, other), wanted, strict=True):
        for name, value in state.items():
            assert torch.equal(opt.state[param][name], value)


@pytest.mark.parametrize("name", LOADERS)
def test_an_interrupted_load_is_one_or_none(name: str) -> None:
    make = LOADERS[name]
    given, other = step(make(), 4), step(make(), 2)
    given.param_groups[0]["lr"] = 0.25

    def shown(optimizer: Any) -> Any:
        group = {**optimizer.param_groups[0], "params": 0}
        return group, [each.tolist() for own in optimizer.state.values() for each in own.values()]

    states = copy.deepcopy(given.state_dict())
    new, old, number, outcomes = shown(given), shown(other), 0, set[bool]()
    while True:
        made = copy.deepcopy(other)
        was_interrupted = interrupted_at(number, lambda: made.load_state_dict(states))  # noqa: B023
        outcome = shown(made)
        assert outcome in (old, new), number
        outcomes.add(outcome == new)
        if not was_interrupted:
            break
        number += 1 + number // 100  # the places in files of their own are few
    assert outcomes == {False, True}


def test_a_file_of_torchs_goes_on_in_torch() -> None:
    file = io.BytesIO()
    torch.save(
        step(of_one(optim, "AdamW", clip_grad_norm=1.0, ema_decay=0.9), 2).state_dict(), file
    )
    file.seek(0)
    back = of_one(torch.optim, "AdamW")
    back.load_state_dict(torch.load(file, weights_only=True))
    assert set(back.param_groups[0]) == {*of_one(torch.optim, "AdamW").param_groups[0]}
    step(back)
