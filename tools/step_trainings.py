"""The trainings of `step_digests.py`: optimizers, options and inputs of each front end."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

os.environ["THALWEG_TUNING"] = "serial=0"  # Two threads share small tensors, too.

import numpy as np
import torch
from torch import Tensor, nn

import thalweg
from thalweg import IndexedSlices, Variable, diagnostics, keras, optim, rules, schedules
from thalweg._graph import enable_eager_execution
from thalweg.openseq2seq.optimizers import lr_policies, optimize_loss
from thalweg.openseq2seq.optimizers.name_tables import OPTIMIZER_CLS_NAMES
from thalweg.openseq2seq.optimizers.novograd import NovoGrad
from thalweg.optim import tensorflow
from thalweg.optim.kinds import KINDS
from thalweg.v1 import train
from thalweg.v1.contrib import opt as contrib

Arguments = dict[str, Any]
STEPS = 6
SHAPES = ((65, 64), (6, 4), (7,), ())  # The first has enough elements for 8-bit state.
MATRIX_SHAPES = ((66, 64), (12, 8), (6, 4))
LARGE = (70_001,)  # More elements than one thread takes at a time.
MATRIX_RULES = ("Muon", "NorMuon", "MuonH", "SOAP", "KLSOAP")
DTYPES = ("float32", "float64", "bfloat16", "float16", "mixed")
SPARSE_ALONE = ("optim.SparseAdam",)
SPARSE = ("optim.SGD", "optim.Adagrad", "optim.RuleOptimizer")  # Others of `optim` raise an error.
HALF = ("bfloat16", "float16", "mixed")
MIXED = (torch.float32, torch.bfloat16, torch.float64, torch.float32)

OPTIM: dict[str, list[Arguments]] = {
    **{f"optim.{name}": [{}] for name in (*KINDS, "RuleOptimizer", "Mixed")},
    "optim.SGD": [{}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
                  {"momentum": 0.5, "dampening": 0.1, "maximize": True}],
    "optim.Adam": [{}, {"amsgrad": True, "weight_decay": 0.1}, {"maximize": True}],
    "optim.AdamW": [{}, {"amsgrad": True}, {"betas": (0.0, 0.9)}],
    "optim.RMSprop": [{}, {"centered": True, "momentum": 0.5}, {"weight_decay": 0.1}],
    "optim.Adagrad": [{}, {"lr_decay": 0.1, "initial_accumulator_value": 0.5}],
    "optim.NAdam": [{}, {"decoupled_weight_decay": True, "weight_decay": 0.1}],
    "optim.RAdam": [{}, {"decoupled_weight_decay": True, "weight_decay": 0.1}],
    "optim.ASGD": [{"t0": 2.0, "weight_decay": 0.1}],
    "optim.Adafactor": [{}, {"weight_decay": 0.1, "eps": (1e-6, 1e-3)}],
    "optim.Adan": [{"weight_decay": 0.1}, {"no_prox": True}],
    "optim.ADOPT": [{}, {"clip_exp": 0.333, "decoupled": True}],
    "optim.AdEMAMix": [{"alpha_warmup": 5, "beta3_warmup": 3}],
    "optim.LAMB": [{"weight_decay": 0.1}, {"always_adapt": True, "trust_clip": True}],
    "optim.SM3": [{}, {"momentum": 0.5, "beta": 0.9}],
    "optim.MARS": [{"weight_decay": 0.1, "lr_1d_factor": 0.5},
                   {"mars_type": "lion", "optimize_1d": True}],
    "optim.Prodigy": [{"d0": 1e-3, "weight_decay": 0.1},
                      {"decouple": False, "use_bias_correction": True, "growth_rate": 1.1}],
    "optim.Muon": [{}, {"heads": 2}],
    "optim.NorMuon": [{"weight_decay": 0.1}],
    "optim.SOAP": [{"precondition_frequency": 2}, {"heads": 1}],
    "optim.KLSOAP": [{}, {"max_precondition_dim": 4}],
    "optim.ScheduleFreeAdamW": [{"warmup_steps": 2}],
    "optim.RuleOptimizer": [{"rule": rules.FTRL}, {"rule": rules.LARS},
                            {"rule": rules.NESTEROV_BALL}],
    "optim.Mixed": [{"pair": ("Muon", "AdamW")}, {"pair": ("SGD", "Lion")},
                    {"pair": ("LAMB", "Adafactor")}],
}  # fmt: skip
TENSORFLOW: dict[str, list[Arguments]] = {
    **{f"tensorflow.{name}": [{}] for name in tensorflow.__all__},
    "tensorflow.SGD": [{}, {"momentum": 0.9, "nesterov": True}],
    "tensorflow.Adam": [{}, {"amsgrad": True}],
    "tensorflow.RMSprop": [{}, {"centered": True, "momentum": 0.5}],
    "tensorflow.Ftrl": [{"l1": 0.01}, {"learning_rate_power": -0.7}],
}
KERAS: dict[str, list[Arguments]] = {
    "keras.SGD": [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}],
    "keras.Adam": [{}, {"amsgrad": True}],
    "keras.Adamax": [{}],
    "keras.Nadam": [{}],
    "keras.Adagrad": [{}],
    "keras.Adadelta": [{}],
    "keras.RMSprop": [{}, {"momentum": 0.5, "centered": True}],
    "keras.Ftrl": [{"l1_regularization_strength": 0.01}, {"learning_rate_power": -0.7}],
    "keras.RuleOptimizer": [{"rule": rules.LARS}, {"rule": rules.NESTEROV_BALL}],
}
V1: dict[str, list[Arguments]] = {
    **{f"v1.{name}": [{}] for name in train.__all__ if name.endswith("Optimizer")},
    "v1.MomentumOptimizer": [{"momentum": 0.9}, {"momentum": 0.9, "use_nesterov": True}],
    "v1.RMSPropOptimizer": [{"momentum": 0.5}, {"centered": True}],
    "v1.FtrlOptimizer": [{"l1_regularization_strength": 0.01}, {"learning_rate_power": -0.7}],
    "contrib.AdamWOptimizer": [{"weight_decay": 0.1}],
    "contrib.AdaMaxOptimizer": [{}],
    "contrib.LARSOptimizer": [{}, {"use_nesterov": True}],
    "contrib.LazyAdamOptimizer": [{}],
    "contrib.MomentumWOptimizer": [{"weight_decay": 0.1, "momentum": 0.9}],
    "contrib.NadamOptimizer": [{}],
    "contrib.MovingAverageOptimizer": [{"average_decay": 0.9}],
    "contrib.VariableClippingOptimizer": [{"max_norm": 0.5}],
    "contrib.DecoupledWeightDecay": [{"weight_decay": 0.1}],
    "openseq2seq.NovoGrad": [{"weight_decay": 0.1}, {"grad_averaging": True}],
}
for _name in ("v1.Optimizer", "v1.SyncReplicasOptimizer"):
    del V1[_name]
OPENSEQ2SEQ: dict[str, list[Arguments]] = {
    **{f"optimize_loss.{name}": [{}] for name in (*OPTIMIZER_CLS_NAMES, "NovoGrad")},
    "optimize_loss.Momentum": [{"momentum": 0.9}],
    "optimize_loss.AdamW": [{"weight_decay": 0.1}],
}

SCHEDULE, RATE_TENSOR = {"rate": "schedule"}, {"rate": "tensor"}
SPLIT: Arguments = {"weights": "split", "round": "stochastic", "seed": 7}
OPTIM_OPTIONS: dict[str, Arguments] = {
    "clip_grad_norm": {"clip_grad_norm": 1.0},
    "clip_grad_value": {"clip_grad_value": 0.25},
    "fused_unscale": {"fused_unscale": True, "clip_grad_norm": 1.0},
    "accumulate": {"accumulate": 2},
    "in_backward": {"in_backward": True},
    "flat": {"gradients": "flat"},
    "cautious_decay": {"cautious_decay": True, "weight_decay": 0.1},
    "row_floor": {"row_floor": 0.3},
    "cautious": {"cautious": True},
    "trust_ratio": {"trust_ratio": True},
    "sphere": {"sphere": True},
    "radial_brake": {"radial_brake": True},
    "state_storage": {"state_storage": "8bit"},
    "lookahead": {"lookahead": 2},
    "ema_decay": {"ema_decay": 0.9},
    "masters": {"masters": True},
    "state_dtype": {"state_dtype": torch.bfloat16, "state_device": "cpu"},
    "weights": {"weights": "split"},
    "round": {"round": "stochastic", "seed": 7},
    "diagnostics": {"diagnostics": 2},
    "schedule": SCHEDULE,
    "rate_tensor": RATE_TENSOR,
    "complex": {},
    "seven_bytes": {**SPLIT, "state_storage": "8bit"},
    "summed_masters": {"masters": True, "clip_grad_norm": 1.0, "ema_decay": 0.9, "accumulate": 2,
                       "wide_sums": True, "diagnostics": 1},
}  # fmt: skip
TENSORFLOW_OPTIONS: dict[str, Arguments] = {
    "clip_grad_norm+ema": {"clip_grad_norm": 1.0, "ema_decay": 0.9},
    "clip_grad_value+radial_brake": {"clip_grad_value": 0.25, "radial_brake": 0.3, **SCHEDULE},
    "accumulate+masters": {"accumulate": 2, "masters": True},
    "fused_unscale+round": {"fused_unscale": True, "round": "stochastic"},
    "in_backward+state_dtype": {"in_backward": True, "state_dtype": torch.float32},
    "flat+trust_ratio": {"gradients": "flat", "trust_ratio": True},
    "state_storage+lookahead": {"state_storage": "dynamic8", "lookahead": 2},
    "weights+diagnostics": {**SPLIT, "diagnostics": 2},
    "sphere+rate_tensor": {"sphere": True, **RATE_TENSOR},
    "row_floor+cautious": {"row_floor": True, "cautious": True},
}
KERAS_OPTIONS: dict[str, Arguments] = {
    "clipnorm": {"clipnorm": 1.0},
    "global_clipnorm": {"global_clipnorm": 1.0},
    "clipvalue": {"clipvalue": 0.25, "decay": 0.1},
    "schedule": SCHEDULE,
    "rate_callable": {"rate": "callable"},
    "diagnostics": {"diagnostics": 2},
}
V1_OPTIONS: dict[str, Arguments] = {
    "schedule": SCHEDULE, "rate_callable": {"rate": "callable"}, "diagnostics": {"diagnostics": 2},
}  # fmt: skip
LOSS_OPTIONS: dict[str, Arguments] = {
    "clip_gradients": {"clip_gradients": 1.0, **SCHEDULE},
    "larc": {"larc_params": {"larc_eta": 0.01}},
    "larc_scale": {"larc_params": {"larc_eta": 0.5, "larc_mode": "scale", "min_update": 1e-3}},
    "mixed": {"dtype": "mixed", "loss_scaling": "Backoff", "clip_gradients": 1.0},
    "iter_size": {"iter_size": 2},
}


@dataclass(frozen=True)
class Family:
    """The optimizers of a front end.

    Attributes:
        optimizers: The arguments of constructors to try, by name.
        options: Keywords by the name of an option; each runs once with each optimizer.
        train: Takes the name, all keywords, variables and gradients; returns the state.
        plain_rows: The number of cases of each optimizer without an option.
        dtypes: The dtypes of options that act on some dtypes alone.
        excluded_layouts: The layouts of gradients that raise an error with an option.
    """

    optimizers: Mapping[str, list[Arguments]]
    options: Mapping[str, Arguments]
    train: Callable[[str, Arguments, list[Tensor], Iterator[list[Any]]], object]
    plain_rows: int = 2
    dtypes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    excluded_layouts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def dtypes_of(self, optimizer: str, option: str) -> tuple[str, ...]:
        """Return the dtypes of parameters to try; rules of matrices do not take float16."""
        dtypes = self.dtypes.get(option, DTYPES)
        has_matrices = optimizer.endswith((*MATRIX_RULES, "Adafactor", "SM3", "Mixed"))
        return tuple(name for name in dtypes if not (has_matrices and name == "float16"))

    def layouts_of(self, optimizer: str, option: str) -> list[str]:
        """Return the layouts of gradients that an optimizer takes with an option."""
        is_sparse = optimizer in SPARSE_ALONE
        takes_sparse = not optimizer.startswith("optim.") or optimizer in (*SPARSE, *SPARSE_ALONE)
        layouts = ("missing",) if is_sparse else ("contiguous", "strided", "expanded", "missing")
        excluded = self.excluded_layouts.get(option, ())
        return [name for name in (*layouts, *["sparse"] * takes_sparse) if name not in excluded]


def rate_of(kind: str | None, schedule: Callable[[], Any]) -> Any:
    """Return a learning rate: a number, a schedule, or a callable with another value per call."""
    values = itertools.count(1)
    kinds = {"schedule": schedule, "callable": lambda: lambda: 0.1 / next(values)}
    return kinds.get(str(kind), lambda: 0.1)()


class GivenGradient(torch.autograd.Function):
    """A loss of zero whose backward pass gives the parameter a chosen gradient."""

    @staticmethod
    def forward(ctx: Any, param: Tensor, grad: Tensor) -> Tensor:
        ctx.grad = grad
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return ctx.grad, None


def make_torch_style(name: str, keywords: Arguments, params: list[Tensor]) -> Any:
    """Return an optimizer of `thalweg.optim` or `thalweg.optim.tensorflow`."""
    front_end, _, cls = name.partition(".")
    if cls != "Mixed":
        return getattr(optim if front_end == "optim" else tensorflow, cls)(params, **keywords)
    of_group = {key: keywords.pop(key) for key in ("lr", "weight_decay") if key in keywords}
    parts = ([p for p in params if p.dim() == 2], [p for p in params if p.dim() != 2])
    groups = [
        {"params": part, "rule": rule, **of_group}
        for part, rule in zip(parts, keywords.pop("pair"), strict=True)
        if part
    ]
    return optim.Mixed(groups, **keywords)


def train_torch_style(
    name: str, keywords: Arguments, params: list[Tensor], gradients: Iterator[list[Any]]
) -> object:
    """Take steps of a torch-style optimizer; return its state, report and diagnostics."""
    kind = keywords.pop("rate", None)
    keywords["lr"] = torch.tensor(0.01) if kind == "tensor" else 0.01
    has_backward = "in_backward" in keywords or "gradients" in keywords
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0) if "fused_unscale" in keywords else None
    if scaler is not None:
        scaler.scale(torch.zeros(()))  # The first call makes the scale.
    optimizer = make_torch_style(name, keywords, params)
    decay = 0.8 if kind == "schedule" else 1.0
    scheduler = optim.lr_scheduler.ExponentialLR(optimizer, decay)
    for grads in gradients:
        for param, grad in zip(params, grads, strict=True):
            if has_backward and grad is not None:
                GivenGradient.apply(param, grad).backward()  # pyright: ignore
            elif not has_backward:
                param.grad = grad
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        if kind == "schedule":
            scheduler.step()
        optimizer.zero_grad()
    table = optimizer.diagnostics
    return {
        "state": optimizer.state_dict()["state"],
        "report": tuple(optimizer.last_step or ()),
        "table": table and table.records.tolist(),
    }


def apply_steps(optimizer: Any, interval: int | None, apply: Callable[[list[Any]], object],
                gradients: Iterator[list[Any]]) -> object:  # fmt: skip
    """Apply gradients of all steps; return the state and diagnostics of the optimizer."""
    recorder = None if interval is None else diagnostics.attach(optimizer, every=interval)
    for grads in gradients:
        apply(grads)
    table = recorder and recorder.table
    return optimizer.state_dict(), table and table.records.tolist()


def train_keras(
    name: str, keywords: Arguments, variables: list[Tensor], gradients: Iterator[list[Any]]
) -> object:
    """Take steps of a Keras optimizer; return its state and diagnostics."""
    rate = rate_of(keywords.pop("rate", None), lambda: schedules.ExponentialDecay(0.1, 2, 0.7))
    interval = keywords.pop("diagnostics", None)
    cls = getattr(keras.optimizers, name.partition(".")[2])
    optimizer = cls(learning_rate=rate, **keywords)

    def apply(grads: list[Any]) -> None:
        optimizer.apply_gradients(list(zip(grads, variables, strict=True)))

    return apply_steps(optimizer, interval, apply, gradients)


def make_v1(name: str, keywords: Arguments, variables: list[Tensor], count: Variable) -> Any:
    """Return an optimizer of `thalweg.v1.train`, `contrib.opt` or OpenSeq2Seq."""
    front_end, _, cls = name.partition(".")
    home: Any = train if front_end == "v1" else contrib
    if cls == "AdagradDAOptimizer":
        keywords["global_step"] = count
    if cls == "DecoupledWeightDecay":
        return contrib.extend_with_decoupled_weight_decay(train.AdamOptimizer)(**keywords)
    if cls in ("MovingAverageOptimizer", "VariableClippingOptimizer"):
        inner = train.MomentumOptimizer(keywords.pop("learning_rate"), 0.9)
        if cls == "VariableClippingOptimizer":
            keywords["vars_to_clip_dims"] = {var: [0] for var in variables if var.dim()}
        return getattr(home, cls)(inner, **keywords)
    return NovoGrad(**keywords) if cls == "NovoGrad" else getattr(home, cls)(**keywords)


def train_v1(
    name: str, keywords: Arguments, variables: list[Tensor], gradients: Iterator[list[Any]]
) -> object:
    """Take steps of a TensorFlow 1 optimizer; return its state and diagnostics."""
    count = Variable(np.int64(0), "count", trainable=False)
    interval = keywords.pop("diagnostics", None)
    kind = keywords.pop("rate", None)
    rate = rate_of(kind, lambda: train.exponential_decay(0.1, count, 2, 0.7))
    optimizer = make_v1(name, {"learning_rate": rate, **keywords}, variables, count)

    def apply(grads: list[Any]) -> None:
        optimizer.apply_gradients(list(zip(grads, variables, strict=True)), count)

    return apply_steps(optimizer, interval, apply, gradients)


def train_loss(
    name: str, keywords: Arguments, variables: list[Tensor], gradients: Iterator[list[Any]]
) -> object:
    """Take steps of `optimize_loss` with given gradients; return its state."""
    cls = name.partition(".")[2]
    params = {key: keywords.pop(key) for key in ("momentum", "weight_decay") if key in keywords}
    decays = keywords.pop("rate", None) == "schedule"
    calls = itertools.count()
    if "iter_size" in keywords:
        keywords["skip_update_ph"] = lambda: next(calls) % 2 == 0
    step: Any = optimize_loss(
        lambda: None,
        NovoGrad if cls == "NovoGrad" else cls,
        params,
        lambda count: lr_policies.poly_decay(count, 0.1, decay_steps=10) if decays else 0.1,
        var_list=variables,
        summaries=["learning_rate"],
        **keywords,
    )
    return apply_steps(step, None, step.apply_gradients, gradients)


_DTYPES = dict.fromkeys(("masters", "round", "summed_masters", "accumulate+masters"), HALF)
_DTYPES |= {"fused_unscale+round": HALF, "mixed": HALF, "complex": ("complex64",)}
_DTYPES |= dict.fromkeys(("row_floor", "row_floor+cautious"), ("float32", "float64", "bfloat16"))
_DTYPES |= dict.fromkeys(
    ("state_storage", "state_storage+lookahead"), ("float32", "bfloat16", "float16")
)
_DTYPES |= dict.fromkeys(("weights", "seven_bytes", "weights+diagnostics"), ("bfloat16",))
_EXCLUDED = {
    **dict.fromkeys(("round", "seven_bytes", "weights+diagnostics"), ("sparse",)),
    **dict.fromkeys(("fused_unscale", "fused_unscale+round"), ("sparse", "expanded")),
    **dict.fromkeys(LOSS_OPTIONS, ("missing",)),
}
FAMILIES = (
    Family(
        OPTIM,
        OPTIM_OPTIONS,
        train_torch_style,
        plain_rows=3,
        dtypes=_DTYPES,
        excluded_layouts=_EXCLUDED,
    ),
    Family(
        TENSORFLOW,
        TENSORFLOW_OPTIONS,
        train_torch_style,
        plain_rows=1,
        dtypes=_DTYPES,
        excluded_layouts=_EXCLUDED,
    ),
    Family(KERAS, KERAS_OPTIONS, train_keras),
    Family(V1, V1_OPTIONS, train_v1),
    Family(
        OPENSEQ2SEQ,
        LOSS_OPTIONS,
        train_loss,
        plain_rows=3,
        dtypes=_DTYPES,
        excluded_layouts=_EXCLUDED,
    ),
)


def draw_values(
    random: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype, inputs: str
) -> Tensor:
    """Return normal numbers; if "extreme", a fifth are zeros, denormals, or very large."""
    values = random.standard_normal(shape)
    if inputs == "extreme":
        info = torch.finfo(dtype)
        tiny, large = info.smallest_normal, info.max / 4
        extremes = random.choice([0.0, -0.0, tiny / 4, -tiny / 2, tiny * 2, large], shape)
        values = np.where(random.random(shape) < 0.2, extremes, values)
    tensor = torch.from_numpy(np.asarray(values)).to(dtype)
    return tensor * (1 + 0.5j) if dtype.is_complex else tensor


def lay_out(tensor: Tensor, layout: str) -> Tensor:
    """Return a tensor of the same shape in another layout."""
    if layout == "expanded" and tensor.dim():
        return tensor[:1].expand(tensor.shape)
    if layout == "strided" and tensor.dim() == 1:
        return torch.stack([tensor, tensor], 1)[:, 0]
    return tensor.mT.contiguous().mT if layout == "strided" and tensor.dim() > 1 else tensor


def draw_gradients(
    random: np.random.Generator, case: Any, params: list[Tensor], has_sparse: bool, is_torch: bool
) -> Iterator[list[Any]]:
    """Yield the gradients of each step; if "nonfinite", NaN and infinities in the last two."""
    for step in range(STEPS):
        grads: list[Any] = []
        for place, param in enumerate(params):
            grad = draw_values(random, tuple(param.shape), param.dtype, case.inputs)
            if case.inputs == "nonfinite" and step > 3 and not place:
                grad.view(-1)[[3, 5, 7]] = torch.tensor([np.nan, np.inf, -np.inf]).to(grad.dtype)
            rows = torch.from_numpy(random.integers(0, max(1, len(param)) if param.dim() else 1, 5))
            if case.layout == "missing" and (step + place) % 3 == 0:
                grads.append(None)
            elif not has_sparse or not param.dim():
                grads.append(lay_out(grad, case.layout))
            elif is_torch:
                grads.append(torch.sparse_coo_tensor(rows[None], grad[rows], grad.shape))
            else:
                grads.append(IndexedSlices(grad[rows], rows, tuple(grad.shape)))
        yield grads


def run_family(case: Any, engine: Any, random_seed: int) -> object:
    """Run the training of a case on an engine, and return all that its steps have changed."""
    enable_eager_execution()
    family = next(family for family in FAMILIES if case.optimizer in family.optimizers)
    keywords = family.optimizers[case.optimizer][case.arguments] | family.options.get(
        case.option, {}
    )
    random = np.random.default_rng(random_seed)
    is_torch = family.train is train_torch_style
    of_matrices = case.optimizer.endswith(MATRIX_RULES) or "row_floor" in keywords
    is_large = case.threads > 1 and case.inputs == "ordinary"
    shapes = MATRIX_SHAPES if of_matrices else SHAPES + (LARGE,) * is_large
    if case.optimizer in SPARSE_ALONE:
        shapes = tuple(shape for shape in shapes if shape)
    params: list[Tensor] = []
    for place, shape in enumerate(shapes):
        dtype = MIXED[place % 4] if case.dtype == "mixed" else getattr(torch, case.dtype)
        values = draw_values(random, shape, dtype, case.inputs)
        values = (
            lay_out(values, "strided") if case.layout == "strided" and values.dim() > 1 else values
        )
        params.append(nn.Parameter(values) if is_torch else Variable(values, f"w{place}"))
    has_sparse = case.layout == "sparse" or case.optimizer in SPARSE_ALONE
    gradients = draw_gradients(random, case, params, has_sparse, is_torch)
    with thalweg.engine(engine):
        state = family.train(case.optimizer, keywords, params, gradients)
    return params, state
