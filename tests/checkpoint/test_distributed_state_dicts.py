"""State dicts of `torch.distributed.checkpoint`, nested and flat: trainings resume to the bit."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from thalweg import optim
from thalweg.errors import CheckpointMismatchError, CheckpointWarning
from thalweg.optim import tensorflow
from thalweg.optim.diagnostics import Spikes

# Of one process.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")

Make = Callable[..., Any]
FORMS = {"nested": StateDictOptions(), "flat": StateDictOptions(flatten_optimizer_state_dict=True)}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "masters": {"masters": True},
    "split": {"weights": "split"},
    "8bit": {"state_storage": "8bit"},
    "dynamic8": {"state_storage": "dynamic8"},
    "split 8bit": {"weights": "split", "state_storage": "8bit"},
    "ema": {"ema_decay": 0.9},
    "lookahead": {"lookahead": 3},
    "stochastic": {"round": "stochastic", "seed": 3},
    "accumulate": {"accumulate": 2},
    "everything": {
        "accumulate": 2, "weights": "split", "state_storage": "8bit", "ema_decay": 0.9,
    },
}  # fmt: skip
IN_16_BITS = ("masters", "split", "split 8bit", "stochastic", "everything")


def mixed(params: Any, **options: Any) -> Any:
    matrices, vectors = list[Tensor](), list[Tensor]()
    for param in params:
        (matrices if param.dim() > 1 else vectors).append(param)
    groups = [{"params": matrices, "rule": "Muon"}, {"params": vectors, "rule": "AdamW"}]
    return optim.Mixed(groups, **options)


MATRIX_RULES = ("Muon", "NorMuon", "MuonH", "SOAP", "KLSOAP")
MAKERS: dict[str, Make] = {
    **{
        name: getattr(optim, name)
        for name in optim.__all__
        if isinstance(getattr(optim, name), type)
        and issubclass(getattr(optim, name), optim.Optimizer)
        and name not in ("LBFGS", "SparseAdam", "Mixed", "Optimizer", "RuleOptimizer")
        and getattr(optim, name).__module__.startswith("thalweg")
    },
    "momentum": partial(optim.SGD, momentum=0.9),
    "Mixed": mixed,
    "Muon by rows": partial(optim.Muon, layout="rows=2"),
    "SOAP by rows": partial(optim.SOAP, layout="rows=2"),
    **{
        f"tensorflow.{name}": getattr(tensorflow, name)
        for name in tensorflow.__all__
        if isinstance(getattr(tensorflow, name), type)
    },
}
FAST = [
    *(("AdamW", options) for options in OPTIONS),
    # Torch's constructor of Adagrad makes state.
    ("Adagrad", "split"), ("Adagrad", "ema"), ("Adagrad", "accumulate"), ("SGD", "accumulate"),
    ("Mixed", "split 8bit"),
    ("Muon by rows", "8bit"), ("tensorflow.Adam", "everything"),
]  # fmt: skip
# Each class with a third of the options, in one form and after an odd or an even number of steps.
TURNS = itertools.cycle(itertools.product(FORMS, (3, 4)))
ALL = [
    (name, options, form, steps)
    for (name, options), (form, steps) in zip(
        itertools.islice(itertools.product(MAKERS, OPTIONS), 0, None, 3), TURNS, strict=False
    )
]
by_form = pytest.mark.parametrize("form", FORMS)


def model_and_optimizer(name: str, options: str, **others: Any) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    has_bias = not name.startswith(MATRIX_RULES)
    layers = [nn.Linear(80, 64, bias=has_bias), nn.Tanh(), nn.Linear(64, 6, bias=has_bias)]
    module = nn.Sequential(*layers)
    if options in IN_16_BITS:
        module = module.bfloat16()
    return module, MAKERS[name](module.parameters(), **OPTIONS[options], **others)


def train(module: nn.Module, optimizer: Any, seed: int, steps: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    dtype = next(module.parameters()).dtype
    for _ in range(steps):
        batch = torch.randn(4, 80, generator=generator).to(dtype)
        module(batch).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def tensors_of(optimizer: Any) -> list[tuple[str, Tensor]]:
    """Return copies of the parameters and of all tensors of the state, with their keys."""
    named_tensors: list[tuple[str, Tensor]] = []
    for param in (param for group in optimizer.param_groups for param in group["params"]):
        entries = {"param": param.detach(), **optimizer.state.get(param, {})}
        tensors = {key: x for key, x in entries.items() if isinstance(x, Tensor)}
        named_tensors += [(key, tensors[key].clone()) for key in sorted(tensors)]
    return named_tensors


def assert_equal(first: Any, second: Any) -> None:
    assert [key for key, _ in first] == [key for key, _ in second]
    for (key, left), (_, right) in zip(first, second, strict=True):
        assert left.dtype == right.dtype, key
        assert torch.equal(left, right), key


def transferred_by_file(saved: Any, module: nn.Module, optimizer: Any, form: str, to: Path) -> Any:
    dcp.save(saved, checkpoint_id=to)  # pyright: ignore[reportPrivateImportUsage]
    model_state, optimizer_state = get_state_dict(module, optimizer, options=FORMS[form])
    template = {"model": model_state, "optimizer": optimizer_state}
    dcp.load(template, checkpoint_id=to)  # pyright: ignore[reportPrivateImportUsage]
    return template


def resume(
    name: str, options: str, form: str, steps: int, to: Path | None = None
) -> tuple[Any, Any]:
    """Return the tensors of a training that continues, and of one that is resumed.

    The state goes through a file in `to`, or stays in memory if that is None.
    """
    module, optimizer = model_and_optimizer(name, options)
    train(module, optimizer, 1, steps)
    model_state, optimizer_state = get_state_dict(module, optimizer, options=FORMS[form])
    saved: dict[str, Any] = {"model": model_state, "optimizer": optimizer_state}
    saved = copy.deepcopy(saved)
    values = [param.detach().clone() for param in module.parameters()]
    train(module, optimizer, 2, 3)
    new_module, new_optimizer = model_and_optimizer(name, options)
    if to is not None:
        saved = transferred_by_file(saved, new_module, new_optimizer, form, to)
    set_model_state_dict(new_module, saved["model"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", CheckpointWarning)
        arguments = new_module, new_optimizer, saved["optimizer"]
        set_optimizer_state_dict(*arguments, options=FORMS[form])
    assert all(map(torch.equal, values, new_module.parameters()))
    train(new_module, new_optimizer, 2, 3)
    return tensors_of(new_optimizer), tensors_of(optimizer)


@pytest.mark.one_in(3)
@by_form
@pytest.mark.parametrize(("name", "options"), FAST)
def test_training_resumes_to_the_bit(name: str, options: str, form: str) -> None:
    # With `accumulate`, an odd number of steps ends between two updates.
    assert_equal(*resume(name, options, form, 3))


@by_form
@pytest.mark.parametrize("options", ["8bit", "everything"])
def test_training_resumes_from_a_file(options: str, form: str, tmp_path: Path) -> None:
    assert_equal(*resume("AdamW", options, form, 4, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options", "form", "steps"), ALL)
def test_each_class_resumes_to_the_bit(
    name: str, options: str, form: str, steps: int, tmp_path: Path
) -> None:
    try:
        model_and_optimizer(name, options)
    except (TypeError, ValueError, NotImplementedError) as error:
        pytest.skip(str(error))
    assert_equal(*resume(name, options, form, steps))
    if steps % 2 == 0:
        assert_equal(*resume(name, options, form, steps, tmp_path))


@by_form
def test_sums_that_have_begun_need_their_keys_in_the_file(form: str, tmp_path: Path) -> None:
    """Torch loads only what the new optimizer has: it would omit sums without an error."""
    with pytest.raises(dcp.api.CheckpointException, match=r"gradient_sum"):
        resume("AdamW", "accumulate", form, 3, tmp_path)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", ["AdamW", "AdamWDecoupled"])
def test_allocation_changes_neither_parameters_nor_sums(name: str, options: str) -> None:
    """AdamWDecoupled decays parameters at a rate of 0, too."""
    module, optimizer = model_and_optimizer(name, options, weight_decay=0.5)
    values = [param.detach().clone() for param in module.parameters()]
    state: Any = get_optimizer_state_dict(module, optimizer)
    assert all(map(torch.equal, values, module.parameters()))
    assert state["param_groups"][0].get("folded", 0) == 0
    assert all("exp_avg" in entries for entries in state["state"].values())
    assert not any(isinstance(x.get("gradient_sum"), Tensor) for x in optimizer.state.values())


REFUSED: dict[str, tuple[str, str, str]] = {
    "8bit to plain": ("8bit", "plain", r"'0\.weight/exp_avg' is uint8"),
    "dynamic8 to 8bit": ("dynamic8", "8bit", r"'exp_avg' is in dynamic8, here in softsign8"),
}


@pytest.mark.parametrize(("saved_options", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_other_storage_is_named_and_nothing_is_loaded(
    saved_options: str, options: str, message: str
) -> None:
    module, optimizer = model_and_optimizer("AdamW", saved_options)
    train(module, optimizer, 1, 2)
    state = get_optimizer_state_dict(module, optimizer, options=FORMS["flat"])
    module, optimizer = model_and_optimizer("AdamW", options)
    train(module, optimizer, 3, 1)
    previous, groups = tensors_of(optimizer), copy.deepcopy(optimizer.state_dict()["param_groups"])
    with pytest.raises(CheckpointMismatchError, match=message):
        set_optimizer_state_dict(module, optimizer, state, options=FORMS["flat"])
    assert_equal(tensors_of(optimizer), previous)
    assert optimizer.state_dict()["param_groups"] == groups


GROUP, STATE = "param_groups.0.weight", "state.0.weight"
INVALID: dict[str, tuple[str, str, Any, str]] = {
    "no slot": ("8bit", f"{STATE}.exp_avg", None, r"'0\.weight/exp_avg' is missing"),
    "other shape": (
        "8bit", f"{STATE}.encoded_shape", torch.tensor([64, 64]), r"\(64, 64\), here \(64, 80"
    ),
    "other codec": ("8bit", f"{GROUP}.state_storage", {"exp_avg": "x"}, "names 'x' for 'exp_avg'"),
    "no codecs": ("8bit", f"{GROUP}.state_storage", None, f"{GROUP}.state_storage"),
    "other seed": ("stochastic", f"{GROUP}.seed", 4, "'seed' of group 0 is 4, here 3"),
    "no count": ("accumulate", f"{GROUP}.folded", None, f"{GROUP}.folded"),
    "a sum of text": ("accumulate", f"{STATE}.gradient_sum", "x", r"0\.weight/gradient_sum'"),
}  # fmt: skip


@pytest.mark.parametrize(("options", "key", "value", "message"), INVALID.values(), ids=INVALID)
def test_invalid_flat_dicts_name_the_key(options: str, key: str, value: Any, message: str) -> None:
    module, optimizer = model_and_optimizer("AdamW", options)
    train(module, optimizer, 1, 3)
    state = copy.deepcopy(get_optimizer_state_dict(module, optimizer, options=FORMS["flat"]))
    assert state.pop(key) is not None
    if value is not None:
        state[key] = value
    module, optimizer = model_and_optimizer("AdamW", options)
    train(module, optimizer, 3, 2)
    previous = tensors_of(optimizer)
    with pytest.raises((CheckpointMismatchError, KeyError), match=message):
        set_optimizer_state_dict(module, optimizer, state, options=FORMS["flat"])
    assert_equal(tensors_of(optimizer), previous)


def test_flat_dict_needs_a_state_to_load_into() -> None:
    """Torch allocates no state if there are gradients, as with `gradients="flat"`."""
    module, optimizer = model_and_optimizer("AdamW", "plain", gradients="flat")
    train(module, optimizer, 1, 2)
    state = copy.deepcopy(get_optimizer_state_dict(module, optimizer, options=FORMS["flat"]))
    saved_tensors = tensors_of(optimizer)
    new_module, new_optimizer = model_and_optimizer("AdamW", "plain", gradients="flat")
    new_module.load_state_dict(module.state_dict())
    with pytest.raises(CheckpointMismatchError, match=r"'0\.weight' is empty.*set 'grad' of all"):
        set_optimizer_state_dict(new_module, new_optimizer, state, options=FORMS["flat"])
    for param in new_module.parameters():
        param.grad = None
    set_optimizer_state_dict(new_module, new_optimizer, state, options=FORMS["flat"])
    assert_equal(tensors_of(new_optimizer), saved_tensors)


@pytest.mark.parametrize("options", ["8bit", "split", "stochastic", "everything"])
def test_group_of_another_optimizer_can_be_added(options: str) -> None:
    """Groups name the codecs of slots, which constructors do not take from users."""
    _, optimizer = model_and_optimizer("AdamW", options)
    module, second = model_and_optimizer("AdamW", options)
    group = {**optimizer.param_groups[0], "params": [nn.Parameter(module[0].weight.detach())]}  # pyright: ignore[reportIndexIssue]
    second.add_param_group(group)
    assert second.state_dict()["param_groups"][1].keys() == group.keys()
    group = {**group, "params": [nn.Parameter(module[0].weight.detach())]}  # pyright: ignore[reportIndexIssue]
    with pytest.raises(ValueError, match="'state_storage' of group 2 is"):
        second.add_param_group({**group, "state_storage": {"exp_avg": "dynamic8"}})


@by_form
def test_history_of_judged_steps_is_resumed(form: str, tmp_path: Path) -> None:
    spikes, resumed = Spikes("skip"), Spikes("skip")
    module, source = model_and_optimizer("AdamW", "plain", spikes=spikes)
    # Allocates the state by a step that is not judged.
    get_state_dict(module, source)
    train(module, source, 0, 3)
    states = get_state_dict(module, source, options=FORMS[form])
    saved = dict(zip(("model", "optimizer"), states, strict=True))
    module, target = model_and_optimizer("AdamW", "plain", spikes=resumed)
    template = transferred_by_file(saved, module, target, form, tmp_path)
    set_optimizer_state_dict(module, target, template["optimizer"], options=FORMS[form])
    assert spikes.judge is not None
    assert resumed.judge is not None
    assert resumed.judge.history == spikes.judge.history
    assert resumed.judge.step == 3


@by_form
def test_state_without_history_loads_partially_and_begins_one(form: str, tmp_path: Path) -> None:
    module, source = model_and_optimizer("AdamW", "plain")
    train(module, source, 0, 3)
    states = get_state_dict(module, source, options=FORMS[form])
    dcp.save(dict(enumerate(states)), checkpoint_id=tmp_path)  # pyright: ignore
    spikes = Spikes("skip")
    module, target = model_and_optimizer("AdamW", "plain", spikes=spikes)
    template = dict(enumerate(get_state_dict(module, target, options=FORMS[form])))
    planner = DefaultLoadPlanner(allow_partial_load=True)
    dcp.load(template, checkpoint_id=tmp_path, planner=planner)  # pyright: ignore
    set_optimizer_state_dict(module, target, template[1], options=FORMS[form])
    assert spikes.judge is not None
    assert spikes.judge.history == [0, [], []]
    pairs = zip(tensors_of(source)[1:], tensors_of(target)[1:], strict=True)
    assert all(torch.equal(x, y) for (key, x), (_, y) in pairs if key != "param")
