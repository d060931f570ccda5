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
    """The problem's loss; variables are cast to float32 first."""
    wide = {name: var.float() for name, var in variables.items()}
    kind, problem = case["problem"]["type"], case["problem"]
    if kind == "mlp":
        hidden = torch.tanh(data["x"] @ wide["W1"] + wide["b1"])
        return (hidden @ wide["W2"] + wide["b2"] - data["y"]).square().mean()
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
    """The numbers of one step by the names that `loss_of` uses."""
    given = {**step.get("coef", {}), **{key: step[key] for key in ("x", "y") if key in step}}
    return {name: float32(value) for name, value in given.items()}


def initial(case: Case) -> dict[str, np.ndarray[Any, Any]]:
    return {var["name"]: float32(var["init"]).astype(var["dtype"]) for var in case["vars"]}


def arguments(case: Case, variables: dict[str, Any], as_shipped: bool) -> dict[str, Any]:
    """Those of `optimize_loss` that eager mode and graphs have in common."""
    config = case["config"]
    name, rate = config["optimizer"], config["lr_policy"]
    chosen = config.get("var_list", list(variables))
    return {
        "optimizer": NovoGrad if name in ("NovoGrad", NOT_SHIPPED) else name,
        "optimizer_params": dict(config.get("optimizer_params", {})),
        "learning_rate_decay_fn": lambda step: getattr(lr_policies, rate["name"])(
            step, **rate["params"]
        ),
        "var_list": [variables[each] for each in chosen],
        "dtype": config["dtype"],
        "iter_size": config.get("iter_size", 1),
        "summaries": SUMMARIES,
        "as_shipped": as_shipped,
        **{key: config[key] for key in CONFIG if key in config},
    }


def penalties(case: Case, variables: dict[str, Any]) -> list[Any]:
    """What the regularizers of the case return for their variables."""
    given = case["config"].get("l2_regularizer")
    if given is None:
        return []

    def l2(weights: Any) -> Any:
        return given["scale"] * (weights * weights).sum() / 2

    wrapped = mp_wrapper.mp_regularizer_wrapper(l2)
    return [each for name in given["vars"] if (each := wrapped(variables[name])) is not None]


class Peers:
    """Stands for a collective operation: the mean with recorded gradients of other workers."""

    def __init__(self) -> None:
        self._left: list[list[np.ndarray[Any, Any]]] = []

    def expect(self, step: dict[str, Any], names: list[str]) -> None:
        self._left = [[float32(peer[name]) for peer in step.get("peers", [])] for name in names]

    def __call__(self, grad: torch.Tensor) -> torch.Tensor:
        others = [torch.from_numpy(each) for each in self._left.pop(0)]
        return sum(others, grad) / (1 + len(others))


def trained_eagerly(case: Case, as_shipped: bool) -> Iterator[Observed]:
    """What there is after each step."""
    own = {name: Variable(value, name=name) for name, value in initial(case).items()}
    data: dict[str, Any] = {}
    skip, peers, writer = [False], Peers(), Writer()

    def loss() -> Any:
        return loss_of(case, own, data) + sum(penalties(case, own))

    step = optimize_loss(
        loss,
        **arguments(case, own, as_shipped),
        skip_update_ph=lambda: skip[0],
        all_reduce=peers if case["config"].get("world_size", 1) > 1 else None,
        summary_writer=writer,
    )
    for recorded in case["steps"]:
        data.update({name: torch.from_numpy(x) for name, x in data_of(recorded).items()})
        skip[0] = recorded.get("skip_update", False)
        peers.expect(recorded, list(own))
        writer.scalars.clear()
        value = step()
        seen = {"loss": value, "global_step": step.global_step, "vars": own}
        if case["config"]["dtype"] == "mixed":
            masters = {name: step.optimizer.get_master(var) for name, var in own.items()}
            seen["master"] = {name: each for name, each in masters.items() if each is not None}
        if case["config"].get("iter_size", 1) > 1:
            targets = seen.get("master", own)
            sums = step._accumulators
            seen["accum"] = {name: sums.get(targets.get(name, own[name])) for name in own}
        if step.loss_scaler is not None:
            seen["loss_scale"] = step.loss_scaler.loss_scale
        yield {**arrays(seen), **told(writer, own), "applied": step.was_applied}


def trained_in_a_session(case: Case, as_shipped: bool) -> Iterator[Observed]:
    """What there is after each step."""
    config = case["config"]
    with _graph.Graph().as_default(), _graph.Session() as session:
        own = {name: _graph.Variable(value, name=name) for name, value in initial(case).items()}
        feeds = {
            name: _graph.placeholder(torch.float32, value.shape)
            for name, value in data_of(case["steps"][0]).items()
        }
        for penalty in penalties(case, own):
            _graph.add_to_collection(_graph.GraphKeys.REGULARIZATION_LOSSES, penalty)
        loss = loss_of(case, own, feeds) + get_regularization_loss()
        skip, peers, writer = _graph.placeholder(torch.bool, ()), Peers(), Writer()
        step = optimize_loss(
            loss,
            **arguments(case, own, as_shipped),
            skip_update_ph=skip,
            all_reduce=peers if config.get("world_size", 1) > 1 else None,
            summary_writer=writer,
        )
        shown: dict[str, Any] = {"vars": own, "global_step": named("global_step")}
        masters = _graph.get_collection("FP32_MASTER_COPIES")
        if config["dtype"] == "mixed":
            shown["master"] = {each.op.name.split("/")[-1]: each for each in masters}
        if config.get("iter_size", 1) > 1:
            shown["accum"] = {
                each.op.name.split("/")[-2]: each
                for each in _graph.global_variables()
                if each.op.name.endswith("/gradient_sum")
            }
        if config["dtype"] == "mixed" and isinstance(config.get("loss_scaling"), str):
            shown["loss_scale"] = named("Scaler/scale")
        session.run(_graph.global_variables_initializer())
        for recorded in case["steps"]:
            feed = {feeds[name]: value for name, value in data_of(recorded).items()}
            feed[skip] = recorded.get("skip_update", False)
            peers.expect(recorded, list(own))
            writer.scalars.clear()
            before = session.run(shown["global_step"])
            value = session.run(step, feed)
            seen = {"loss": value, **session.run(shown)}
            yield {**seen, **told(writer, own), "applied": seen["global_step"] > before}


def named(ending: str) -> Any:
    (found,) = [x for x in _graph.global_variables() if x.op.name.endswith(ending)]
    return found


def told(writer: Writer, own: dict[str, Any]) -> Observed:
    """What the summaries of a step say, by the names of the recordings."""
    scope = "Loss_Optimization/"
    found: Observed = {"lr": writer.scalars["learning_rate"]}
    norm = writer.scalars.get(f"{scope}global_gradient_norm")
    if norm is not None:
        found["global_gradient_norm"] = norm
    master = f"{scope}larc_grad_update/{scope}FP32-master-copy/"
    factors = {
        name: writer.scalars.get(
            f"{master}{name}_0", writer.scalars.get(f"{scope}larc_grad_update/{name}_0")
        )
        for name in own
    }
    if any(each is not None for each in factors.values()):
        found["larc_factor"] = factors
    return found


def arrays(seen: Any) -> Any:
    if isinstance(seen, dict):
        return {key: arrays(value) for key, value in seen.items()}
    return seen.detach().numpy().copy() if isinstance(seen, torch.Tensor) else seen


def assert_recorded(seen: Observed, recorded: Observed, tol: dict[str, float], where: str) -> None:
    """Fail unless all that was recorded was seen, within the case's tolerance."""
    for key, wanted in recorded.items():
        assert key in seen, f"{where}: no {key}"
        if key == "applied":
            assert seen[key] == wanted, f"{where}: applied"
            continue
        parts = wanted if isinstance(wanted, dict) else {"": wanted}
        got = seen[key] if isinstance(wanted, dict) else {"": seen[key]}
        rtol = tol.get("scale_rtol", tol["rtol"]) if key == "loss_scale" else tol["rtol"]
        for name, value in parts.items():
            np.testing.assert_allclose(
                np.asarray(got[name], np.float64),
                float32(value).astype(np.float64),
                rtol=rtol,
                atol=tol["atol"],
                err_msg=f"{where}: {key} {name}",
            )
