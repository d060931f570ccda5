"""TensorFlow's numbers on long and wide variables, and on NaN, infinities and denormals.

`tools/record_goldens.py --wide` recorded them: a digest of every array after every step and a few
of its elements. The inputs are drawn here as they were drawn there.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from rulebook import KINDS, slow_unless
from thalweg.keras import optimizers
from thalweg.v1 import train

ROOT = Path(__file__).parents[2]


def tool(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


record, rows = tool("record_goldens"), tool("record_rows")

GOLDENS = json.loads((ROOT / "tests" / "goldens" / "wide.json").read_text())
ARRAYS = np.load(ROOT / "tests" / "goldens" / "wide.npz")
CASES = {case["id"]: case for case in GOLDENS["cases"]}

Case = dict[str, Any]
RSQRT = "TensorFlow takes the processor's approximate rsqrt, refined once, for whole packets"
POW = "TensorFlow's pow of whole packets is its own, and the formula subtracts two of them"

# (rule, dtype) -> (variables, relative bound, absolute bound, reason) of recorded elements.
BOUNDS: dict[tuple[str, str], tuple[tuple[str, ...], float, float, str]] = {
    ("Adadelta", "float32"): (("long", "rows", "wide", "flat"), 1e-5, 1e-5, RSQRT),
    ("MomentumRMSprop", "float32"): (("rows", "wide"), 1e-5, 1e-5, RSQRT),
    ("CenteredMomentumRMSprop", "float32"): (("rows", "wide"), 1e-5, 1e-5, RSQRT),
    ("FtrlPower", "float32"): (("long", "rows", "wide", "flat"), 1e-3, 1e-1, POW),
    ("FtrlPower", "float64"): (("long", "rows", "wide", "flat"), 1e-9, 1e-9, POW),
}
EXACT = ("accumulator", "accum_grad", "rms", "mg")  # slots that the bounds do not concern


def gradient(arrays: dict[str, np.ndarray], name: str, step: int) -> Any:
    """The gradient of a variable at a step, counted from 0."""
    if f"grad|{name}" in arrays:
        return torch.from_numpy(arrays[f"grad|{name}"][step].copy())
    split = arrays[f"gsplit|{name}"]
    part = slice(split[step], split[step + 1])
    indices = torch.from_numpy(arrays[f"gidx|{name}"][part].astype(np.int64))
    return thalweg.IndexedSlices(torch.from_numpy(arrays[f"gval|{name}"][part].copy()), indices)


def value(opt: Any, variables: dict[str, thalweg.Variable], key: str) -> np.ndarray:
    """A variable, or one of its slots, by the name of the recording."""
    part, name, *slot = key.split("|")
    return (
        variables[name].numpy() if part == "var" else opt.get_slot(variables[name], *slot).numpy()
    )


def samples(case: Case, step: int) -> dict[str, np.ndarray]:
    """The recorded elements of each array after a step."""
    shapes = {name: shape for name, (shape, _) in record.WIDE_VARIABLES[case["inputs"]].items()}
    sizes = [int(np.prod(shapes[key.split("|")[1]])) for key in case["keys"]]
    ends = np.cumsum([len(record.sample_positions(size)) for size in sizes])
    parts = np.split(ARRAYS[f"{case['id']}|sample"][step], ends[:-1])
    return dict(zip(case["keys"], parts, strict=True))


def check(case: Case, step: int, key: str, got: np.ndarray, digest: int, sample: Any) -> None:
    """Assert equal bits or, for entries of `BOUNDS`, recorded elements within the bound."""
    if record.digest(got) == digest:
        return
    names, rtol, atol, _ = BOUNDS.get((case["rule"], case["dtype"]), ((), 0.0, 0.0, ""))
    _, name, *slot = key.split("|")
    if name not in names or (slot and slot[0] in EXACT):
        rtol = atol = 0.0
    numbers = got.ravel()[record.sample_positions(got.size)]
    title = f"{case['id']} step {step + 1} {key}"
    np.testing.assert_allclose(numbers, sample, rtol, atol, equal_nan=True, err_msg=title)
    assert atol, f"{title}: elements differ, though none of those recorded"


@pytest.mark.parametrize("inputs", GOLDENS["inputs"])
def test_inputs_equal_the_recorded_inputs(inputs: str) -> None:
    assert record.inputs_digest(*inputs.split("/")) == GOLDENS["inputs"][inputs]


@pytest.mark.one_in(7)
@pytest.mark.parametrize(
    "case_id",
    [
        slow_unless(case["dtype"] == "float32" or case["rule"] in KINDS, id)
        for id, case in CASES.items()
    ],
)
def test_every_array_has_tensorflow_bits(case_id: str) -> None:
    case = CASES[case_id]
    arrays = record.wide_inputs(case["inputs"], case["dtype"])
    opt = getattr(optimizers, case["optimizer"])(**case["kwargs"])
    opt.engine = "cpu"
    names = record.WIDE_VARIABLES[case["inputs"]]
    variables = {name: thalweg.Variable(arrays[f"var|{name}"][0], name) for name in names}
    for step, digests in enumerate(ARRAYS[f"{case_id}|digest"]):
        opt.apply_gradients([(gradient(arrays, name, step), variables[name]) for name in names])
        golden = samples(case, step)
        for key, digest in zip(case["keys"], digests.tolist(), strict=True):
            check(case, step, key, value(opt, variables, key), digest, golden[key])


# Rows of sparse gradients, narrower and wider than a packet of the processor: 8 of float32

PACKET = 8
ROW_ARRAYS = np.load(ROOT / "tests" / "goldens" / "rows.npz")
# What TensorFlow computes by its approximate rsqrt in rows of whole packets, and how far it is off,
# as a share of the largest element.
APPROXIMATE = {
    "v1/Adagrad": ("var",),
    "v1/ProximalAdagrad": ("var",),
    "v1/Adadelta": ("var", "accum_update"),
    "v1/RMSProp": ("var", "momentum"),
    "v1/CenteredRMSProp": ("var", "momentum"),
    "keras/Adadelta": ("var", "accum_var"),
    "keras/MomentumRMSprop": ("var", "momentum"),
}
TOLERANCE = 1e-6


@pytest.mark.one_in(3)
@pytest.mark.parametrize("width", rows.WIDTHS)
@pytest.mark.parametrize(
    "title", [*(f"v1/{name}" for name in rows.V1), *(f"keras/{name}" for name in rows.KERAS)]
)
def test_sparse_gradient_rows_have_tensorflow_bits(title: str, width: int) -> None:
    face, name = title.split("/")
    cls, arguments, slots = (rows.V1 if face == "v1" else rows.KERAS)[name]
    start, steps = rows.problem(width)
    var = thalweg.Variable(start)
    opt = getattr(train if face == "v1" else optimizers, cls)(**arguments)
    for values, indices in steps:
        slices = thalweg.IndexedSlices(torch.from_numpy(values), torch.from_numpy(indices))
        opt.apply_gradients([(slices, var)])
    for key, tensor in {"var": var, **{slot: opt.get_slot(var, slot) for slot in slots}}.items():
        got, golden = tensor.numpy(), ROW_ARRAYS[f"{title}/{width}/{key}"]
        if width >= PACKET and key in APPROXIMATE.get(title, ()):
            assert np.abs(got - golden).max() <= TOLERANCE * np.abs(golden).max(), key
        else:
            assert got.tobytes() == golden.tobytes(), key
