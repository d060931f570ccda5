"""The state of `torch.optim`, imported and exported."""

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


def expected(message: str) -> Any:
    return pytest.warns(NumericsWarning, match=message) if message else contextlib.nullcontext()


def apart(first: Tensor, second: Tensor) -> float:
    """Return the largest difference of elements, relative to the largest magnitude."""
    assert (first.dtype, first.shape) == (second.dtype, second.shape)
    size = float(second.double().abs().max()) or 1.0
    return float((first.double() - second.double()).abs().max()) / size


def trained(case: Case, dtype: torch.dtype, steps: int = 3) -> Any:
    params = parameters(dtype)
    optimizer = case.torch(list(params.values()))
    for number in range(steps):
        torch_step(optimizer, number)
    return optimizer, params


def taken_over(case: Case, dtype: torch.dtype) -> tuple[Any, list[Any], Any, list[Any]]:
    torch_opt, params = trained(case, dtype)
    opt, variables = case.native(), [Variable(params[name].detach(), name) for name in params]
    with expected(case.warning):
        from_torch(through_a_file(torch_opt.state_dict()), into=opt, variables=variables)
    return torch_opt, list(params.values()), opt, variables


@pytest.mark.one_in(3)
@every_dtype
@every_case
def test_five_steps_after_conversion_are_equal(case: Case, dtype: torch.dtype) -> None:
    torch_opt, params, opt, variables = taken_over(case, dtype)
    for number in range(3, 8):
        torch_step(torch_opt, number), our_step(opt, variables, number)
    bound = case.bound * BOUNDS[dtype] if dtype == torch.float64 else 2e-6
    for param, var in zip(params, variables, strict=True):
        assert apart(var.detach(), param.detach()) < bound


@pytest.mark.one_in(3)
@every_dtype
@every_case
def test_torch_resumes_from_a_converted_state(case: Case, dtype: torch.dtype) -> None:
    torch_opt, params, opt, variables = taken_over(case, dtype)
    with expected(case.warning):
        state = through_a_file(to_torch(opt, variables, step=3))
    torch_state = torch_opt.state_dict()
    assert state["state"].keys() == torch_state["state"].keys()
    for key, expected_slots in torch_state["state"].items():
        slots = state["state"][key]
        assert slots.keys() == {name for name, value in expected_slots.items() if value is not None}
        for name, value in slots.items():
            assert apart(value, expected_slots[name]) <= torch.finfo(dtype).eps, name
    second_opt = case.torch([torch.nn.Parameter(param.detach().clone()) for param in params])
    second_opt.load_state_dict(state)
    for number in range(3, 8):
        torch_step(torch_opt, number), torch_step(second_opt, number)
    (group,) = second_opt.param_groups
    for param, other_param in zip(params, group["params"], strict=True):
        assert apart(other_param.detach(), param.detach()) < 1e-6


@every_case
def test_converted_group_has_all_torch_keys(case: Case) -> None:
    torch_opt, _, opt, variables = taken_over(case, torch.float64)
    with expected(case.warning):
        (group,) = to_torch(opt, variables, step=3)["param_groups"]
    (peer,) = torch_opt.state_dict()["param_groups"]
    peer |= {"param_names": ["w", "b"]}
    different = {key for key in peer.keys() | group.keys() if peer.get(key) != group.get(key)}
    # What is called tiny is rounded to float32, and where an accumulator began is no longer known.
    assert different <= {"eps", "initial_accumulator_value"}
    assert abs(group.get("eps", 0) - peer.get("eps", 0)) < 1e-36


def warned(say: str, *arguments: Any, **options: Any) -> None:
    with pytest.warns(NumericsWarning, match=say):
        from_torch(*arguments, **options)


def named(dtype: torch.dtype = torch.float32, *, reverse: bool = False) -> list[Any]:
    variables = [Variable(param.detach(), name) for name, param in parameters(dtype).items()]
    return variables[::-1] if reverse else variables


def test_names_match_variables_if_both_sides_have_names() -> None:
    params = parameters(torch.float32)
    torch_opt = torch.optim.Adadelta(list(params.items()), lr=0.001, rho=0.95, eps=1e-7)
    torch_step(torch_opt, 0)
    opt, (b, w) = Adadelta(), named(reverse=True)
    from_torch(torch_opt.state_dict(), into=opt, variables=[b, w])
    assert torch.equal(opt.get_slot(w, "accum_grad"), torch_opt.state[params["w"]]["square_avg"])
    assert torch.equal(opt.get_slot(b, "accum_var"), torch_opt.state[params["b"]]["acc_delta"])


def test_a_dict_names_variables_as_torch_does() -> None:
    params = parameters(torch.float32)
    sgd = torch.optim.SGD([("enc.w", params["w"]), ("enc.b", params["b"])], lr=0.1, momentum=0.9)
    torch_step(sgd, 0)
    opt, (w, b) = MomentumOptimizer(0.1, 0.9), named()
    from_torch(sgd.state_dict(), into=opt, variables={"enc.b": b, "enc.w": w})
    assert torch.equal(opt.get_slot(b, "momentum"), sgd.state[params["b"]]["momentum_buffer"])


def test_a_state_by_names_is_read() -> None:
    params = parameters(torch.float32)
    torch_opt = torch.optim.SGD(list(params.values()), lr=0.1, momentum=0.9)
    torch_step(torch_opt, 0)
    state = torch_opt.state_dict()  # as torch.distributed.checkpoint has it
    state["state"] = {name: state["state"][place] for place, name in enumerate(params)}
    state["param_groups"][0]["params"] = list(params)
    opt, variables = MomentumOptimizer(0.1, 0.9), named(reverse=True)
    from_torch(state, into=opt, variables=variables)
    assert opt.get_slot(variables[0], "momentum").shape == (2, 3)


def test_optimizer_parameters_are_used_as_variables() -> None:
    params = list(parameters(torch.float32).values())
    groups = [{"params": params[:1]}, {"params": params[1:], "lr": 0.2}]
    torch_opt = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    torch_step(torch_opt, 0)
    opt = SGD(0.1, momentum=0.9)
    warned("the groups of torch have a lr each, an optimizer here has one", torch_opt, opt)
    for param, rate in zip(params, (0.1, 0.2), strict=True):
        expected = -rate * torch_opt.state[param]["momentum_buffer"].double()
        assert torch.equal(opt.get_slot(param, "momentum"), expected.float())


def test_a_variable_without_a_gradient_in_torch_has_no_slots_here() -> None:
    params = parameters(torch.float32)
    torch_opt = torch.optim.Adam(list(params.items()))
    params["w"].grad = torch.ones(7)
    torch_opt.step(), torch_opt.step()
    opt, (w, b) = AdamOptimizer(), named()
    message = "'b' had no gradient yet, and will be corrected as one that had 2"
    warned(message, torch_opt.state_dict(), opt, [w, b])
    assert (opt.get_slot(b, "m"), list(opt.get_slot(w, "m").shape)) == (None, [7])
    opt.apply_gradients([(torch.ones(2, 3), b)])
    assert opt.get_slot(b, "m") is not None


def test_state_before_the_first_step_is_converted() -> None:
    torch_opt = torch.optim.RMSprop(list(parameters(torch.float32).values()), 0.001, 0.9, 1e-7)
    for opt in (RMSprop(), RMSprop()):
        from_torch(torch_opt.state_dict(), into=opt, variables=named())
        assert (opt.iterations.item(), opt.get_slot_names()) == (0, [])
    with pytest.warns(NumericsWarning, match="inside of the root"):
        from_torch(torch_opt, into=(opt := train.RMSPropOptimizer(0.001)), variables=named())
    assert opt.variables() == []


def test_the_number_of_steps_may_be_given() -> None:
    torch_opt = trained(CASES["momentum to v1"], torch.float32)[0]
    opt = SGD(0.125, 0.75)
    warned("has the learning rate in it", torch_opt.state_dict(), opt, named(), step=41)
    assert opt.iterations.item() == 41
    state = trained(CASES["Adam"], torch.float32)[0].state_dict()
    state["state"][0]["step"] += 1
    opt = CASES["Adam"].native()
    warned("before bias correction", state, opt, named(), step=4)
    assert opt.iterations.item() == 4


def test_state_without_step_count_keeps_iterations() -> None:
    opt = SGD(0.125)
    opt.iterations.assign(np.int64(5))
    from_torch(torch.optim.SGD(list(parameters(torch.float32).values()), 0.125), opt)
    assert opt.iterations.item() == 5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_slots_have_the_dtype_of_their_variables(dtype: torch.dtype) -> None:
    torch_opt, params = trained(CASES["Adadelta"], dtype)
    opt, variables = CASES["Adadelta"].native(), named(dtype)
    from_torch(through_a_file(torch_opt.state_dict()), into=opt, variables=variables)
    slot = opt.get_slot(variables[0], "accum_grad")
    assert slot.dtype == dtype
    assert torch.equal(slot, torch_opt.state[params["w"]]["square_avg"])
    tensor = to_torch(opt, variables)["state"][0]["square_avg"]
    assert torch.equal(tensor, slot)
    assert tensor.data_ptr() != slot.data_ptr()


def test_an_optimizer_that_was_trained_is_set_in_place() -> None:
    torch_opt, _ = trained(CASES["NAdam"], torch.float32)
    opt, variables = CASES["NAdam"].native(), named()
    for number in range(5):
        our_step(opt, variables, number)
    slot, weights = opt.get_slot(variables[1], "v"), opt.weights
    from_torch(torch_opt, into=opt, variables=variables)
    assert opt.get_slot(variables[1], "v") is slot
    assert all(weight is original for weight, original in zip(opt.weights, weights, strict=True))
    assert (opt.iterations.item(), weights[1].item()) == (
        3,
        torch_opt.state_dict()["state"][0]["mu_product"],
    )


WARNINGS = {
    "a learning rate": (
        lambda params: torch.optim.RMSprop(params, 0.5, 0.9, 1e-7),
        RMSprop,
        "learning_rate is 0.001 here, in torch lr is 0.5",
    ),
    "a beta": (
        lambda params: torch.optim.NAdam(params, 0.001, (0.5, 0.999), 1e-7),
        Nadam,
        r"beta1 is 0\.9 here, in torch betas\[0\] is 0\.5",
    ),
    "weight decay in gradients": (
        lambda params: torch.optim.Adadelta(params, 0.001, 0.95, 1e-7, weight_decay=0.5),
        Adadelta,
        r"was part of torch's gradients: add 0\.25 \|variable\|\^2 to the loss",
    ),
    "weight decay beside gradients": (
        lambda params: torch.optim.AdamW(params, weight_decay=0.5),
        Adam,
        r"torch decays the variables by 0\.0005 a step.*AdamWOptimizer would",
    ),
    "another weight decay": (
        lambda params: torch.optim.AdamW(params, weight_decay=0.5),
        lambda: AdamWOptimizer(0.5),
        r"weight_decay is 0\.5 here, in torch lr \* weight_decay is 0\.0005",
    ),
    "a weight decay that is called": (
        lambda params: torch.optim.AdamW(params, weight_decay=0.5),
        lambda: AdamWOptimizer(lambda: 0.5),
        "weight_decay is not multiplied by the learning rate here",
    ),
    "a maximum": (
        lambda params: torch.optim.RMSprop(params, 0.001, 0.9, 1e-7, maximize=True),
        RMSprop,
        "torch maximizes: minimize the negated loss",
    ),
    "dampening": (
        lambda params: torch.optim.SGD(params, 0.1, 0.5, dampening=0.25),
        lambda: MomentumOptimizer(0.1, 0.5),
        "dampening is 0.25 in torch, and nothing here",
    ),
    "Nesterov": (
        lambda params: torch.optim.SGD(params, 0.1, 0.5, nesterov=True),
        lambda: MomentumOptimizer(0.1, 0.5),
        "the momentum of torch is Nesterov's",
    ),
    "no Nesterov": (
        lambda params: torch.optim.SGD(params, 0.1, 0.5),
        lambda: MomentumOptimizer(0.1, 0.5, use_nesterov=True),
        "the momentum of torch is not Nesterov's",
    ),
    "decay": (
        lambda params: torch.optim.Adagrad(params, 0.001, eps=1e-7, lr_decay=0.5),
        Adagrad,
        "decay of the learning rate is 0 here, 0.5 in torch",
    ),
    "no decay": (
        lambda params: torch.optim.RMSprop(params, 0.001, 0.9, 1e-7),
        lambda: RMSprop(decay=0.25),
        "decay of the learning rate is 0.25 here, 0 in torch",
    ),
}


@pytest.mark.parametrize(("torch_factory", "factory", "message"), WARNINGS.values(), ids=WARNINGS)
def test_numerical_differences_warn(torch_factory: Any, factory: Any, message: str) -> None:
    params = parameters(torch.float32)
    optimizer, opt = torch_factory(list(params.values())), factory()
    torch_step(optimizer, 0)
    with pytest.warns(NumericsWarning, match=message) as records:
        from_torch(optimizer.state_dict(), into=opt, variables=named())
    assert len(records) == 1
    assert records[0].filename == __file__


def test_schedules_and_clipping_are_not_converted() -> None:
    rate = schedules.ExponentialDecay(0.5, 1, 0.5)
    opt, variables = RMSprop(rate, clipnorm=1.0), named()
    our_step(opt, variables, 0)
    text = r"the learning rate stays 0\.25, what the schedule gives now; clipnorm: clip before step"
    with pytest.warns(NumericsWarning, match=text):
        (group,) = to_torch(opt, variables)["param_groups"]
    assert group["lr"] == 0.25
    opt = RMSprop(0.5, decay=1.0)
    our_step(opt, variables, 0)
    with pytest.warns(NumericsWarning, match=r"the learning rate stays 0\.25, without its decay"):
        to_torch(opt, variables)


def test_weight_decay_without_torch_counterpart_is_dropped() -> None:
    opt, variables = MomentumWOptimizer(0.5, 0.1, 0.9), named()
    our_step(opt, variables, 0)
    with pytest.warns(NumericsWarning, match="the decay of weights stays behind"):
        to_torch(opt, variables)


def test_deferred_slots_are_converted() -> None:
    opt, copy, variables = Adadelta(), Adadelta(), named()
    our_step(opt, variables, 0)
    copy.load_state_dict(opt.state_dict())
    assert torch.equal(
        to_torch(copy, variables)["state"][1]["acc_delta"], opt.get_slot(variables[1], "accum_var")
    )


def test_variable_without_slots_has_no_torch_state() -> None:
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
        params = list(parameters(torch.float32).values())
        torch_opt = cls(params)
        torch_opt.load_state_dict(state)
        torch_step(torch_opt, 1)
        expected = {} if make is Adadelta else {"sum": 0.1 + params[1].grad.square()}
        for key, value in expected.items():
            torch.testing.assert_close(torch_opt.state[params[1]][key], value)


def test_steps_beyond_float32_are_counted_in_float64() -> None:
    opt, variables = RMSprop(), named()
    our_step(opt, variables, 0)
    for count, dtype in ((2**24, torch.float32), (2**24 + 1, torch.float64)):
        opt.iterations.assign(np.int64(count))
        step = to_torch(opt, variables)["state"][0]["step"]
        assert (step.dtype, int(step)) == (dtype, count)


def test_a_rate_of_zero_leaves_no_velocity() -> None:
    torch_opt = trained(CASES["momentum to SGD"], torch.float32)[0]
    torch_opt.param_groups[0]["lr"] = 0.0
    opt, variables = SGD(0.125, 0.75), named()
    warned("learning_rate is 0.125 here, in torch lr is 0", torch_opt.state_dict(), opt, variables)
    assert not opt.get_slot(variables[0], "momentum").any()
