"""State of `thalweg.optim` is torch's, key for key: moved to and fro, copied, and in files."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from rulebook import assert_same
from thalweg import checkpoint, optim
from thalweg.keras.optimizers import Adam
from thalweg.rules import HEAVY_BALL
from torch_inputs import CLASSES, INPUTS, ROWS, Input, params_of, set_grads, shapes_of

FIRST = {case.name: case for case in reversed(INPUTS)}
WITH = [
    *(case for name, case in FIRST.items()),
    Input("SGD", {"momentum": 0.9, "nesterov": True}, "nesterov"),
    Input("Adam", {"amsgrad": True}, "amsgrad"),
    Input("RMSprop", {"momentum": 0.9, "centered": True}, "all"),
    Input("ASGD", {"t0": 2}, "averaging"),
]
by_case = pytest.mark.parametrize("case", WITH, ids=str)


def trained(case: Input, module: Any, first: int = 0, steps: int = 3, given: Any = None) -> Any:
    """An optimizer after some steps, or another one after further steps."""
    sparse = case.name == "SparseAdam"
    optimizer = given
    if given is None:
        optimizer = case.make(module, params_of(torch.float32, shapes_of(case.name)))
    for step in range(first, first + steps):
        set_grads(optimizer.param_groups[0]["params"], step, sparse)
        optimizer.step()
    return optimizer


def moved(optimizer: Any, module: Any, case: Input) -> Any:
    """A new optimizer, over copies of the parameters, that was given a copy of the state."""
    params = [p.detach().clone().requires_grad_() for p in optimizer.param_groups[0]["params"]]
    made = case.make(module, params)
    made.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return made


def tensors(optimizer: Any) -> list[torch.Tensor]:
    """Parameters and state, in order."""
    params = optimizer.param_groups[0]["params"]
    found = [param.detach() for param in params]
    for param in params:
        for value in optimizer.state.get(param, {}).values():
            found.append(torch.as_tensor(value, dtype=torch.float32))
    return found


def assert_alike(one: Any, other: Any) -> None:
    a, b = one.state_dict(), other.state_dict()
    assert [list(own) for own in a["state"].values()] == [list(own) for own in b["state"].values()]
    assert [group.keys() for group in a["param_groups"]] == [
        group.keys() for group in b["param_groups"]
    ]


@by_case
def test_a_training_moves_from_torch_and_back(case: Input) -> None:
    torchs = trained(case, torch.optim)
    ours = moved(torchs, optim, case)
    assert_alike(torchs, ours)
    assert_same(tensors(ours), tensors(torchs))
    trained(case, optim, 3, given=ours)
    back = moved(ours, torch.optim, case)
    assert_same(tensors(back), tensors(ours))
    trained(case, torch.optim, 6, given=back)
    straight = trained(case, torch.optim, steps=9)
    assert_alike(back, straight)
    # What docs/torch.md lists for a centered RMSprop with momentum: 16 units in the last place.
    is_wide = case.name == "RMSprop" and case.described == "all"
    atol = 16 * 2**-23 if is_wide else 1e-7
    for got, wanted in zip(tensors(back), tensors(straight), strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-5, atol=atol)


@by_case
def test_a_training_goes_on_where_it_was_saved(case: Input) -> None:
    straight = trained(case, optim, steps=6)
    begun = trained(case, optim)
    for resumed in (
        moved(begun, optim, case),
        copy.deepcopy(begun),
        pickle.loads(pickle.dumps(begun)),
    ):
        assert_alike(resumed, begun)
        assert_same(tensors(trained(case, optim, 3, given=resumed)), tensors(straight))
    assert_same(tensors(trained(case, optim, 3, given=begun)), tensors(straight))


@by_case
def test_files_hold_nothing_but_tensors_and_numbers(case: Input) -> None:
    file = io.BytesIO()
    ours = trained(case, optim)
    torch.save(ours.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    other = moved(ours, optim, case)
    other.load_state_dict(loaded)
    assert_same(tensors(other), tensors(ours))


def test_a_file_holds_no_more_than_the_state() -> None:
    param = torch.nn.Parameter(torch.zeros(1_000_000))
    ours = optim.Adam([param])
    param.grad = torch.ones_like(param)
    ours.step()
    file = io.BytesIO()
    torch.save(ours.state_dict(), file)
    assert file.tell() < 2 * 4_000_000 + 10_000


def test_state_is_made_at_the_first_gradient() -> None:
    params = params_of(torch.float32)
    ours = optim.Adam(params)
    assert ours.state_dict()["state"] == {}
    params[1].grad = torch.ones_like(params[1])
    ours.step()
    assert list(ours.state_dict()["state"]) == [1]
    set_grads(params, 1)
    ours.step()
    steps = [own["step"].item() for own in ours.state_dict()["state"].values()]
    assert sorted(steps) == [1, 1, 1, 2]


@pytest.mark.parametrize("name", CLASSES)
def test_steps_count_apart(name: str) -> None:
    """A parameter without a gradient stands still, and each has a number of its own."""
    if name in ("SparseAdam",):
        pytest.skip("takes sparse gradients alone")
    own = shapes_of(name)
    both = [FIRST[name].make(each, params_of(torch.float32, own)) for each in (optim, torch.optim)]
    for step in range(6):
        for each in both:
            params = each.param_groups[0]["params"]
            set_grads(params, step)
            params[step % 2].grad = None
            each.step()
    for got, wanted in zip(*map(tensors, both), strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-6, atol=1e-7)


def test_a_number_that_was_set_by_hand_counts() -> None:
    both = [trained(FIRST["Adam"], module) for module in (optim, torch.optim)]
    for each in both:
        params = each.param_groups[0]["params"]
        each.state[params[0]]["step"].fill_(100)
        each.state[params[1]]["exp_avg"] = torch.full_like(params[1], 2.0)
        trained(FIRST["Adam"], None, 3, given=each)
    for got, wanted in zip(*map(tensors, both), strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("how", ["data", "set", "entry", "whole"])
def test_state_that_was_moved_is_found(how: str) -> None:
    ours, other = (trained(FIRST["Adam"], optim) for _ in range(2))
    param = ours.param_groups[0]["params"][0]
    own = ours.state[param]
    if how == "data":
        own["exp_avg"].data = own["exp_avg"].clone()
        own["step"].data = own["step"].clone()
    elif how == "set":
        own["exp_avg"].set_(own["exp_avg"].clone())
    elif how == "entry":
        own["exp_avg"], own["step"] = own["exp_avg"].clone(), own["step"].clone()
    else:
        ours.state[param] = {key: value.clone() for key, value in own.items()}
    before = ours.state[param]["exp_avg"].clone()
    for each in (ours, other):
        trained(FIRST["Adam"], None, 3, given=each)
    assert not torch.equal(ours.state[param]["exp_avg"], before)
    assert_same(tensors(ours), tensors(other))


@pytest.mark.parametrize("name", ["ASGD", "NAdam"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_numbers_that_were_loaded_go_on_as_torchs(name: str, dtype: torch.dtype) -> None:
    """Torch gives them the parameter's dtype."""
    options = {"lambd": 0.3, "t0": 2} if name == "ASGD" else {}
    made = [
        getattr(each, name)(params_of(dtype), lr=0.1, **options) for each in (optim, torch.optim)
    ]
    for step in range(8):
        if step == 4:
            for each in made:
                each.load_state_dict(copy.deepcopy(each.state_dict()))
        for each in made:
            set_grads(each.param_groups[0]["params"], step)
            each.step()
        ours, torchs = [next(iter(each.state.values())) for each in made]
        for key in ("eta", "mu", "mu_product", "step"):
            if key in torchs:
                assert ours[key].dtype == torchs[key].dtype
                assert torch.equal(ours[key], torchs[key]), (key, step)


def test_a_loaded_state_has_numbers_of_its_own() -> None:
    """Torch takes over the tensors that it is given; steps of one are none of the other's."""
    one = trained(FIRST["Adam"], optim)
    other = FIRST["Adam"].make(optim, params_of(torch.float32))
    other.load_state_dict(one.state_dict())
    trained(FIRST["Adam"], None, 3, given=other)
    assert {own["step"].item() for own in one.state.values()} == {3}
    assert {own["step"].item() for own in other.state.values()} == {6}


# In one file with its variables, by `thalweg.checkpoint`


def network() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))


def grouped(module: Any) -> list[dict[str, Any]]:
    return [{"params": module[2].parameters(), "lr": 0.2}, {"params": module[0].parameters()}]


def stepped(optimizer: Any, module: torch.nn.Module, steps: range) -> None:
    for step in steps:
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))

        def closure(x: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (module(x) - 1).square().mean()
            loss.backward()
            return loss

        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()


MAKERS: dict[str, Any] = {
    "Adam": lambda m: optim.Adam(m.parameters(), lr=0.1),
    "Adam in groups": lambda m: optim.Adam(grouped(m), amsgrad=True),
    "momentum": lambda m: optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
    "NAdam": lambda m: optim.NAdam(m.parameters(), lr=torch.tensor(0.1)),
    "around": lambda m: optim.AdamW(m.parameters(), clip_grad_norm=1.0, ema_decay=0.9),
    "sums": lambda m: optim.RMSprop(m.parameters(), accumulate=3),
    "rule": lambda m: optim.RuleOptimizer(grouped(m), HEAVY_BALL, initial={"momentum": 0.5}),
    "tensorflow": lambda m: optim.tensorflow.Nadam(grouped(m), lr=0.1),
    "torch's": lambda m: torch.optim.Adam(grouped(m)),
    "LBFGS": lambda m: torch.optim.LBFGS(m.parameters(), lr=0.1),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("begun", [False, True])
def test_a_training_goes_on_from_its_file(name: str, begun: bool, tmp_path: Path) -> None:
    module, again = network(), network()
    optimizer, other = MAKERS[name](module), MAKERS[name](again)
    stepped(optimizer, module, range(4))
    optimizer.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"] * 0.5
    checkpoint.save(tmp_path / "run", optimizer=optimizer, module=module)
    stepped(optimizer, module, range(4, 8))
    if begun:
        stepped(other, again, range(7))
    assert checkpoint.restore(tmp_path / "run", optimizer=other, module=again).optimizer is other
    stepped(other, again, range(4, 8))
    for one, two in zip(module.parameters(), again.parameters(), strict=True):
        assert_same([one, *flat(optimizer.state[one])], [two, *flat(other.state[two])])
    assert [g["lr"] for g in optimizer.param_groups] == [g["lr"] for g in other.param_groups]


def flat(state: dict[str, Any]) -> list[torch.Tensor]:
    """Tensors and numbers, those in lists, too."""
    found: list[torch.Tensor] = []
    for name in sorted(state):
        given = state[name] if isinstance(state[name], list) else [state[name]]
        found += [torch.as_tensor(x, dtype=torch.float64) for x in given if x is not None]
    return found


def test_a_file_of_torchs_class_is_one_of_ours_and_back(tmp_path: Path) -> None:
    module, again = network(), network()
    torchs, ours = torch.optim.Adam(module.parameters()), optim.Adam(again.parameters())
    stepped(torchs, module, range(3))
    checkpoint.save(tmp_path / "run", optimizer=torchs, module=module)
    checkpoint.restore(tmp_path / "run", optimizer=ours, module=again)
    assert_same(tensors(ours), tensors(torchs))
    stepped(ours, again, range(3, 4))
    checkpoint.save(tmp_path / "run", optimizer=ours, module=again)
    checkpoint.restore(tmp_path / "run", optimizer=torchs, module=module)
    assert_same(tensors(torchs), tensors(ours))


class Own(torch.optim.SGD):
    """A class whose state only it understands."""

    def state_dict(self) -> dict[str, Any]:
        return {"mine": 1}


OTHERS: dict[str, tuple[Any, type[Exception], str]] = {
    "none": (lambda _: None, LookupError, r"torch.optim.Adam, which is made with its parameters"),
    "a class": (
        lambda m: optim.SGD(m.parameters()),
        ValueError,
        r"is torch.optim.SGD, .* Nothing was loaded\.$",
    ),
    "Keras": (lambda _: Adam(0.1), ValueError, "in the file it is torch.optim.Adam"),
    "an option": (
        lambda m: optim.Adam(m.parameters(), amsgrad=True),
        ValueError,
        r"amsgrad of group 0 is True, in the file False.*check_arguments=False",
    ),
    "around": (
        lambda m: optim.Adam(m.parameters(), ema_decay=0.9),
        ValueError,
        "ema_decay is 0.9, in the file None",
    ),
    "groups": (
        lambda m: optim.Adam(grouped(m)),
        ValueError,
        "number of groups is 2, in the file 1",
    ),
    "parameters": (
        lambda m: optim.Adam(m[0].parameters()),
        ValueError,
        r"'2\.weight' of group 0 belongs to nothing here",
    ),
    "strangers": (
        lambda m: optim.Adam([*m.parameters(), torch.nn.Parameter(torch.ones(1))]),
        ValueError,
        "neither in module nor in variables",
    ),
    "of its own": (lambda m: Own(m.parameters()), TypeError, r'extra={"optimizer": optimizer.st'),
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_file_that_is_of_another_optimizer_changes_nothing(case: str, tmp_path: Path) -> None:
    make, error, message = OTHERS[case]
    module, again = network(), network()
    optimizer, other = optim.Adam(module.parameters()), make(again)
    stepped(optimizer, module, range(2))
    checkpoint.save(tmp_path / "run", optimizer=optimizer, module=module)
    kept = [each.detach().clone() for each in again.parameters()]
    with pytest.raises(error, match=message):
        checkpoint.restore(tmp_path / "run", optimizer=other, module=again)
    assert_same(list(again.parameters()), kept)
    if isinstance(other, torch.optim.Optimizer):
        assert not other.state


def test_arguments_of_its_own_are_kept(tmp_path: Path) -> None:
    module, again = network(), network()
    optimizer = optim.Adam(module.parameters(), lr=0.5)
    stepped(optimizer, module, range(2))
    checkpoint.save(tmp_path / "run", optimizer=optimizer, module=module)
    other = optim.Adam(again.parameters(), lr=0.1, amsgrad=True)
    checkpoint.restore(tmp_path / "run", optimizer=other, module=again, check_arguments=False)
    assert (other.param_groups[0]["amsgrad"], other.param_groups[0]["lr"]) == (True, 0.5)
    stepped(other, again, range(2, 3))
    averaging = optim.Adam(again.parameters(), ema_decay=0.9)
    with pytest.raises(ValueError, match=r"'0\.weight/ema' is missing"):
        checkpoint.restore(
            tmp_path / "run", optimizer=averaging, module=again, check_arguments=False
        )


def test_a_training_is_saved_between_two_steps(tmp_path: Path) -> None:
    module = network()
    optimizer = optim.Adam(module.parameters(), ema_decay=0.9)
    stepped(optimizer, module, range(1))
    with optimizer.swapped(), pytest.raises(RuntimeError, match=r"is inside of swapped\(\)"):
        checkpoint.save(tmp_path / "run", optimizer=optimizer, module=module)
    early = optim.Adam(module.parameters(), in_backward=True)
    module(torch.ones(1, 3)).sum().backward()
    with pytest.raises(RuntimeError, match=r"is between backward\(\) and step\(\)"):
        checkpoint.save(tmp_path / "run", optimizer=early, module=module)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "value", [torch.tensor([1, 2]), torch.eye(3).to_sparse()], ids=["integers", "rows"]
)
def test_tensors_of_the_users_decide_on_nothing(value: torch.Tensor) -> None:
    params = params_of(torch.float32, ROWS[:1])
    optimizer = optim.Adam(params, lr=0.1, clip_grad_norm=1.0)
    for step in range(3):
        set_grads(params, step)
        optimizer.step()  # one of torch's would be refused beside the option
        optimizer.state[params[0]]["mine"] = value
    assert optimizer.state[params[0]]["mine"] is value
