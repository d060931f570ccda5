"""States of `torch.optim` that do not fit: errors name them, and nothing changes."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from attack import mutations
from attack.states import everything, same
from files import through_a_file
from thalweg import CheckpointMismatchError, FailedPreconditionError, Variable, v1
from thalweg.checkpoint import from_torch, to_torch
from thalweg.errors import InvalidArgumentError, InvalidTypeError, ThalwegError
from thalweg.keras.optimizers import SGD, Adagrad, Adam, Ftrl, Nadam, RMSprop
from thalweg.v1.contrib.opt import MovingAverageOptimizer
from thalweg.v1.train import AdamOptimizer, MomentumOptimizer, RMSPropOptimizer
from torch_counterparts import our_step, parameters, torch_step

State = dict[str, Any]


def saved(cls: Any = torch.optim.Adam, **options: Any) -> State:
    """Return a state of "w" of shape (7,) and "b" of shape (2, 3) after two steps."""
    params = parameters(torch.float32)
    optimizer = cls(list(params.items()), **options)
    torch_step(optimizer, 0), torch_step(optimizer, 1)
    return through_a_file(optimizer.state_dict())


def variables(*names: str) -> list[Any]:
    params = parameters(torch.float32)
    return [Variable(params[name].detach(), name) for name in names or ("w", "b")]


def of(number: int, change: Callable[..., Any]) -> Callable[[State], Any]:
    return lambda state: change(state["state"][number])


def renamed(state: State) -> None:
    state["param_groups"][0]["param_names"] = ["w", "c"]


# name -> (change of a good state, message); "w" is 0 and "b" is 1.
SLIPS: dict[str, tuple[Callable[[State], Any], str]] = {
    "missing": (of(1, lambda slots: slots.pop("exp_avg")), r"'b/m' is missing"),
    "more": (
        of(0, lambda slots: slots.update(max_exp_avg_sq=torch.zeros(7))),
        r"'w/max_exp_avg_sq' belongs to nothing here",
    ),
    "longer": (
        of(0, lambda slots: slots.update(exp_avg=torch.zeros(8))),
        r"'w/m' is float32 of shape \(8,\), not float32 of shape \(7,\)",
    ),
    "of as many elements": (
        of(1, lambda slots: slots.update(exp_avg_sq=torch.zeros(3, 2))),
        r"'b/v' is float32 of shape \(3, 2\), not float32 of shape \(2, 3\)",
    ),
    "broadcastable": (
        of(1, lambda slots: slots.update(exp_avg_sq=torch.zeros(3))),
        r"'b/v' is float32 of shape \(3,\), not float32 of shape \(2, 3\)",
    ),
    "of another dtype": (
        of(1, lambda slots: slots.update(exp_avg=torch.zeros(2, 3).double())),
        r"'b/m' is float64 of shape \(2, 3\), not float32",
    ),
    "no tensor": (
        of(0, lambda slots: slots.update(exp_avg=[0.0])),
        "'w/m' is (no tensor|float32 of shape)",
    ),
    "without values": (
        of(0, lambda slots: slots.update(exp_avg=torch.zeros(7, device="meta"))),
        r"'w/m' is float32 of shape \(7,\) on the meta device",
    ),
    "renamed": (renamed, r"'b' is none of its parameters; 'c' belongs to nothing here"),
    "of other steps": (
        of(1, lambda slots: slots.update(step=torch.tensor(9.0))),
        r"'b' has taken 9 steps, 'w' 2\. Here the steps of all variables are counted together",
    ),
    "of half a step": (
        of(1, lambda slots: slots.update(step=torch.tensor(1.5))),
        r"'b' has the step 1\.5",
    ),
    "without a step": (of(0, lambda slots: slots.pop("step")), r"'w' has the step None"),
    "of no step": (of(0, lambda slots: slots.update(step=float("nan"))), r"'w' has the step nan"),
    "of a parameter that is not there": (
        lambda state: state["state"].update({7: {}}),
        "the state of 7 is of no parameter",
    ),
    "states that are no dict": (lambda state: state.update(state=[]), "'state' is no dict"),
    "no groups": (lambda state: state.update(param_groups=[]), "'param_groups' is no list"),
    "a group without parameters": (
        lambda state: state["param_groups"][0].pop("params"),
        "'param_groups' is no list of groups with their 'params'",
    ),
    "a group without a rate": (
        lambda state: state["param_groups"][0].update(lr=None),
        "a group has no number for its 'lr'",
    ),
    "a parameter twice": (
        lambda state: state["param_groups"][0].update(params=[0, 0]),
        "come twice",
    ),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("make", [Adam, AdamOptimizer], ids=["keras", "v1"])
@pytest.mark.parametrize("is_fresh", [True, False], ids=["fresh", "trained"])
@pytest.mark.parametrize(("change", "message"), SLIPS.values(), ids=SLIPS)
def test_mismatch_is_named_and_changes_nothing(
    change: Callable[..., Any], message: str, is_fresh: bool, make: Any
) -> None:
    opt, params, state = make(), variables(), saved()
    if not is_fresh:
        our_step(opt, params, 5)
    initial = everything(opt, params)
    change(state)
    with pytest.raises(CheckpointMismatchError, match=message) as raised:
        from_torch(state, into=opt, variables=params)
    assert str(raised.value).endswith("Nothing was loaded.")
    assert same(everything(opt, params), initial)


def test_ten_differences_are_listed_at_most() -> None:
    params = [torch.nn.Parameter(torch.ones(1)) for _ in range(12)]
    optimizer = torch.optim.Adam(params)
    for param in params:
        param.grad = torch.ones(1)
    optimizer.step()
    state = optimizer.state_dict()
    for number in range(1, 12):
        state["state"][number]["step"] = torch.tensor(2.0)
    with pytest.raises(CheckpointMismatchError, match=r"and 1 more\. .*Here the steps"):
        from_torch(state, into=Adam(), variables=params)


@pytest.mark.parametrize(
    ("cls", "target", "message"),
    [
        (torch.optim.SGD, Adam(), r"to Adam: Adam goes on with the state of torch\.optim\.Adam"),
        (torch.optim.Adamax, Adam(), "goes on with the state of torch.optim.Adam"),
        (torch.optim.RAdam, Adam(), "of none of those of torch.optim that can be taken over"),
        (torch.optim.ASGD, SGD(), "of none of those of torch.optim that can be taken over"),
        (torch.optim.Adam, Ftrl(), "Ftrl runs the rule Ftrl, which has no counterpart in torch"),
        (
            torch.optim.Adam,
            MovingAverageOptimizer(AdamOptimizer()),
            "MovingAverageOptimizer wraps an optimizer: give that, the AdamOptimizer",
        ),
    ],
    ids=["other", "Adamax", "RAdam", "ASGD", "no counterpart", "wrapper"],
)
def test_classes_without_a_counterpart_raise(cls: Any, target: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_torch(saved(cls), into=target, variables=variables())


@pytest.mark.parametrize("state", [None, [], {}, {"state": {}}, 3, torch.ones(1)], ids=repr)
def test_invalid_states_raise(state: Any) -> None:
    with pytest.raises(InvalidTypeError, match=r"an optimizer of torch\.optim or its state_dict"):
        from_torch(state, into=Adam(), variables=variables())


def test_torch_momentum_without_a_slot_raises() -> None:
    state = saved(torch.optim.SGD, momentum=0.9)
    with pytest.raises(CheckpointMismatchError, match=r"'w/momentum_buffer' belongs to nothing he"):
        from_torch(state, into=SGD(), variables=variables())
    state = saved(torch.optim.RMSprop)
    with pytest.raises(CheckpointMismatchError, match=r"'w/momentum' is missing; 'b/momentum' is"):
        from_torch(state, into=RMSprop(momentum=0.9), variables=variables())
    state = saved(torch.optim.RMSprop, momentum=0.9)
    state["state"][0].pop("momentum_buffer")
    with pytest.raises(CheckpointMismatchError, match=r"'w/momentum' is missing\. Nothing was"):
        from_torch(state, into=RMSPropOptimizer(0.1, momentum=0.9), variables=variables())


def test_differing_beta_powers_raise() -> None:
    state = saved(torch.optim.NAdam)
    state["state"][1]["mu_product"] += 0.25
    with pytest.raises(CheckpointMismatchError, match=r"'b' has the mu_product .*, 'w' 0\.2"):
        from_torch(state, into=Nadam(), variables=variables())
    del state["state"][1]["mu_product"]
    with pytest.raises(CheckpointMismatchError, match="'b' has no mu_product"):
        from_torch(state, into=Nadam(), variables=variables())
    del state["state"][0]["mu_product"]
    with pytest.raises(CheckpointMismatchError, match="'b' has no mu_product; 'w' has no"):
        from_torch(state, into=Nadam(), variables=variables())


def live() -> tuple[torch.optim.Optimizer, list[Any]]:
    """Return an optimizer of torch's after a step, and its parameters of one shape."""
    params: list[Any] = [torch.nn.Parameter(torch.full((2,), value)) for value in (1.0, 2.0)]
    optimizer = torch.optim.RMSprop(params, lr=0.001, alpha=0.9, eps=1e-7)
    (params[0].sum() + 3 * params[1].sum()).backward()
    optimizer.step()
    return optimizer, params


def test_parameters_of_the_optimizer_are_known_in_any_order() -> None:
    old, params = live()
    target = RMSprop()
    from_torch(old, target, params[::-1])
    for var in params:
        assert torch.equal(target.get_slot(var, "rms"), old.state[var]["square_avg"])


def test_optimizer_parameters_mixed_with_others_raise() -> None:
    old, params = live()
    target, foreign = RMSprop(), Variable([0.0, 0.0], "other")
    with pytest.raises(CheckpointMismatchError) as error:
        from_torch(old, target, [params[1], foreign])
    assert "'other:0' is none of its parameters; its parameter 0 is not given" in str(error.value)
    assert not target.weights


def test_numbers_of_variables_must_be_the_same() -> None:
    state = saved()
    del state["param_groups"][0]["param_names"]
    with pytest.raises(CheckpointMismatchError, match="there are 2 parameters, and 1 variables"):
        from_torch(state, into=Adam(), variables=variables("w"))
    with pytest.raises(InvalidArgumentError, match="Give the variables, in the order of torch's"):
        from_torch(state, into=Adam())


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ({"w": 0, "b": 0}, "'w' and 'b' name the same variable"),
        ({"w": [0, 1], "b": 0}, "'w' must name one variable, not 2"),
        ({"w": [], "b": 0}, "'w' must name one variable, not 0"),
    ],
)
def test_each_name_has_a_variable_of_its_own(indices: dict[str, Any], message: str) -> None:
    pair = variables()
    nests = {
        name: pair[index] if isinstance(index, int) else [pair[each] for each in index]
        for name, index in indices.items()
    }
    with pytest.raises(InvalidArgumentError, match=message):
        from_torch(saved(), into=Adam(), variables=nests)


@pytest.mark.parametrize("step", [-1, 1.0, True, "3"])
def test_non_integer_step_count_raises(step: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="step must be an integer of 0 or more"):
        from_torch(saved(), into=Adam(), variables=variables(), step=step)


@pytest.mark.parametrize("make", [Adam, AdamOptimizer], ids=["keras", "v1"])
def test_graph_optimizer_raises_and_names_saver(make: Any) -> None:
    state = saved()
    with v1.Graph().as_default():
        params = [
            v1.Variable(param.detach().numpy(), name=name) for name, param in _named().items()
        ]
        opt = make()
        opt.apply_gradients([(torch.ones(var.shape), var) for var in params])
        with pytest.raises(FailedPreconditionError, match=r"thalweg\.v1\.train\.Saver"):
            to_torch(opt, list(_named().values()))
    with pytest.raises(FailedPreconditionError, match=r"thalweg\.v1\.train\.Saver"):
        from_torch(state, into=opt, variables=variables())


def _named() -> dict[str, torch.nn.Parameter]:
    return parameters(torch.float32)


def test_unknown_step_count_raises() -> None:
    opt, params = RMSPropOptimizer(0.1), variables()
    our_step(opt, params, 0)
    with pytest.raises(
        InvalidArgumentError, match=r"how many steps it has taken: give step=\.\.\."
    ):
        to_torch(opt, params)


def test_a_rate_of_zero_cannot_be_taken_out_of_a_slot() -> None:
    opt, params = SGD(0.5, momentum=0.5), variables()
    our_step(opt, params, 0)
    opt.learning_rate = 0.0
    with pytest.raises(InvalidArgumentError, match="The slot momentum has the learning rate as a"):
        to_torch(opt, params)


def test_optimizer_with_other_variables_raises() -> None:
    opt, extra = MomentumOptimizer(0.1, 0.9), Variable([1.0], name="more")
    opt.apply_gradients([([1.0], extra)])
    with pytest.raises(ValueError, match=r"not in it: \['more'\]"):
        from_torch(saved(torch.optim.SGD, momentum=0.9), into=opt, variables=variables())
    opt = Adagrad()
    opt.apply_gradients([([1.0], extra)])
    with pytest.raises(CheckpointMismatchError, match="'more/accumulator' is missing"):
        from_torch(saved(torch.optim.Adagrad), into=opt, variables=variables())


FUZZED = {
    "Adam": (torch.optim.Adam, {"amsgrad": True}, lambda: Adam(amsgrad=True)),
    "SGD": (torch.optim.SGD, {"momentum": 0.5}, lambda: SGD(momentum=0.5)),
    "NAdam": (torch.optim.NAdam, {}, Nadam),
    "v1": (torch.optim.RMSprop, {"centered": True}, lambda: RMSPropOptimizer(0.1, centered=True)),
}


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("cls", "options", "make"), FUZZED.values(), ids=FUZZED)
@pytest.mark.filterwarnings("ignore")
def test_damaged_state_is_loaded_completely_or_not_at_all(
    cls: Any, options: dict[str, Any], make: Any, count: int
) -> None:
    good, error_count = saved(cls, **options), 0
    for number in range(count):
        dice = random.Random(f"{cls.__name__}/{number}")
        state = copy.deepcopy(good)
        parts = {"state": state["state"], "group": state["param_groups"][0]}
        damage = mutations.mutated(parts, dice)
        if "state" in parts:
            state = {"state": parts["state"], "param_groups": [parts.get("group")]}
        opt, params = make(), variables()
        if number % 2:
            our_step(opt, params, 5)
        initial = everything(opt, params)
        try:
            from_torch(state, into=opt, variables=params)
        except (ThalwegError, ValueError, TypeError):
            error_count += 1
            assert same(everything(opt, params), initial), damage
        except Exception as error:
            raise AssertionError(f"{damage} raised {error!r}") from error
    assert error_count > count / 4
