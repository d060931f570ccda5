"""Trainings from a config: recorded ones, what counts and what is left alone, and refusals."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import thalweg.v1 as tf
from golden_files import Case
from openseq2seq_goldens import by_case, cases
from openseq2seq_replay import (
    NOT_SHIPPED,
    SUMMARIES,
    Observed,
    Peers,
    Writer,
    arrays,
    assert_recorded,
    data_of,
    initial,
    loss_of,
    named,
    told,
)
from thalweg import Variable, openseq2seq
from thalweg.openseq2seq import from_config
from thalweg.openseq2seq.optimizers import lr_policies
from thalweg.openseq2seq.optimizers.novograd import NovoGrad

Config = dict[str, Any]

NEW_KEYS = {"clip_gradients": "max_grad_norm", "on_horovod": "use_horovod"}
SHARED_KEYS = ("larc_params", "loss_scaling", "loss_scaling_params", "iter_size", "dtype")


def base_params(case: Case) -> Config:
    """The config of a recorded training, as a file of OpenSeq2Seq would have it."""
    case_config = case["config"]
    name, rate = case_config["optimizer"], case_config["lr_policy"]
    config = {
        "optimizer": NovoGrad if name in ("NovoGrad", NOT_SHIPPED) else name,
        "optimizer_params": case_config.get("optimizer_params", {}),
        "lr_policy": getattr(lr_policies, rate["name"]),
        "lr_policy_params": rate["params"],
        "max_steps": 100_000,
        "summaries": SUMMARIES,
        **{key: case_config[key] for key in SHARED_KEYS if key in case_config},
        **{new: case_config[old] for old, new in NEW_KEYS.items() if old in case_config},
    }
    if case_config.get("iter_size", 1) > 1:
        config["use_horovod"] = True
    if "l2_regularizer" in case_config:
        config["regularizer"] = tf.contrib.layers.l2_regularizer
        config["regularizer_params"] = {"scale": case_config["l2_regularizer"]["scale"]}
    if "var_list" in case_config:
        frozen = [var["name"] for var in case["vars"] if var["name"] not in case_config["var_list"]]
        config["freeze_variables_regex"] = f"({'|'.join(frozen)}):0"
    return config


def regularize(case: Case) -> Callable[[str, Any], bool]:
    regularized = case["config"].get("l2_regularizer", {"vars": []})["vars"]
    return lambda name, variable: name.removesuffix(":0") in regularized


def trained_eagerly(case: Case) -> Iterator[Observed]:
    """Yield the observed values after each step."""
    params = {name: Variable(value, name=name) for name, value in initial(case).items()}
    data: dict[str, Any] = {}
    skip, peers, writer = [False], Peers(), Writer()
    as_shipped = case["config"]["optimizer"] != NOT_SHIPPED
    step = from_config(base_params(case), as_shipped=as_shipped).optimize(
        lambda: loss_of(case, params, data),
        params.items(),
        regularize=regularize(case),
        skip_update_ph=lambda: skip[0],
        all_reduce=peers if case["config"].get("world_size", 1) > 1 else None,
        summary_writer=writer,
    )
    for step_record in case["steps"]:
        data.update({name: torch.from_numpy(x) for name, x in data_of(step_record).items()})
        skip[0] = step_record.get("skip_update", False)
        peers.expect(step_record, list(params))
        writer.scalars.clear()
        row = {"loss": step(), "global_step": step.global_step, "vars": params}
        if step.loss_scaler is not None:
            row["loss_scale"] = step.loss_scaler.loss_scale
        yield {**arrays(row), **told(writer, params), "applied": step.was_applied}


def trained_in_a_session(case: Case) -> Iterator[Observed]:
    """Yield the observed values after each step."""
    with tf.Graph().as_default(), tf.Session() as session:
        params = {name: tf.Variable(value, name=name) for name, value in initial(case).items()}
        feeds = {
            name: tf.placeholder(torch.float32, value.shape)
            for name, value in data_of(case["steps"][0]).items()
        }
        skip, peers, writer = tf.placeholder(torch.bool, ()), Peers(), Writer()
        as_shipped = case["config"]["optimizer"] != NOT_SHIPPED
        step = from_config(base_params(case), as_shipped=as_shipped).optimize(
            loss_of(case, params, feeds),
            tf.trainable_variables(),
            regularize=regularize(case),
            skip_update_ph=skip,
            all_reduce=peers if case["config"].get("world_size", 1) > 1 else None,
            summary_writer=writer,
        )
        session.run(tf.global_variables_initializer())
        tensors = {"vars": params, "global_step": named("global_step")}
        for step_record in case["steps"]:
            feed = {feeds[name]: value for name, value in data_of(step_record).items()}
            feed[skip] = step_record.get("skip_update", False)
            peers.expect(step_record, list(params))
            writer.scalars.clear()
            start = session.run(tensors["global_step"])
            value = session.run(step, feed)
            row = {"loss": value, **session.run(tensors)}
            yield {**row, **told(writer, params), "applied": row["global_step"] > start}


@pytest.mark.one_in(7)
@by_case("traj/")
def test_a_training_from_a_config_is_the_recorded_one(case: Case) -> None:
    # One mode each: `optimize_loss` itself is tested in both.
    train = (trained_eagerly, trained_in_a_session)[[*cases()].index(case["id"]) % 2]
    # Masters and accumulators are looked at where `optimize_loss` itself is tested.
    for number, (row, full) in enumerate(zip(train(case), case["expected"], strict=True)):
        expected = {key: value for key, value in full.items() if key in row}
        assert expected.keys() >= {"loss", "vars", "lr", "applied", "global_step"}
        assert_recorded(row, expected, case["tol"], f"step {number}")


CONFIG: Config = {
    "optimizer": "SGD",
    "optimizer_params": {},
    "lr_policy": lr_policies.fixed_lr,
    "lr_policy_params": {"learning_rate": 0.25},
    "max_steps": 10,
}


def square(*variables: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: sum(((var.float() ** 2).sum() for var in variables), torch.zeros(())) / 2


def test_the_config_of_the_caller_is_not_changed() -> None:
    config = {
        **CONFIG,
        "optimizer": "AdamW",
        "optimizer_params": {"weight_decay": 0.1},
        "lr_policy": lr_policies.poly_decay,
    }
    original = copy.deepcopy(config)
    train = from_config(config)
    weights = Variable([1.0])
    for _ in range(2):
        train.optimize(square(weights), [weights])()
    assert config == original
    assert train.params["optimizer_params"] == {"weight_decay": 0.1}
    assert train.lr_policy_params["decay_steps"] == 10


def test_later_changes_of_the_config_have_no_effect() -> None:
    config = copy.deepcopy(CONFIG)
    train = from_config(config)
    config["lr_policy_params"]["learning_rate"] = 1.0
    assert train.learning_rate(0) == 0.25


def test_params_of_the_trainer_are_immutable() -> None:
    train = from_config(CONFIG)
    with pytest.raises(TypeError, match="does not support item assignment"):
        train.params["max_steps"] = 20  # type: ignore[index]


def test_complete_config_is_accepted() -> None:
    other_keys = {
        "random_seed": 0,
        "num_gpus": 2,
        "data_layer": object,
        "data_layer_params": {"dataset_files": []},
        "encoder": object,
        "encoder_params": {"activation_fn": None},
        "logdir": "log",
        "print_loss_steps": 10,
        "initializer": None,
        "use_xla_jit": True,
    }
    assert from_config({**CONFIG, **other_keys}).params == from_config(CONFIG).params


@pytest.mark.parametrize(
    ("run", "steps"),
    [
        ({"num_epochs": 3, "batch_size_per_gpu": 8}, 36),
        ({"num_epochs": 3, "batch_size_per_gpu": 8, "iter_size": 2}, 18),
        ({"num_epochs": 3, "batch_size_per_gpu": 8, "use_horovod": True}, 36),
    ],
)
def test_num_epochs_sets_the_number_of_steps(run: Config, steps: int) -> None:
    config = {key: value for key, value in CONFIG.items() if key != "max_steps"} | run
    train = from_config(config, dataset_size=100)
    assert train.last_step == steps
    assert train.steps_in_epoch == steps // 3
    assert from_config(config, dataset_size=200, workers=2).length == train.length


def test_worker_count_is_the_group_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    config = {key: value for key, value in CONFIG.items() if key != "max_steps"}
    config |= {"num_epochs": 1, "batch_size_per_gpu": 5}
    steps = [
        from_config({**config, "use_horovod": used}, dataset_size=100).last_step
        for used in (True, False)
    ]
    assert steps == [5, 20]


def test_tensorflow_1_policy_is_accepted() -> None:
    config = {**CONFIG, "lr_policy": tf.train.cosine_decay}
    weights = Variable([1.0])
    step = from_config(config).optimize(lambda: weights.sum(), [weights])
    for _ in range(6):
        step()
    assert step.learning_rate.item() == pytest.approx(0.125)  # half of the way after 5 updates


def test_model_variables_are_selected_by_name() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    model[1].bias.requires_grad_(False)
    old = {name: param.clone() for name, param in model.named_parameters()}
    config = {**CONFIG, "freeze_variables_regex": r"0\.w"}
    step = from_config(config).optimize(square(*model.parameters()), model)
    step()
    changes = [name for name, var in model.named_parameters() if not torch.equal(var, old[name])]
    assert changes == [name for name in ("0.bias", "1.weight") if old[name].any()]


def test_freeze_patterns_match_name_prefixes() -> None:
    inner, outer = Variable([1.0], name="inner/w"), Variable([1.0], name="outer/inner/w")
    config = {**CONFIG, "freeze_variables_regex": "inner"}
    from_config(config).optimize(square(inner, outer), [inner, outer])()
    assert (inner.item(), outer.item()) == (1.0, 0.75)


L2: Config = {
    "regularizer": tf.contrib.layers.l2_regularizer,
    "regularizer_params": {"scale": 0.5},
}


def test_regularizer_is_for_kernels_by_default() -> None:
    kernel, bias = Variable([[2.0]], name="kernel"), Variable([2.0], name="bias")
    step = from_config({**CONFIG, **L2}).optimize(
        lambda: 0.0 * (kernel.sum() + bias.sum()), [kernel, bias]
    )
    assert step() == 1.0
    assert (kernel.item(), bias.item()) == (1.75, 2.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_regularizer_acts_on_masters_in_mixed_precision(dtype: torch.dtype) -> None:
    weights = torch.nn.Parameter(torch.tensor([[1.0]], dtype=dtype))
    config = {**CONFIG, **L2, "dtype": "mixed", "regularizer_params": {"scale": 2.0**-13}}
    step = from_config(config).optimize(lambda: 0.0 * weights.sum(), [("weights", weights)])
    assert step() == 0.0
    # The weights themselves are too coarse to show it.
    assert weights.item() == 1.0
    assert step.optimizer.get_master(weights).item() == 1 - 2.0**-15


def test_config_trains_a_model_in_a_graph() -> None:
    model = torch.nn.Linear(2, 1)
    kernel, bias = (param.detach().clone() for param in model.parameters())
    with tf.Graph().as_default(), tf.Session() as session:
        loss = 0.0 * model(tf.placeholder_with_default(torch.ones(1, 2), (1, 2))).sum()
        step = from_config({**CONFIG, **L2}).optimize(loss, model)
        session.run(tf.global_variables_initializer())
        loss_value = session.run(step)
        weights = session.run(tf.trainable_variables())
    assert loss_value == pytest.approx(0.25 * float(kernel.square().sum()))
    np.testing.assert_allclose(weights[0], 0.875 * kernel.numpy(), rtol=1e-6)
    np.testing.assert_array_equal(weights[1], bias.numpy())


def test_zero_scale_adds_no_penalty() -> None:
    weights = Variable([[1.0]], name="weights")
    config = {**CONFIG, **L2, "regularizer_params": {"scale": 0.0}}
    assert from_config(config).optimize(square(weights), [weights])() == 0.5


def test_a_loss_of_another_dtype_is_cast() -> None:
    weights = Variable([2.0], dtype=torch.float64)
    loss = from_config(CONFIG).optimize(lambda: (weights * weights).sum(), [weights])()
    assert (loss.dtype, loss.item()) == (torch.float32, 4.0)


@pytest.mark.parametrize(
    ("as_shipped", "updates"),
    [(False, [0, 0, 1, 1, 1, 2, 2]), (True, [1, 1, 1, 2, 2, 2, 3])],
)
def test_every_iter_size_th_call_makes_an_update(as_shipped: bool, updates: list[int]) -> None:
    weights = Variable([1.0])
    config = {**CONFIG, "iter_size": 3, "use_horovod": True}
    step = from_config(config, as_shipped=as_shipped).optimize(lambda: weights.sum(), [weights])
    steps_seen: list[int] = []
    for _ in updates:
        step()
        steps_seen.append(int(step.global_step))
    assert steps_seen == updates


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_batch_counts_only_after_a_change(error: type[BaseException]) -> None:
    """The loss fails before anything is added up, the writer after that, or after an update."""

    class Failing(Writer):
        lit = False

        def add_scalar(self, tag: str, value: float, step: int) -> None:
            if self.lit:
                raise error("burnt")

    weights, writer = Variable([0.0]), Failing()
    batches: list[float] = []
    step = from_config({**CONFIG, "iter_size": 2}).optimize(
        lambda: batches.pop() * weights.sum(), [weights], summary_writer=writer
    )
    weights_seen: list[float] = []
    for batch, is_lit in ((4.0, True), (None, False), (8.0, True), (16.0, True), (16.0, False)):
        batches[:], writer.lit = [] if batch is None else [batch], is_lit
        failing = IndexError if batch is None else error
        with pytest.raises(failing) if batch is None or is_lit else contextlib.nullcontext():
            step()
        weights_seen.append(weights.item())
    assert weights_seen == [0.0, 0.0, -1.5, -1.5, -5.5]


def test_micro_batches_have_equal_weight() -> None:
    weights = Variable([0.0])
    batches = iter([1.0, 2.0, 6.0])
    step = from_config({**CONFIG, "iter_size": 3}).optimize(
        lambda: next(batches) * weights.sum(), [weights]
    )
    for _ in range(3):
        step()
    assert weights.item() == -0.75


def test_training_resumes_between_micro_batches() -> None:
    config = {
        **CONFIG,
        "optimizer": "Momentum",
        "optimizer_params": {"momentum": 0.9},
        "iter_size": 3,
    }

    def begun(start: float) -> tuple[Variable, Any]:
        weights = Variable([start], name="weights")
        return weights, from_config(config).optimize(square(weights), [weights])

    weights, step = begun(1.0)
    for _ in range(5):
        step()
    resumed, other_step = begun(weights.item())
    other_step.load_state_dict(step.state_dict())
    for _ in range(4):
        step()
        other_step()
    assert int(other_step.global_step) == 3
    assert weights.item() == resumed.item()


@pytest.mark.parametrize(
    "broken",
    [
        lambda state: state.pop("micro_batches"),
        lambda state: state.update(micro_batches=torch.tensor(1.0)),
        lambda state: state.update(other=torch.tensor(1.0)),
    ],
)
def test_a_state_that_does_not_fit_is_not_loaded(broken: Callable[[Any], Any]) -> None:
    weights = Variable([1.0])
    step = from_config({**CONFIG, "iter_size": 2}).optimize(square(weights), [weights])
    for _ in range(3):
        step()
    state_before = step.state_dict()
    state = {**state_before, "global_step": torch.tensor(7)}
    broken(state)
    with pytest.raises(ValueError, match="Nothing was loaded"):
        step.load_state_dict(state)
    state_after = step.state_dict()
    assert all(torch.equal(state_after[name], value) for name, value in state_before.items())


def without(*keys: str) -> Config:
    return {key: value for key, value in CONFIG.items() if key not in keys}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (without("optimizer"), "optimizer parameter has to be specified"),
        (without("lr_policy"), "lr_policy parameter has to be specified"),
        (without("max_steps"), "Either max_steps or num_epochs"),
        ({**CONFIG, "num_epochs": 1}, "cannot both be given"),
        (without("max_steps") | {"num_epochs": 1}, "dataset_size has to be given"),
        ({**CONFIG, "loss_scale": 512.0}, "Unknown parameter: loss_scale"),
        ({**CONFIG, "automatic_loss_scaling": "Backoff"}, "Unknown parameter: automatic_loss"),
        ({**CONFIG, "max_grad_norm": 1}, "max_grad_norm has to be of type float, not 1"),
        ({**CONFIG, "optimizer_params": [0.9]}, "optimizer_params has to be of type dict"),
        ({**CONFIG, "lr_policy_params": None}, "lr_policy_params has to be of type dict"),
        ({**CONFIG, "summaries": "loss_scale"}, "summaries has to be of type list"),
        ({**CONFIG, "iter_size": 2.0}, "iter_size has to be of type int"),
        ({**CONFIG, "iter_size": 0}, "iter_size must be positive, not 0"),
        ({**CONFIG, "dtype": "float64"}, "dtype has to be one of .*'mixed'"),
        ({**CONFIG, "lr_policy": "poly_decay"}, "lr_policy must be a function"),
        ({**CONFIG, "freeze_variables_regex": "("}, "freeze_variables_regex must be a regular"),
        ({**CONFIG, "freeze_variables_regex": 3}, "freeze_variables_regex must be a regular"),
        ({**CONFIG, "regularizer": 0.1}, "regularizer must be a function that makes"),
        ({**CONFIG, **L2, "regularizer": lambda scale: scale}, "regularizer must make a function"),
    ],
)
def test_invalid_configs_raise(config: Config, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_config(config)


def test_as_shipped_several_batches_need_horovod() -> None:
    with pytest.raises(ValueError, match="iter_size is only supported in Horovod mode"):
        from_config({**CONFIG, "iter_size": 2}, as_shipped=True)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"optimizer": "Lion"}, ValueError, "Optimizer name should be one of"),
        ({"optimizer": "Momentum"}, TypeError, "momentum"),
        ({"summaries": ["loss"]}, ValueError, "you provided loss"),
        ({"larc_params": {}}, ValueError, "larc_eta"),
        ({"larc_params": {"larc_eta": 0.1}, "max_grad_norm": 1.0}, AttributeError, "LARC"),
        ({"dtype": "mixed", "loss_scaling": "Forward"}, ValueError, "forward"),
        ({"freeze_variables_regex": ".*"}, ValueError, r"freeze_variables_regex '\.\*' matches"),
    ],
)
def test_invalid_trainings_raise(change: Config, error: type[Exception], message: str) -> None:
    weights = Variable([1.0])
    with pytest.raises(error, match=message):
        from_config({**CONFIG, **change}).optimize(square(weights), [weights])
    assert weights.item() == 1.0


RATE: Config = {"learning_rate": 0.1}


def policy(name: str, **params: Any) -> Config:
    return {"lr_policy": getattr(lr_policies, name), "lr_policy_params": params}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"loss_scale": 1.0}, ValueError, r"loss_scale\. It became loss_scaling"),
        ({"dataset_size": 9}, ValueError, "argument of from_config"),
        ({"summary_writer": None}, ValueError, "argument of optimize"),
        ({"optimiser": "SGD"}, ValueError, "Did you mean 'optimizer'"),
        ({"lr_polcy": None}, ValueError, "Did you mean 'lr_policy'"),
        ({"Max_Steps": 1}, ValueError, "Did you mean 'max_steps'"),
        ({"learning_rate": 0.1}, ValueError, "Give lr_policy_params a learning_rate"),
        ({"foo": 1}, ValueError, r"Unknown parameter: foo\. There are: batch_size_per_gpu, "),
        ({"optimizer": "adam"}, ValueError, r"optimizer: .* provided adam\. Did you mean 'Adam'"),
        ({"optimizer": "Lion"}, ValueError, r"provided Lion\. For any other give its class"),
        ({"optimizer": 3}, TypeError, "optimizer must be a name or a class, not 3"),
        ({"optimizer": "Momentum"}, TypeError, "optimizer_params: Momentum needs 'momentum'"),
        ({"optimizer": "AdamW"}, KeyError, "optimizer_params: AdamW needs weight_decay"),
        (
            {"optimizer": "Adam", "optimizer_params": {"beta_1": 0.9}},
            TypeError,
            "optimizer_params: Adam takes no 'beta_1'. Did you mean 'beta1'",
        ),
        (
            {"optimizer": NovoGrad, "optimizer_params": {"betas": 0.9}},
            TypeError,
            "optimizer_params: NovoGrad takes no 'betas'",
        ),
        (
            {"optimizer_params": {"learning_rate": 0.1}},
            TypeError,
            "optimizer_params: 'learning_rate' is not to be given",
        ),
        ({"optimizer_params": {1: 0.1}}, TypeError, "optimizer_params: keys must be strings"),
        (
            {"optimizer": "Adam", "optimizer_params": {"beta1": "0.9"}},
            TypeError,
            "optimizer_params: beta1 must be a number, .* not '0.9'",
        ),
        (
            {"optimizer": "Ftrl", "optimizer_params": {"learning_rate_power": 1.0}},
            ValueError,
            "optimizer_params: learning_rate_power 1.0.* negative or zero",
        ),
        ({"lr_policy_params": {}}, TypeError, "lr_policy_params: fixed_lr needs 'learning_rate'"),
        ({"lr_policy_params": {"learning_rate": "0.1"}}, TypeError, "learning_rate='0.1'"),
        ({"lr_policy_params": {"learning_rate": [0.1]}}, ValueError, r"shape \(\), not \(1,\)"),
        (policy("poly_decay", learning_rat=0.1), TypeError, "Did you mean 'learning_rate'"),
        (policy("poly_decay", learning_rate=1), TypeError, "lr_policy_params: learning_rate must"),
        (
            policy("poly_decay", **RATE, global_step=1),
            TypeError,
            "'global_step' is not to be given",
        ),
        (
            policy("poly_decay", **RATE, begin_decay_at="3"),
            TypeError,
            "begin_decay_at must be a nu",
        ),
        (policy("poly_decay", **RATE, min_lr="0.1"), TypeError, "min_lr='0.1'"),
        (policy("poly_decay", **RATE, warmup_steps=None), TypeError, "warmup_steps=None"),
        (policy("poly_decay", **RATE, decay_steps=None), TypeError, "decay_steps is None"),
        (policy("exp_decay", **RATE), TypeError, "needs 'decay_rate'. exp_decay needs 'use_stairc"),
        (
            policy("piecewise_constant", **RATE, boundaries=[], decay_rates=[]),
            IndexError,
            "lr_policy_params: boundaries is empty",
        ),
        (
            policy("piecewise_constant", **RATE, boundaries=[2], decay_rates=[]),
            ValueError,
            "lr_policy_params: ",
        ),
        (
            policy("inv_poly_decay", **RATE, min_lr=0.01, decay_steps=0),
            ZeroDivisionError,
            "lr_policy_params: ",
        ),
        ({"lr_policy": lambda step, learning_rate: 0.1}, TypeError, "takes no 'global_step'"),
        ({"lr_policy": lambda global_step: 0.1}, TypeError, "takes no 'learning_rate'"),
        ({"larc_params": {"eta": 0.1}}, ValueError, "larc_params: larc_eta parameter has to be"),
        ({"larc_params": {"larc_eta": 1}}, ValueError, "larc_params: larc_eta has to be of type"),
        (
            {"larc_params": {"larc_eta": 0.1, "mode": "clip"}},
            ValueError,
            "larc_params: Unknown parameter: mode",
        ),
        ({"larc_params": {"larc_eta": 0.1}, "max_grad_norm": 1.0}, AttributeError, "LARC"),
        ({"summaries": ["loss_scales"]}, ValueError, "summaries: .* Did you mean 'loss_scale'"),
        ({"loss_scaling": "back-off"}, ValueError, "loss_scaling: .* Did you mean 'backoff'"),
        (
            {"loss_scaling": "Backoff", "loss_scaling_params": {"beta1": 0.9}},
            ValueError,
            "loss_scaling_params: Unknown parameter: beta1",
        ),
        (
            {"loss_scaling": "LogMax", "loss_scaling_params": {"log_max": 8}},
            ValueError,
            "loss_scaling_params: log_max has to be of type float",
        ),
        ({"dtype": "mixed", "loss_scaling": -1.0}, ValueError, "loss_scaling: "),
        ({"max_grad_norm": -1.0}, ValueError, "max_grad_norm: .* 0 or more, not -1.0"),
        ({"dtype": "mixed", "loss_scaling": [1.0]}, TypeError, "loss_scaling: "),
        ({**L2, "regularizer_params": {"scle": 0.1}}, TypeError, "regularizer_params: .*scle"),
    ],
)
def test_config_mistakes_raise_on_reading(
    change: Config, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        from_config({**CONFIG, **change})


def test_as_shipped_non_float_scale_raises_on_reading() -> None:
    config = {**CONFIG, "dtype": "mixed", "loss_scaling": 512}
    assert from_config(config).params["loss_scaling"] == 512
    with pytest.raises(AttributeError, match=r"loss_scaling: .* no loss scale"):
        from_config(config, as_shipped=True)


@pytest.mark.parametrize(("as_shipped", "rate"), [(False, 0.1), (True, 0.05)])
def test_inverse_polynomial_policy_follows_a_warm_up(as_shipped: bool, rate: float) -> None:
    slope = policy("inv_poly_decay", **RATE, min_lr=0.01, warmup_steps=20, decay_steps=180)
    slope["lr_policy_params"]["begin_decay_at"] = 20
    train = from_config({**CONFIG, **slope}, as_shipped=as_shipped)
    assert train.learning_rate(20)().item() == pytest.approx(rate)


def other_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(**arguments: Any) -> Any:
        return function(arguments["global_step"], learning_rate=arguments["rate"])

    return call


@pytest.mark.parametrize(
    "change",
    [
        {"loss_scaling": [1.0]},  # means nothing unless the dtype is mixed
        {"loss_scaling_params": {"foo": 1}},  # nor does this with a static scale
        {"lr_policy": other_arguments(lr_policies.fixed_lr), "lr_policy_params": {"rate": 0.25}},
        {"lr_policy": lambda global_step, **options: 0.25},
        {"lr_policy_params": {"learning_rate": lambda: 0.25}},
        {"lr_policy_params": {"learning_rate": torch.tensor(0.25)}},
        {"lr_policy_params": {"learning_rate": 1}},
        policy("cosine_decay", learning_rate=0.25, power=None),
        policy("poly_decay", learning_rate=0.25, power="1"),
        policy("transformer_policy", learning_rate=1, d_model=8, warmup_steps=0, max_lr=None),
        {"optimizer": "Ftrl", "optimizer_params": {"beta": None}},
        {"optimizer": "Momentum", "optimizer_params": {"momentum": lambda: 0.9}},
        {"optimizer": lambda **kwargs: tf.train.GradientDescentOptimizer(**kwargs)},
        {"optimizer": functools.partial(tf.train.MomentumOptimizer, momentum=0.9)},
    ],
)
def test_valid_configs_are_accepted(change: Config) -> None:
    weights = Variable([1.0])
    step = from_config({**CONFIG, **change}).optimize(square(weights), [weights])
    step()
    step()
    assert np.isfinite(weights.item())


def test_user_policy_is_not_called_on_reading() -> None:
    calls: list[Any] = []

    def counting(global_step: Any, learning_rate: float) -> float:
        calls.append(global_step)
        return learning_rate

    from_config({**CONFIG, "lr_policy": counting})
    assert not calls


def test_reading_a_config_adds_nothing_to_a_graph() -> None:
    config = {**CONFIG, **policy("poly_decay", learning_rate=0.1), "loss_scaling": "Backoff"}
    with tf.Graph().as_default() as graph:
        from_config({**config, "optimizer": "AdamW", "optimizer_params": {"weight_decay": 0.1}})
        assert graph.get_operations() == []


@pytest.mark.parametrize(
    ("variables", "error", "message"),
    [
        ([], ValueError, "There are no variables to train"),
        ([torch.ones(1)], ValueError, "There are no variables to train"),
        ([1.0], TypeError, "among them is 1.0"),
        ([torch.nn.Parameter(torch.ones(3))], TypeError, r"of shape \(3,\), has none"),
    ],
)
def test_invalid_variables_raise(
    variables: list[Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        from_config({**CONFIG, "freeze_variables_regex": "a"}).optimize(square(), variables)


def test_the_loss_must_be_callable_in_eager_mode() -> None:
    with pytest.raises(TypeError, match="loss must be a callable that returns the loss"):
        from_config(CONFIG).optimize(torch.tensor(1.0), [Variable([1.0])])


def test_package_exports_its_documented_names() -> None:
    assert all(hasattr(openseq2seq, name) for name in openseq2seq.__all__)
