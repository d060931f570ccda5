"""Steps of `optimize_loss` whose gradients are given, processed in the update or before it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from thalweg import Variable
from thalweg.openseq2seq.optimizers import optimize_loss
from thalweg.openseq2seq.optimizers.name_tables import OPTIMIZER_CLS_NAMES
from thalweg.openseq2seq.optimizers.novograd import NovoGrad
from thalweg.v1.train import Optimizer

RULES: dict[str, Any] = {**{name: name for name in OPTIMIZER_CLS_NAMES}, "NovoGrad": NovoGrad}
PARAMS: dict[str, dict[str, Any]] = {
    "Momentum": {"momentum": 0.9},
    "AdamW": {"weight_decay": 0.1},
    "RMSProp": {"momentum": 0.5},
    "NovoGrad": {"weight_decay": 0.01},
}
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
SIZES = {"head": 17, "norm": 3}  # whole vectors and a tail; "norm" never has a master
LARGE = {"body": 70_001}  # more than one chunk of work

each_rule = pytest.mark.parametrize("rule", RULES)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
WAYS = ("in the update", "before it")
each_way = pytest.mark.parametrize("way", WAYS, indirect=True)


@pytest.fixture
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Require that gradients are processed in the update, or before it."""
    if request.param == "before it":
        process_before(monkeypatch)
    else:
        monkeypatch.setattr(Optimizer, "apply_gradients", not_to_be_called)
    return request.param


def not_to_be_called(*args: Any, **options: Any) -> Any:
    raise AssertionError("gradients were processed before the update")


def process_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pass processed gradients to all optimizers, as to those that override `apply_gradients`."""
    monkeypatch.setattr(Optimizer, "takes_transforms", lambda self: False)


class Training:
    """Variables whose gradients are the tensors of `gradients`, and the step that trains them.

    Args:
        rule: A name of `RULES`, or a class.
        kind: The dtype of all variables but "norm", which is float32.
        sizes: Their numbers of elements by name.
        options: More arguments of `optimize_loss`.
    """

    def __init__(
        self, rule: Any, kind: torch.dtype, sizes: dict[str, int] = SIZES, **options: Any
    ) -> None:
        self.generator = torch.Generator().manual_seed(7)
        self.own = {
            name: Variable(self._normal(size).to(torch.float32 if name == "norm" else kind), name)
            for name, size in sizes.items()
        }
        self.gradients = {name: self._normal(size) for name, size in sizes.items()}
        defaults: dict[str, Any] = {
            "learning_rate_decay_fn": lambda step: 0.01,
            "dtype": "mixed",
            "var_list": list(self.own.values()),
            "optimizer_params": dict(PARAMS.get(str(rule), {})),
        }
        self.step = optimize_loss(self.loss, RULES.get(rule, rule), **{**defaults, **options})

    def _normal(self, size: int) -> Tensor:
        return torch.randn(size, generator=self.generator)

    def loss(self) -> Any:
        return sum((var.float() * self.gradients[name]).sum() for name, var in self.own.items())

    def state(self) -> dict[str, Tensor]:
        """Copies of all that a step may change, the loss scaler apart."""
        scaler = self.step.loss_scaler
        masters = {
            f"master of {name}": self.step.optimizer.get_master(var)
            for name, var in self.own.items()
            if hasattr(self.step.optimizer, "get_master")
        }
        weights = {name: master for name, master in masters.items() if master is not None}
        variables = {variable.name: variable for variable in self.step.optimizer.variables()}
        sums = {} if self.step._accumulators is None else self._sums()
        state = {**self.own, **weights, **variables, **sums, "global step": self.step.global_step}
        state["learning rate"] = self.step.learning_rate
        assert scaler is None or not set(state) & set(scaler.variables)
        return {name: tensor.detach().clone() for name, tensor in state.items()}

    def _sums(self) -> dict[str, Tensor]:
        sums = {}
        for name, var in self.own.items():
            master = self.step.optimizer.get_master(var)
            total = self.step._accumulators.get(var if master is None else master)
            if total is not None:
                sums[f"sum of {name}"] = total
        return sums

    def scaler_state(self) -> dict[str, Tensor]:
        scaler = self.step.loss_scaler
        return {} if scaler is None else scaler.state_dict()


class Table(Training):
    """A table of which the loss reads the rows 3, 1, 3, 8 and 0, each times its factors."""

    def __init__(self, rule: str, dtype: torch.dtype, **options: Any) -> None:
        super().__init__(rule, dtype, {"table": 45}, **options, var_list=[])
        self.own = {"table": Variable(self._normal(45).reshape(9, 5).to(dtype), "table")}
        self.step._variables = list(self.own.values())
        self.factors = self._normal(25).reshape(5, 5)

    def loss(self) -> Any:
        rows = torch.tensor([3, 1, 3, 8, 0])
        embedded = torch.nn.functional.embedding(rows, self.own["table"], sparse=True)
        return (embedded.float() * self.factors).sum()


def differing_names(first: dict[str, Tensor], second: dict[str, Tensor]) -> list[str]:
    """Return the names of tensors with different bits."""
    assert first.keys() == second.keys()
    return [name for name in first if bits(first[name]) != bits(second[name])]


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()


def assert_near(got: dict[str, Tensor], expected: dict[str, Tensor], units: int = 2) -> None:
    """Fail unless all elements are within some units in the last place of their dtype."""
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        rtol = units * torch.finfo(value.dtype).eps if value.is_floating_point() else 0.0
        torch.testing.assert_close(
            got[name],
            value,
            rtol=rtol,
            atol=0.0,
            equal_nan=True,
            msg=lambda text, name=name: f"{name}: {text}",
        )
