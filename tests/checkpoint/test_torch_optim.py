"""The state of `torch.optim`, taken over and handed back."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from files import through_a_file
from thalweg import NumericsWarning, Variable
from thalweg.checkpoint import from_torch, to_torch
from thalweg.keras.optimizers import (
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Nadam,
    RMSprop,
    RuleOptimizer,
    schedules,
)
from thalweg.rules import ADAGRAD
from thalweg.v1 import train
from thalweg.v1.contrib.opt import AdamWOptimizer, MomentumWOptimizer
from thalweg.v1.train import AdamOptimizer, MomentumOptimizer
from torch_counterparts import CASES, Case, our_step, parameters, torch_step

BOUNDS = {torch.float64: 1.0, torch.float32: 2e-6 / 1e-13}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
every_dtype = pytest.mark.parametrize("dtype", BOUNDS, ids=["float64", "float32"])


def expected(says: str) -> Any:
    return pytest.warns(NumericsWarning, match=says) if says else contextlib.nullcontext()


def apart(one: Tensor, other: Tensor) -> float:
    """The largest difference of elements, relative to the largest magnitude."""
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    size = float(other.double().abs().max()) or 1.0
    return float((one.double() - other.double()).abs().max()) / size


def trained(case: Case, dtype: torch.dtype, steps: int = 3) -> Any:
    own = parameters(dtype)
    optimizer = case.torch(list(own.values()))
    for number in range(steps):
        torch_step(optimizer, number)
    return optimizer, own


def taken_over(case: Case, dtype: torch.dtype) -> tuple[Any, list[Any], Any, list[Any]]:
    theirs, own = trained(case, dtype)
    ours, variables = case.ours(), [Variable(own[name].detach(), name) for name in own]
    with expected(case.says):
        from_torch(through_a_file(theirs.state_dict()), into=ours, variables=variables)
    return theirs, list(own.values()), ours, variables


@every_dtype
@every_case
def test_five_steps_after_both_are_at_the_same_place(case: Case, dtype: torch.dtype) -> None:
    theirs, params, ours, variables = taken_over(case, dtype)
    for number in range(3, 8):
        torch_step(theirs, number), our_step(ours, variables, number)
    bound = case.bound * BOUNDS[dtype] if dtype == torch.float64 else 2e-6
    for param, var in zip(params, variables, strict=True):
        assert apart(var.detach(), param.detach()) < bound


@every_dtype
@every_case
def test_torch_goes_on_where_it_was_taken_over(case: Case, dtype: torch.dtype) -> None:
    theirs, params, ours, variables = taken_over(case, dtype)
    with expected(case.says):
        state = through_a_file(to_torch(ours, variables, step=3))
    wanted = theirs.state_dict()
    assert state["state"].keys() == wanted["state"].keys()
    for key, own in wanted["state"].items():
        found = state["state"][key]
        assert found.keys() == {name for name, value in own.items() if value is not None}
        for name, value in found.items():
            assert apart(value, own[name]) <= torch.finfo(dtype).eps, name
    again = case.torch([torch.nn.Parameter(param.detach().clone()) for param in params])
    again.load_state_dict(state)
    for number in range(3, 8):
        torch_step(theirs, number), torch_step(again, number)
    (group,) = again.param_groups
    for param, other in zip(params, group["params"], strict=True):
        assert apart(other.detach(), param.detach()) < 1e-6


@every_case
def test_a_group_has_all_that_torch_has_in_one(case: Case) -> None:
    theirs, _, ours, variables = taken_over(case, torch.float64)
    with expected(case.says):
        (group,) = to_torch(ours, variables, step=3)["param_groups"]
    (wanted,) = theirs.state_dict()["param_groups"]
    wanted |= {"param_names": ["w", "b"]}
    different = {key for key in wanted.keys() | group.keys() if wanted.get(key) != group.get(key)}
    # What is called tiny is rounded to float32, and where an accumulator began is no longer known.
    assert different <= {"eps", "initial_accumulator_value"}
    assert abs(group.get("eps", 0) - wanted.get("eps", 0)) < 1e-36


def warned(say: str, *given: Any, **options: Any) -> None:
    with pytest.warns(NumericsWarning, match=say):
        from_torch(*given, **options)


def named(dtype: torch.dtype = torch.float32, *, reverse: bool = False) -> list[Any]:
    own = [Variable(param.detach(), name) for name, param in parameters(dtype).items()]
    return own[::-1] if reverse else own


def test_names_decide_where_both_sides_have_them() -> None:
    own = parameters(torch.float32)
    theirs = torch.optim.Adadelta(list(own.items()), lr=0.001, rho=0.95, eps=1e-7)
    torch_step(theirs, 0)
    opt, (b, w) = Adadelta(), named(reverse=True)
    from_torch(theirs.state_dict(), into=opt, variables=[b, w])
    assert torch.equal(opt.get_slot(w, "accum_grad"), theirs.state[own["w"]]["square_avg"])
    assert torch.equal(opt.get_slot(b, "accum_var"), theirs.state[own["b"]]["acc_delta"])


def test_a_dict_names_variables_as_torch_does() -> None:
    own = parameters(torch.float32)
    theirs = torch.optim.SGD([("enc.w", own["w"]), ("enc.b", own["b"])], lr=0.1, momentum=0.9)
    torch_step(theirs, 0)
    opt, (w, b) = MomentumOptimizer(0.1, 0.9), named()
    from_torch(theirs.state_dict(), into=opt, variables={"enc.b": b, "enc.w": w})
    assert torch.equal(opt.get_slot(b, "momentum"), theirs.state[own["b"]]["momentum_buffer"])


def test_a_state_by_names_is_read() -> None:
    own = parameters(torch.float32)
    theirs = torch.optim.SGD(list(own.values()), lr=0.1, momentum=0.9)
    torch_step(theirs, 0)
    state = theirs.state_dict()  # as torch.distributed.checkpoint has it
    state["state"] = {name: state["state"][place] for place, name in enumerate(own)}
    state["param_groups"][0]["params"] = list(own)
    opt, variables = MomentumOptimizer(0.1, 0.9), named(reverse=True)
    from_torch(state, into=opt, variables=variables)
    assert opt.get_slot(variables[0], "momentum").shape == (2, 3)


def test_parameters_of_the_optimizer_itself_are_gone_on_with() -> None:
    own = list(parameters(torch.float32).values())
    groups = [{"params": own[:1]}, {"params": own[1:], "lr": 0.2}]
    theirs = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    torch_step(theirs, 0)
    opt = SGD(0.1, momentum=0.9)
    warned("the groups of torch have a lr each, an optimizer here has one", theirs, opt)
    for param, rate in zip(own, (0.1, 0.2), strict=True):
        wanted = -rate * theirs.state[param]["momentum_buffer"].double()
        assert torch.equal(opt.get_slot(param, "momentum"), wanted.float())


def test_a_variable_without_a_gradient_in_torch_has_no_slots_here() -> None:
    own = parameters(torch.float32)
    theirs = torch.optim.Adam(list(own.items()))
    own["w"].grad = torch.ones(7)
    theirs.step(), theirs.step()
    opt, (w, b) = AdamOptimizer(), named()
    says = "'b' had no gradient yet, and will be corrected as one that had 2"
    warned(says, theirs.state_dict(), opt, [w, b])
    assert (opt.get_slot(b, "m"), list(opt.get_slot(w, "m").shape)) == (None, [7])
    opt.apply_gradients([(torch.ones(2, 3), b)])
    assert opt.get_slot(b, "m") is not None


def test_a_state_from_before_the_first_step_is_taken_over() -> None:
    theirs = torch.optim.RMSprop(list(parameters(torch.float32).values()), 0.001, 0.9, 1e-7)
    for opt in (RMSprop(), RMSprop()):
        from_torch(theirs.state_dict(), into=opt, variables=named())
        assert (opt.iterations.item(), opt.get_slot_names()) == (0, [])
    with pytest.warns(NumericsWarning, match="inside of the root"):
        from_torch(theirs, into=(opt := train.RMSPropOptimizer(0.001)), variables=named())
    assert opt.variables() == []


def test_the_number_of_steps_may_be_given() -> None:
    theirs = trained(CASES["momentum to v1"], torch.float32)[0]
    opt = SGD(0.125, 0.75)
    warned("has the learning rate in it", theirs.state_dict(), opt, named(), step=41)
    assert opt.iterations.item() == 41
    state = trained(CASES["Adam"], torch.float32)[0].state_dict()
    state["state"][0]["step"] += 1
    opt = CASES["Adam"].ours()
    warned("before bias correction", state, opt, named(), step=4)
    assert opt.iterations.item() == 4


def test_without_a_count_iterations_stay() -> None:
    opt = SGD(0.125)
    opt.iterations.assign(np.int64(5))
    from_torch(torch.optim.SGD(list(parameters(torch.float32).values()), 0.125), opt)
    assert opt.iterations.item() == 5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_slots_have_the_dtype_of_their_variables(dtype: torch.dtype) -> None:
    theirs, own = trained(CASES["Adadelta"], dtype)
    opt, variables = CASES["Adadelta"].ours(), named(dtype)
    from_torch(through_a_file(theirs.state_dict()), into=opt, variables=variables)
    slot = opt.get_slot(variables[0], "accum_grad")
    assert slot.dtype == dtype
    assert torch.equal(slot, theirs.state[own["w"]]["square_avg"])
    back = to_torch(opt, variables)["state"][0]["square_avg"]
    assert torch.equal(back, slot)
    assert back.data_ptr() != slot.data_ptr()


def test_an_optimizer_that_was_trained_is_set_in_place() -> None:
    theirs, _ = trained(CASES["NAdam"], torch.float32)
    opt, variables = CASES["NAdam"].ours(), named()
    for number in range(5):
        our_step(opt, variables, number)
    slot, weights = opt.get_slot(variables[1], "v"), opt.weights
    from_torch(theirs, into=opt, variables=variables)
    assert opt.get_slot(variables[1], "v") is slot
    assert all(one is other for one, other in zip(opt.weights, weights, strict=True))
    assert (opt.iterations.item(), weights[1].item()) == (
        3,
        theirs.state_dict()["state"][0]["mu_product"],
    )


SAID = {
    "a learning rate": (
        lambda own: torch.optim.RMSprop(own, 0.5, 0.9, 1e-7),
        RMSprop,
        "learning_rate is 0.001 here, in torch lr is 0.5",
    ),
    "a beta": (
        lambda own: torch.optim.NAdam(own, 0.001, (0.5, 0.999), 1e-7),
        Nadam,
        r"beta1 is 0\.9 here, in torch betas\[0\] is 0\.5",
    ),
    "weight decay in gradients": (
        lambda own: torch.optim.Adadelta(own, 0.001, 0.95, 1e-7, weight_decay=0.5),
        Adadelta,
        r"was part of torch's gradients: add 0\.25 \|variable\|\^2 to the loss",
    ),
    "weight decay beside gradients": (
        lambda own: torch.optim.AdamW(own, weight_decay=0.5),
        Adam,
        r"torch decays the variables by 0\.0005 a step.*AdamWOptimizer would",
    ),
    "another weight decay": (
        lambda own: torch.optim.AdamW(own, weight_decay=0.5),
        lambda: AdamWOptimizer(0.5),
        r"weight_decay is 0\.5 here, in torch lr \* weight_decay is 0\.0005",
    ),
    "a weight decay that is called": (
        lambda own: torch.optim.AdamW(own, weight_decay=0.5),
        lambda: AdamWOptimizer(lambda: 0.5),
        "weight_decay is not multiplied by the learning rate here",
    ),
    "a maximum": (
        lambda own: torch.optim.RMSprop(own, 0.001, 0.9, 1e-7, maximize=True),
        RMSprop,
        "torch maximizes: minimize the negated loss",
    ),
    "dampening": (
        lambda own: torch.optim.SGD(own, 0.1, 0.5, dampening=0.25),
        lambda: MomentumOptimizer(0.1, 0.5),
        "dampening is 0.25 in torch, and nothing here",
    ),
    "Nesterov": (
        lambda own: torch.optim.SGD(own, 0.1, 0.5, nesterov=True),
        lambda: MomentumOptimizer(0.1, 0.5),
        "the momentum of torch is Nesterov's",
    ),
    "no Nesterov": (
        lambda own: torch.optim.SGD(own, 0.1, 0.5),
        lambda: MomentumOptimizer(0.1, 0.5, use_nesterov=True),
        "the momentum of torch is not Nesterov's",
    ),
    "decay": (
        lambda own: torch.optim.Adagrad(own, 0.001, eps=1e-7, lr_decay=0.5),
        Adagrad,
        "decay of the learning rate is 0 here, 0.5 in torch",
    ),
    "no decay": (
        lambda own: torch.optim.RMSprop(own, 0.001, 0.9, 1e-7),
        lambda: RMSprop(decay=0.25),
        "decay of the learning rate is 0.25 here, 0 in torch",
    ),
}


@pytest.mark.parametrize(("theirs", "ours", "says"), SAID.values(), ids=SAID)
def test_what_differs_is_said(theirs: Any, ours: Any, says: str) -> None:
    own = parameters(torch.float32)
    optimizer, opt = theirs(list(own.values())), ours()
    torch_step(optimizer, 0)
    with pytest.warns(NumericsWarning, match=says) as told:
        from_torch(optimizer.state_dict(), into=opt, variables=named())
    assert len(told) == 1
    assert told[0].filename == __file__


def test_schedules_and_clipping_stay_behind() -> None:
    rate = schedules.ExponentialDecay(0.5, 1, 0.5)
    opt, variables = RMSprop(rate, clipnorm=1.0), named()
    our_step(opt, variables, 0)
    says = r"the learning rate stays 0\.25, what the schedule gives now; clipnorm: clip before step"
    with pytest.warns(NumericsWarning, match=says):
        (group,) = to_torch(opt, variables)["param_groups"]
    assert group["lr"] == 0.25
    opt = RMSprop(0.5, decay=1.0)
    our_step(opt, variables, 0)
    with pytest.warns(NumericsWarning, match=r"the learning rate stays 0\.25, without its decay"):
        to_torch(opt, variables)


def test_the_decay_of_weights_stays_behind_where_torch_has_none() -> None:
    opt, variables = MomentumWOptimizer(0.5, 0.1, 0.9), named()
    our_step(opt, variables, 0)
    with pytest.warns(NumericsWarning, match="the decay of weights stays behind"):
        to_torch(opt, variables)


def test_slots_that_wait_for_their_variable_are_handed_on() -> None:
    opt, again, variables = Adadelta(), Adadelta(), named()
    our_step(opt, variables, 0)
    again.load_state_dict(opt.state_dict())
    assert torch.equal(
        to_torch(again, variables)["state"][1]["acc_delta"], opt.get_slot(variables[1], "accum_var")
    )


def test_a_variable_without_slots_has_no_state_in_torch() -> None:
    for make in (
        Adadelta,
        Adagrad,
        lambda: RuleOptimizer(ADAGRAD),
        lambda: train.AdagradOptimizer(0.1),
    ):
        opt, (w, b) = make(), named()
        opt.apply_gradients([(torch.ones(7), w)])
        state = to_torch(opt, [w, b], step=1)
        cls = torch.optim.Adadelta if make is Adadelta else torch.optim.Adagrad
        own = list(parameters(torch.float32).values())
        theirs = cls(own)
        theirs.load_state_dict(state)
        torch_step(theirs, 1)
        wanted = {} if make is Adadelta else {"sum": 0.1 + own[1].grad.square()}
        for key, value in wanted.items():
            torch.testing.assert_close(theirs.state[own[1]][key], value)


def test_steps_beyond_float32_are_counted_in_float64() -> None:
    opt, variables = RMSprop(), named()
    our_step(opt, variables, 0)
    for count, dtype in ((2**24, torch.float32), (2**24 + 1, torch.float64)):
        opt.iterations.assign(np.int64(count))
        step = to_torch(opt, variables)["state"][0]["step"]
        assert (step.dtype, int(step)) == (dtype, count)


def test_a_rate_of_zero_leaves_no_velocity() -> None:
    theirs = trained(CASES["momentum to SGD"], torch.float32)[0]
    theirs.param_groups[0]["lr"] = 0.0
    opt, variables = SGD(0.125, 0.75), named()
    warned("learning_rate is 0.125 here, in torch lr is 0", theirs.state_dict(), opt, variables)
    assert not opt.get_slot(variables[0], "momentum").any()
