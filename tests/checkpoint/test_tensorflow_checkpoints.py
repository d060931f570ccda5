"""Checkpoints of TensorFlow are read to the bit, and training continues with its numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from golden_files import FOLDER
from replay import distances
from tensorflow_files import (
    RULES,
    SUFFIX,
    TRAINED,
    Network,
    arrays_of,
    counter,
    fresh,
    held,
    prefix_of,
    recorded,
    values_of,
)
from thalweg.checkpoint import tensorflow
from thalweg.checkpoint.tensorflow.detection.saver_names import sorted_names
from thalweg.openseq2seq import from_config
from thalweg.openseq2seq.optimizers.lr_policies import fixed_lr
from thalweg.openseq2seq.optimizers.novograd import NovoGrad
from thalweg.openseq2seq.optimizers.optimizers import optimize_loss
from thalweg.v1.train import Optimizer as V1Optimizer

TENSORFLOW_CASES = [name for name in recorded() if not name.startswith("openseq2seq/")]
MIXED = [name for name in recorded() if name.startswith("openseq2seq/")]
# Of those whose kernels multiply by the processor's own reciprocal root; see docs/numbers.md.
BOUNDS = {"saver/adagrad": 1e-6, "saver/adadelta": 1e-6}


@pytest.mark.parametrize("name", TRAINED)
def test_every_tensor_is_read_to_the_bit(name: str) -> None:
    file = tensorflow.load(prefix_of(name))
    values = values_of(name)
    keys = {key.removeprefix("value|"): key for key in values if key.startswith("value|")}
    expected = {key.removesuffix(SUFFIX): values[full] for key, full in keys.items()}
    actual = held(file)
    if file.optimizers[0].face == "keras":
        assert actual.keys() - expected.keys() <= {"optimizer/amsgrad", "optimizer/centered"}
    else:
        extra = actual.keys() - expected.keys()
        assert not extra
    assert not file.unknown
    for key, value in expected.items():
        assert actual[key].dtype == value.dtype
        assert actual[key].shape == value.shape
        assert actual[key].tobytes() == value.tobytes(), key
    assert file.step == 5


@pytest.mark.parametrize("name", TRAINED)
def test_five_more_steps_have_the_values_of_tensorflow(name: str) -> None:
    model, steps, values = Network(), counter(), values_of(name)
    weights = list(model.parameters())
    opt = tensorflow.restore(prefix_of(name), model, RULES, global_step=steps, **TRAINED[name])
    x, y = torch.from_numpy(values["x"]), torch.from_numpy(values["y"])
    losses = []
    for number in range(5, 10):

        def loss(number: int = number) -> torch.Tensor:
            return (model(x[number]) - y[number]).square().mean()

        losses.append(loss().item())
        if isinstance(opt, V1Optimizer):
            opt.minimize(loss, var_list=weights, global_step=steps)
        else:
            opt.minimize(loss, weights)
    np.testing.assert_allclose(losses, values["losses"][5:], rtol=1e-5)
    for title, param in model.named_parameters():
        layer, part = title.split(".")
        kernel = "kernel" if part == "weight" else "bias"
        names = (layer, f"model/layer_with_weights-{int(layer[-1]) - 1}")
        keys = [f"after10|{stem}/{kernel}" for stem in names]
        arrays = [values[key] for full in keys for key in (full, full + SUFFIX) if key in values]
        expected = arrays[0].T if part == "weight" else arrays[0]
        np.testing.assert_allclose(param.detach().numpy(), expected, rtol=1e-5, atol=1e-6)
    if isinstance(opt, V1Optimizer):
        assert steps.item() == 10
    else:
        assert opt.iterations.item() == 10


def _restored(case: dict[str, Any], prefix: str) -> tuple[Any, dict[str, Any], Any]:
    """Return the optimizer of a case, its variables, and the count of steps."""
    shapes = {name: grad.shape[1:] for name, grad in arrays_of(case["id"], "gradient").items()}
    params, steps = fresh({name: shapes[name] for name in case["variables"]}), counter()
    file = tensorflow.load(prefix)
    return tensorflow.restore(file, params, global_step=steps, **case["arguments"]), params, steps


def _by_object_names(arrays: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    """Return recorded values by the names of variables, for any kind of checkpoint."""
    by_name: dict[str, Any] = {}
    for key, value in arrays.items():
        name = key.removesuffix(SUFFIX)
        for layer in ("1", "2"):
            name = name.replace(f"model/layer_with_weights-{int(layer) - 1}", f"layer{layer}")
        by_name[name] = value
    assert params.keys() <= by_name.keys()
    return by_name


@pytest.mark.parametrize("case_id", TENSORFLOW_CASES)
def test_recorded_gradients_give_the_bits_of_tensorflow(case_id: str) -> None:
    case = recorded()[case_id]
    grads = arrays_of(case_id, "gradient")
    prefix = FOLDER / "checkpoints_with_gradients" / case["prefix"]
    opt, params, steps = _restored(case, str(prefix))
    for number in range(5):
        pairs = [(torch.from_numpy(grads[name][number].copy()), params[name]) for name in params]
        step_kwargs = {"global_step": steps} if case_id.startswith("saver/") else {}
        opt.apply_gradients(pairs, **step_kwargs)
    expected = _by_object_names(arrays_of(case_id, "value_after"), params)
    bound = BOUNDS.get(case_id)
    for name, var in params.items():
        if bound is None:
            assert distances(var.numpy(), expected[name]).max() == 0, name
        else:
            np.testing.assert_allclose(var.numpy(), expected[name], rtol=bound, atol=1e-7)
    for name, var in params.items():
        for kind in opt.get_slot_names():
            keys = [key for key in expected if _is_slot(key, name, kind, case)]
            assert len(keys) == 1
            slot = opt.get_slot(var, kind).numpy()
            if bound is None:
                assert distances(slot, expected[keys[0]]).max() == 0, keys[0]
            else:
                np.testing.assert_allclose(slot, expected[keys[0]], rtol=bound, atol=1e-7)


def _is_slot(key: str, name: str, kind: str, case: dict[str, Any]) -> bool:
    if "slots" in case:
        return case["slots"].get(key) == [name, kind]
    return key == f"{name}/.OPTIMIZER_SLOT/optimizer/{kind}"


def _training(case: dict[str, Any], weights: dict[str, Any], factors: dict[str, Any]) -> Any:
    """Return a training step as OpenSeq2Seq built it."""
    params = {key: arg for key, arg in case["arguments"].items() if key != "learning_rate"}
    kind: Any = case["optimizer"]
    if kind == "NovoGrad":
        kind = NovoGrad

    def loss() -> torch.Tensor:
        parts = [(factors[name] * var.float()).sum() for name, var in weights.items()]
        return torch.stack(parts).sum()

    return optimize_loss(
        loss,
        kind,
        params,
        lambda step: case["arguments"]["learning_rate"],
        var_list=list(weights.values()),
        dtype="mixed",
        loss_scaling=case["scaler"],
        loss_scaling_params=case["scaler_params"],
        as_shipped=True,
    )


@pytest.mark.parametrize("case_id", MIXED)
def test_openseq2seq_training_resumes(case_id: str) -> None:
    case = recorded()[case_id]
    value, final = arrays_of(case_id, "value"), arrays_of(case_id, "value_after")
    gradients = arrays_of(case_id, "gradient")
    weights = {
        name: thalweg.Variable(torch.zeros(value[name].shape, dtype=kind), name)
        for name in gradients
        for kind in [torch.float16 if value[name].dtype == np.float16 else torch.float32]
    }
    factors: dict[str, Any] = {}
    step = _training(case, weights, factors)
    prefix = FOLDER / "checkpoints_with_gradients" / case["prefix"]
    assert tensorflow.restore(prefix, weights, optimizer=step) is step
    assert step.global_step.item() == value["global_step"]
    _compare(step, weights, case, value, 0)
    flags = []
    for number in range(5):
        factors |= {name: torch.from_numpy(grad[number].copy()) for name, grad in gradients.items()}
        step()
        flags.append(step.was_applied)
    assert flags == [5 + number not in case["overflows"] for number in range(5)]
    assert step.global_step.item() == final["global_step"]
    _compare(step, weights, case, final, 1 if case["optimizer"] == "NovoGrad" else 0)


def _compare(
    step: Any, weights: dict[str, Any], case: dict[str, Any], values: Any, ulps: int
) -> None:
    """Compare variables, masters, slots, powers and the scale with those of the checkpoint."""
    for name, var in weights.items():
        assert distances(var.numpy(), values[name]).max() <= ulps
    masters = {role[1]: name for name, role in case["roles"].items() if role[0] == "master"}
    for name, full in masters.items():
        master = step.optimizer.get_master(weights[name])
        assert distances(master.numpy(), values[full]).max() <= ulps
    for full, role in case["roles"].items():
        if role[0] == "slot":
            name = role[1].partition("FP32-master-copy/")[2] or role[1]
            slot = step.optimizer.get_slot(weights[name], role[2])
            assert distances(slot.numpy(), values[full]).max() <= ulps
        if role[0] == "power":
            power = step.optimizer.optimizer._get_non_slot_variable(role[1])
            assert power.numpy() == values[full]
        if role[0] == "scaler" and role[1] != "last_overflow_iteration":
            array = step.loss_scaler.variables[role[1]].numpy()
            if case["scaler"] == "Backoff":
                assert array == values[full]
            else:
                np.testing.assert_allclose(array, values[full], rtol=2e-5)


def test_masters_without_a_step_give_an_optimizer_of_masters() -> None:
    case = recorded()["openseq2seq/momentum_backoff"]
    value = arrays_of(case["id"], "value")
    params = {
        name: thalweg.Variable(torch.from_numpy(value[name].copy()) * 0, name)
        for name in arrays_of(case["id"], "gradient")
    }
    prefix = FOLDER / "checkpoints_with_gradients" / case["prefix"]
    opt = tensorflow.restore(
        prefix, params, learning_rate=0.125, momentum=0.9, loss_scaling_params=case["scaler_params"]
    )
    assert type(opt).__name__ == "MixedPrecisionOptimizerWrapper"
    for name, full in [(n[1], key) for key, n in case["roles"].items() if n[0] == "master"]:
        assert np.array_equal(opt.get_master(params[name]).numpy(), value[full])
    assert opt.loss_scale.item() == value["Loss_Optimization/Variable_2"]


def _momentum() -> tuple[dict[str, Any], Any, dict[str, Any]]:
    """Return the case of momentum, its checkpoint, and its variables."""
    case = recorded()["openseq2seq/momentum_backoff"]
    value = arrays_of(case["id"], "value")
    weights = {
        name: thalweg.Variable(torch.from_numpy(value[name].copy()) * 0, name)
        for name in arrays_of(case["id"], "gradient")
    }
    return case, FOLDER / "checkpoints_with_gradients" / case["prefix"], weights


def test_masters_need_a_loss_scale() -> None:
    _, prefix, weights = _momentum()
    file = tensorflow.load(prefix)
    assert file.mixed is not None
    fixed = replace(file, mixed=replace(file.mixed, scaler="", scale={}))
    with pytest.raises(thalweg.errors.OptionError, match=r"give restore.*loss_scale="):
        tensorflow.restore(fixed, weights, learning_rate=0.1, momentum=0.9)
    opt = tensorflow.restore(fixed, weights, learning_rate=0.1, momentum=0.9, loss_scale=64.0)
    assert opt.loss_scale == 64.0


def test_step_without_variables_raises() -> None:
    case, prefix, weights = _momentum()
    step = _training(case, weights, {})
    step._variables = None
    with pytest.raises(thalweg.FailedPreconditionError, match="Give var_list to optimize_loss"):
        tensorflow.restore(prefix, weights, optimizer=step)
    assert not any(var.detach().any() for var in weights.values())


def test_micro_batch_count_restarts_after_restore() -> None:
    case, prefix, params = _momentum()
    config = {
        "optimizer": "Momentum",
        "optimizer_params": {"momentum": 0.9},
        "lr_policy": fixed_lr,
        "lr_policy_params": {"learning_rate": 0.125},
        "dtype": "mixed",
        "loss_scaling": "Backoff",
        "loss_scaling_params": case["scaler_params"],
        "iter_size": 2,
        "max_steps": 10,
    }
    gain = {name: torch.ones(var.shape) for name, var in params.items()}

    def loss() -> torch.Tensor:
        return torch.stack([(gain[name] * var.float()).sum() for name, var in params.items()]).sum()

    step = from_config(config).optimize(loss, list(params.values()))
    assert tensorflow.restore(prefix, params, optimizer=step) is step
    step()
    assert (step.was_applied, step.global_step.item()) == (False, 4)
    step()
    assert (step.was_applied, step.global_step.item()) == (True, 5)


def test_novograd_needs_an_average_for_each_variable() -> None:
    case = recorded()["openseq2seq/novograd_backoff"]
    _, _, weights = _momentum()
    file = tensorflow.load(FOLDER / "checkpoints_with_gradients" / case["prefix"])
    subset = {name: tensor for name, tensor in file.source.items() if not name.endswith("ema1")}
    short = sorted_names(file.path, subset)
    with pytest.raises(thalweg.CheckpointMismatchError, match=r"2 averages .* for 3 variables"):
        tensorflow.restore(short, weights, optimizer=_training(case, weights, {}))
