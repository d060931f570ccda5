"""Recorded trainings of OpenSeq2Seq, taken again eagerly or in a session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from golden_files import Case
from openseq2seq_goldens import float32
from thalweg import Variable, _graph
from thalweg.openseq2seq.optimizers import (
    get_regularization_loss,
    lr_policies,
    mp_wrapper,
    optimize_loss,
)
from thalweg.openseq2seq.optimizers.novograd import NovoGrad

Observed = dict[str, Any]

NOT_SHIPPED = "NovoGrad_documented"
CONFIG = ("clip_gradients", "larc_params", "loss_scaling", "loss_scaling_params", "on_horovod")
SUMMARIES = ["learning_rate", "global_gradient_norm", "larc_summaries", "loss_scale"]


class Writer:
    """A writer of summaries that remembers them."""

    def __init__(self) -> None:
        self.scalars: dict[str, float] = {}
        self.histograms: dict[str, torch.Tensor] = {}
        self.steps: list[int] = []

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.scalars[tag] = value
        self.steps.append(step)

    def add_histogram(self, tag: str, values: torch.Tensor, step: int) -> None:
        self.histograms[tag] = values


def loss_of(case: Case, variables: dict[str, Any], data: dict[str, Any]) -> Any:
    """Return the problem's loss; variables are cast to float32 first."""
    wide = {name: var.float() for name, var in variables.items()}
    kind, problem = case["problem"]["type"], case["problem"]
    if kind == "mlp":
        activation = torch.tanh(data["x"] @ wide["W1"] + wide["b1"])
        return (activation @ wide["W2"] + wide["b2"] - data["y"]).square().mean()
    if kind == "linear":
        return sum((data[name] * var).sum() for name, var in wide.items())
    terms = {
        name: [torch.from_numpy(float32(problem["terms"][name][key])) for key in ("a", "t")]
        for name in wide
    }
    return sum(
        0.5 * (terms[name][0] * (var - terms[name][1]).square()).sum() for name, var in wide.items()
    )


def data_of(step: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Return the numbers of one step by the names that `loss_of` uses."""
    arrays = {**step.get("coef", {}), **{key: step[key] for key in ("x", "y") if key in step}}
    return {name: float32(value) for name, value in arrays.items()}


def initial(case: Case) -> dict[str, np.ndarray[Any, Any]]:
    return {var["name"]: float32(var["init"]).astype(var["dtype"]) for var in case["vars"]}


def arguments(case: Case, variables: dict[str, Any], as_shipped: bool) -> dict[str, Any]:
    """Return the arguments of `optimize_loss` that eager mode and graphs have in common."""
    config = case["config"]
    name, rate = config["optimizer"], config["lr_policy"]
    names = config.get("var_list", list(variables))
    return {
        "optimizer": NovoGrad if name in ("NovoGrad", NOT_SHIPPED) else name,
        "optimizer_params": dict(config.get("optimizer_params", {})),
        "learning_rate_decay_fn": lambda step: getattr(lr_policies, rate["name"])(
            step, **rate["params"]
        ),
        "var_list": [variables[name] for name in names],
        "dtype": config["dtype"],
        "iter_size": config.get("iter_size", 1),
        "summaries": SUMMARIES,
        "as_shipped": as_shipped,
        **{key: config[key] for key in CONFIG if key in config},
    }


def penalties(case: Case, variables: dict[str, Any]) -> list[Any]:
    """Return the penalties of the case's regularizers."""
    options = case["config"].get("l2_regularizer")
    if options is None:
        return []

    def l2(weights: Any) -> Any:
        return options["scale"] * (weights * weights).sum() / 2

    wrapped = mp_wrapper.mp_regularizer_wrapper(l2)
    return [term for name in options["vars"] if (term := wrapped(variables[name])) is not None]


class Peers:
    """Stands for a collective operation: the mean with recorded gradients of other workers."""

    def __init__(self) -> None:
        self._peers: list[list[np.ndarray[Any, Any]]] = []

    def expect(self, step: dict[str, Any], names: list[str]) -> None:
        self._peers = [[float32(peer[name]) for peer in step.get("peers", [])] for name in names]

    def __call__(self, grad: torch.Tensor) -> torch.Tensor:
        peer_grads = [torch.from_numpy(array) for array in self._peers.pop(0)]
        return sum(peer_grads, grad) / (1 + len(peer_grads))


def trained_eagerly(case: Case, as_shipped: bool) -> Iterator[Observed]:
    """Yield the observed values after each step."""
    params = {name: Variable(value, name=name) for name, value in initial(case).items()}
    data: dict[str, Any] = {}
    skip, peers, writer = [False], Peers(), Writer()

    def loss() -> Any:
        return loss_of(case, params, data) + sum(penalties(case, params))

    step = optimize_loss(
        loss,
        **arguments(case, params, as_shipped),
        skip_update_ph=lambda: skip[0],
        all_reduce=peers if case["config"].get("world_size", 1) > 1 else None,
        summary_writer=writer,
    )
    for step_record in case["steps"]:
        data.update({name: torch.from_numpy(x) for name, x in data_of(step_record).items()})
        skip[0] = step_record.get("skip_update", False)
        peers.expect(step_record, list(params))
        writer.scalars.clear()
        value = step()
        row = {"loss": value, "global_step": step.global_step, "vars": params}
        if case["config"]["dtype"] == "mixed":
            masters = {name: step.optimizer.get_master(var) for name, var in params.items()}
            row["master"] = {name: var for name, var in masters.items() if var is not None}
        if case["config"].get("iter_size", 1) > 1:
            targets = row.get("master", params)
            sums = step._accumulators
            row["accum"] = {name: sums.get(targets.get(name, params[name])) for name in params}
        if step.loss_scaler is not None:
            row["loss_scale"] = step.loss_scaler.loss_scale
        yield {**arrays(row), **told(writer, params), "applied": step.was_applied}


def trained_in_a_session(case: Case, as_shipped: bool) -> Iterator[Observed]:
    """Yield the observed values after each step."""
    config = case["config"]
    with _graph.Graph().as_default(), _graph.Session() as session:
        params = {name: _graph.Variable(value, name=name) for name, value in initial(case).items()}
        feeds = {
            name: _graph.placeholder(torch.float32, value.shape)
            for name, value in data_of(case["steps"][0]).items()
        }
        for penalty in penalties(case, params):
            _graph.add_to_collection(_graph.GraphKeys.REGULARIZATION_LOSSES, penalty)
        loss = loss_of(case, params, feeds) + get_regularization_loss()
        skip, peers, writer = _graph.placeholder(torch.bool, ()), Peers(), Writer()
        step = optimize_loss(
            loss,
            **arguments(case, params, as_shipped),
            skip_update_ph=skip,
            all_reduce=peers if config.get("world_size", 1) > 1 else None,
            summary_writer=writer,
        )
        tensors: dict[str, Any] = {"vars": params, "global_step": named("global_step")}
        masters = _graph.get_collection("FP32_MASTER_COPIES")
        if config["dtype"] == "mixed":
            tensors["master"] = {var.op.name.split("/")[-1]: var for var in masters}
        if config.get("iter_size", 1) > 1:
            tensors["accum"] = {
                var.op.name.split("/")[-2]: var
                for var in _graph.global_variables()
                if var.op.name.endswith("/gradient_sum")
            }
        if config["dtype"] == "mixed" and isinstance(config.get("loss_scaling"), str):
            tensors["loss_scale"] = named("Scaler/scale")
        session.run(_graph.global_variables_initializer())
        for step_record in case["steps"]:
            feed = {feeds[name]: value for name, value in data_of(step_record).items()}
            feed[skip] = step_record.get("skip_update", False)
            peers.expect(step_record, list(params))
            writer.scalars.clear()
            start = session.run(tensors["global_step"])
            value = session.run(step, feed)
            row = {"loss": value, **session.run(tensors)}
            yield {**row, **told(writer, params), "applied": row["global_step"] > start}


def named(ending: str) -> Any:
    (variable,) = [x for x in _graph.global_variables() if x.op.name.endswith(ending)]
    return variable


def told(writer: Writer, params: dict[str, Any]) -> Observed:
    """Return the summaries of a step by the names of the recordings."""
    scope = "Loss_Optimization/"
    observed: Observed = {"lr": writer.scalars["learning_rate"]}
    norm = writer.scalars.get(f"{scope}global_gradient_norm")
    if norm is not None:
        observed["global_gradient_norm"] = norm
    master = f"{scope}larc_grad_update/{scope}FP32-master-copy/"
    factors = {
        name: writer.scalars.get(
            f"{master}{name}_0", writer.scalars.get(f"{scope}larc_grad_update/{name}_0")
        )
        for name in params
    }
    if any(factor is not None for factor in factors.values()):
        observed["larc_factor"] = factors
    return observed


def arrays(row: Any) -> Any:
    if isinstance(row, dict):
        return {key: arrays(value) for key, value in row.items()}
    return row.detach().numpy().copy() if isinstance(row, torch.Tensor) else row


def assert_recorded(row: Observed, golden: Observed, tol: dict[str, float], label: str) -> None:
    """Fail unless all that was recorded was seen, within the case's tolerance."""
    for key, expected in golden.items():
        assert key in row, f"{label}: no {key}"
        if key == "applied":
            assert row[key] == expected, f"{label}: applied"
            continue
        parts = expected if isinstance(expected, dict) else {"": expected}
        got = row[key] if isinstance(expected, dict) else {"": row[key]}
        rtol = tol.get("scale_rtol", tol["rtol"]) if key == "loss_scale" else tol["rtol"]
        for name, value in parts.items():
            np.testing.assert_allclose(
                np.asarray(got[name], np.float64),
                float32(value).astype(np.float64),
                rtol=rtol,
                atol=tol["atol"],
                err_msg=f"{label}: {key} {name}",
            )
