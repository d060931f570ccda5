"""`optim.memory`: the bytes of a training before its first step, beside those of a real one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from thalweg import engine, optim
from thalweg.errors import InvalidArgumentError, InvalidTypeError, RuleError
from thalweg.optim import tensorflow
from thalweg.optim.class_lookup import class_named
from thalweg.optim.diagnostics import Spikes
from thalweg.optim.rule_names import KINDS

FLOAT, BFLOAT = torch.float32, torch.bfloat16
OPTIONS: list[tuple[torch.dtype, dict[str, Any]]] = [
    (FLOAT, {}),
    (FLOAT, {"ema_decay": 0.9, "state_dtype": BFLOAT}),
    (BFLOAT, {}),
    (BFLOAT, {"masters": True, "accumulate": 2}),
    (BFLOAT, {"weights": "split", "state_storage": "8bit"}),
]


def params_of(dtype: torch.dtype, device: str) -> list[nn.Parameter]:
    """Return a matrix whose slots are encoded, and one whose slots are not."""
    shapes = ((80, 64), (16, 32))
    return [nn.Parameter(torch.ones(shape, dtype=dtype, device=device)) for shape in shapes]


def held(optimizer: Any) -> Counter[tuple[str, torch.dtype]]:
    """Return the bytes of the tensors in the state of an optimizer, by key and dtype."""
    sizes: Counter[tuple[str, torch.dtype]] = Counter()
    for state in optimizer.state.values():
        for name, entry in state.items():
            if isinstance(entry, torch.Tensor):
                sizes[name, entry.dtype] += entry.nbytes
    return sizes


def predicted(use: optim.MemoryUse) -> Counter[tuple[str, torch.dtype]]:
    return Counter(
        {(row.name, row.dtype): row.nbytes for row in use.rows if row.name not in WHOLE_ROWS}
    )


WHOLE_ROWS = ("weights", "gradients", "gradient_sum")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", KINDS)
def test_the_state_after_a_step_has_the_predicted_bytes(name: str) -> None:
    kind = class_named(name)
    for dtype, options in OPTIONS:
        params = params_of(dtype, "cpu")
        try:
            optimizer = kind(params, **options)
        except (ValueError, TypeError, NotImplementedError, RuleError) as error:
            with pytest.raises(type(error)):
                optim.memory(params_of(dtype, "meta"), name, **options)
            continue
        with engine("reference"):
            for _ in range(options.get("accumulate", 1)):
                for param in params:
                    grad = torch.full_like(param, 0.5)
                    param.grad = grad.to_sparse(1) if name == "SparseAdam" else grad
                optimizer.step()
        use = optim.memory(params_of(dtype, "meta"), kind, **options)
        assert predicted(use) == held(optimizer), options
        assert predicted(optim.memory(optimizer)) == held(optimizer), options
        assert use["weights"] == use["gradients"] == sum(param.nbytes for param in params)
        assert use["gradient_sum"] == 2 * use["weights"] * ("accumulate" in options)


def test_groups_and_rules_have_the_predicted_bytes() -> None:
    model = nn.Sequential(nn.Embedding(96, 64), nn.Linear(64, 96), nn.Linear(96, 96))
    tokens = torch.zeros(2, 3, dtype=torch.long)
    model[0].weight.requires_grad_(False)
    optimizers = [
        optim.Muon.for_model(model, inputs=tokens, state_storage="8bit"),
        tensorflow.Adam(model.parameters(), ema_decay=0.9),
        optim.AdamW(optim.groups(model, decay=0.1, no_decay="bias"), gradients="flat"),
    ]
    for optimizer in optimizers:
        use = optim.memory(optimizer)
        model(tokens).sum().backward()
        optimizer.step()
        assert use["weights"] == sum(param.nbytes for param in optimizer_params(optimizer))
        assert predicted(use) == held(optimizer)
        optimizer.zero_grad()
    use = optim.memory(model, tensorflow.Adam)
    assert use["weights"] - use["gradients"] == model[0].weight.nbytes


def optimizer_params(optimizer: Any) -> list[nn.Parameter]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def test_an_offloaded_state_is_on_the_cpu_beside_copies() -> None:
    params = params_of(BFLOAT, "meta")
    use = optim.memory(params, "AdamW", state_device="cpu", masters=True)
    size = use.parameters
    assert use.on("meta") == 4 * size
    assert use.on("cpu") == (4 + 12) * size + 8
    assert use.per_parameter == use.total / size
    assert str(use).splitlines()[0] == f"{use.title}: {size:,} parameters"
    host_use = optim.memory(params_of(BFLOAT, "cpu"), "AdamW", state_device="cpu")
    assert host_use["weights"] == 2 * size


def test_copies_of_a_rollback_are_counted() -> None:
    params, options = params_of(BFLOAT, "cpu"), {"masters": True, "accumulate": 2}
    spikes = Spikes("rollback", keep=3)
    optimizer = optim.AdamW(params, spikes=spikes, **options)
    for _ in range(12):
        for param in params:
            param.grad = torch.ones_like(param)
        optimizer.step()
    assert spikes.judge is not None
    copies = [restore.args for _, restore in spikes.judge._copies]
    tensors = [copy for params, _ in copies for _, copy in params]
    tensors += [
        entry for _, states in copies for _, entries in states for entry in entries.values()
    ]
    use = optim.memory(optimizer)
    assert use["copies"] == sum(tensor.nbytes for tensor in tensors) > 0
    assert (
        use["copies"]
        == optim.memory(params, "AdamW", spikes=Spikes("rollback"), **options)["copies"]
    )
    assert optim.memory(params, "AdamW", spikes=Spikes("skip"))["copies"] == 0


def test_a_trillion_parameters_take_no_memory() -> None:
    param = nn.Parameter(torch.empty(10**6, 10**6, dtype=BFLOAT, device="meta"))
    use = optim.memory([param], "AdamW", weights="split", state_storage="8bit")
    assert round(use.per_parameter, 6) == 7.25
    assert optim.memory([param], "SOAP", state_dtype=FLOAT).total > 10**13


@pytest.mark.parametrize(
    ("arguments", "options", "error", "match"),
    [
        (([],), {}, InvalidTypeError, "rule must be a class"),
        ((nn.Linear(2, 2), torch.optim.Adam), {}, InvalidTypeError, "rule must be a class"),
        ((nn.Linear(2, 2), "Adm"), {}, InvalidArgumentError, "Did you mean 'Adam'"),
        ((nn.Linear(2, 2), "Adam"), {"rate": 1}, TypeError, "'rate'"),
        ((torch.optim.SGD([torch.ones(1)]), "Adam"), {}, InvalidTypeError, "an optimizer of torch"),
        ((optim.SGD([torch.ones(1)]),), {"lr": 1}, InvalidArgumentError, "leave out lr"),
        ((optim.SGD([torch.ones(1)]), "Adam"), {}, InvalidArgumentError, "leave out rule"),
    ],
)
def test_invalid_arguments_raise(
    arguments: Any, options: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        optim.memory(*arguments, **options)
