"""The trainings of `step_digests.py`: optimizers, options and inputs of each front end."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

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
from thalweg.optim.rule_names import KINDS
from thalweg.v1 import train
from thalweg.v1.contrib import opt as contrib

Arguments = dict[str, Any]
STEPS = 6
DECAY: Arguments = {"weight_decay": 0.1}
SHAPES = ((65, 64), (6, 4), (7,), ())  # The first has enough elements for 8-bit state.
MATRIX_SHAPES = ((66, 64), (12, 8), (6, 4))
LARGE = (70_001,)  # More elements than one thread takes at a time.
MIXED = (torch.float32, torch.bfloat16, torch.float64, torch.float32)

# The arguments of constructors to try, by front end and class.
OPTIMIZERS: dict[str, list[Arguments]] = {
    **{f"optim.{name}": [{}] for name in KINDS},
    "optim.SGD": [{}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
                  {"momentum": 0.5, "dampening": 0.1, "maximize": True}],
    "optim.Adam": [{}, {"amsgrad": True, "weight_decay": 0.1}, {"maximize": True}],
    "optim.AdamW": [{}, {"amsgrad": True}, {"betas": (0.0, 0.9)}],
    "optim.RMSprop": [{}, {"centered": True, "momentum": 0.5}, DECAY],
    "optim.Adagrad": [{}, {"lr_decay": 0.1, "initial_accumulator_value": 0.5}],
    "optim.NAdam": [{}, {"decoupled_weight_decay": True, "weight_decay": 0.1}],
    "optim.RAdam": [{}, {"decoupled_weight_decay": True, "weight_decay": 0.1}],
    "optim.ASGD": [{"t0": 2.0, "weight_decay": 0.1}],
    "optim.Adafactor": [{}, {"weight_decay": 0.1, "eps": (1e-6, 1e-3)}],
    "optim.AdafactorHF": [{"lr": 0.01, "relative_step": False}, {"beta1": 0.5}],
    "optim.Adan": [DECAY, {"no_prox": True}],
    "optim.ADOPT": [{}, {"clip_exp": 0.333, "decoupled": True}],
    "optim.AdEMAMix": [{"alpha_warmup": 5, "beta3_warmup": 3}],
    "optim.LAMB": [DECAY, {"always_adapt": True, "trust_clip": True}],
    "optim.SM3": [{}, {"momentum": 0.5, "beta": 0.9}],
    "optim.MARS": [{"weight_decay": 0.1, "lr_1d_factor": 0.5},
                   {"mars_type": "lion", "optimize_1d": True}],
    "optim.Prodigy": [{"d0": 1e-3, "weight_decay": 0.1},
                      {"decouple": False, "use_bias_correction": True, "growth_rate": 1.1}],
    "optim.Muon": [{}, {"heads": 2}],
    "optim.NorMuon": [DECAY, {"layout": "rows=2"}],
    "optim.AdaMuon": [{}],
    "optim.SOAP": [{"precondition_frequency": 2}, {"heads": 1}],
    "optim.KLSOAP": [{}, {"max_precondition_dim": 4}],
    "optim.ScheduleFreeAdamW": [{"warmup_steps": 2}],
    "optim.RuleOptimizer": [{"rule": rules.FTRL}, {"rule": rules.LARS},
                            {"rule": rules.NESTEROV_BALL}],
    "optim.Mixed": [{"pair": ("Muon", "AdamW")}, {"pair": ("SGD", "Lion")},
                    {"pair": ("LAMB", "Adafactor")}],
    **{f"tensorflow.{name}": [{}] for name in tensorflow.__all__},
    "tensorflow.SGD": [{}, {"momentum": 0.9, "nesterov": True}],
    "tensorflow.Adam": [{}, {"amsgrad": True}],
    "tensorflow.RMSprop": [{}, {"centered": True, "momentum": 0.5}],
    "tensorflow.Ftrl": [{"l1": 0.01}, {"learning_rate_power": -0.7}],
    "keras.SGD": [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}],
    "keras.Adam": [{}, {"amsgrad": True}],
    **{f"keras.{name}": [{}] for name in ("Adamax", "Nadam", "Adagrad", "Adadelta")},
    "keras.RMSprop": [{}, {"momentum": 0.5, "centered": True}],
    "keras.Ftrl": [{"l1_regularization_strength": 0.01}, {"learning_rate_power": -0.7}],
    "keras.RuleOptimizer": [{"rule": rules.LARS}, {"rule": rules.NESTEROV_BALL}],
    **{f"v1.{name}": [{}] for name in train.__all__ if name.endswith("Optimizer")},
    "v1.MomentumOptimizer": [{"momentum": 0.9}, {"momentum": 0.9, "use_nesterov": True}],
    "v1.RMSPropOptimizer": [{"momentum": 0.5}, {"centered": True}],
    "v1.FtrlOptimizer": [{"l1_regularization_strength": 0.01}, {"learning_rate_power": -0.7}],
    **{f"contrib.{name}Optimizer": [{}] for name in ("AdaMax", "LazyAdam", "Nadam")},
    "contrib.AdamWOptimizer": [DECAY],
    "contrib.LARSOptimizer": [{}, {"use_nesterov": True}],
    "contrib.MomentumWOptimizer": [{"weight_decay": 0.1, "momentum": 0.9}],
    "contrib.MovingAverageOptimizer": [{"average_decay": 0.9}],
    "contrib.VariableClippingOptimizer": [{"max_norm": 0.5}],
    "contrib.DecoupledWeightDecay": [DECAY],
    "openseq2seq.NovoGrad": [DECAY, {"grad_averaging": True}],
    **{f"optimize_loss.{name}": [{}] for name in (*OPTIMIZER_CLS_NAMES, "NovoGrad")},
    "optimize_loss.Momentum": [{"momentum": 0.9}],
    "optimize_loss.AdamW": [DECAY],
}  # fmt: skip
# The first is abstract, and the second runs in graphs alone.
del OPTIMIZERS["v1.Optimizer"], OPTIMIZERS["v1.SyncReplicasOptimizer"]

SCHEDULE, RATE_TENSOR = {"rate": "schedule"}, {"rate": "tensor"}
SPLIT: Arguments = {"weights": "split", "round": "stochastic", "seed": 7}
OPTIM_VALUES: Arguments = {
    "clip_grad_norm": 1.0, "clip_grad_value": 0.25, "accumulate": 2, "in_backward": True,
    "row_floor": 0.3, "cautious": True, "trust_ratio": True, "sphere": True, "radial_brake": True,
    "state_storage": "8bit", "lookahead": 2, "ema_decay": 0.9, "masters": True, "weights": "split",
    "diagnostics": 2,
}  # fmt: skip
V1_OPTIONS: dict[str, Arguments] = {
    "schedule": SCHEDULE, "rate_callable": {"rate": "callable"}, "diagnostics": {"diagnostics": 2},
}  # fmt: skip
# Keywords by front end and option; each option runs once with each optimizer.
OPTIONS: dict[str, dict[str, Arguments]] = {
    "optim": {
        **{name: {name: OPTIM_VALUES[name]} for name in OPTIM_VALUES},
        "fused_unscale": {"fused_unscale": True, "clip_grad_norm": 1.0},
        "flat": {"gradients": "flat"},
        "cautious_decay": {"cautious_decay": True, "weight_decay": 0.1},
        "state_dtype": {"state_dtype": torch.bfloat16, "state_device": "cpu"},
        "round": {"round": "stochastic", "seed": 7},
        "schedule": SCHEDULE,
        "rate_tensor": RATE_TENSOR,
        "complex": {},
        "torch_step": {"differentiable": True},
        "seven_bytes": {**SPLIT, "state_storage": "8bit"},
        "summed_masters": {"masters": True, "clip_grad_norm": 1.0, "ema_decay": 0.9,
                           "accumulate": 2, "wide_sums": True, "diagnostics": 1},
    },
    "tensorflow": {
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
    },
    "keras": {
        "clipnorm": {"clipnorm": 1.0},
        "global_clipnorm": {"global_clipnorm": 1.0},
        "clipvalue": {"clipvalue": 0.25, "decay": 0.1},
        **V1_OPTIONS,
    },
    **dict.fromkeys(("v1", "contrib", "openseq2seq"), V1_OPTIONS),
    "optimize_loss": {
        "clip_gradients": {"clip_gradients": 1.0, **SCHEDULE},
        "larc": {"larc_params": {"larc_eta": 0.01}},
        "larc_scale": {"larc_params": {"larc_eta": 0.5, "larc_mode": "scale", "min_update": 1e-3}},
        "mixed": {"dtype": "mixed", "loss_scaling": "Backoff", "clip_gradients": 1.0},
        "iter_size": {"iter_size": 2},
    },
}  # fmt: skip

FACTORS = {
    "dtype": ("float32", "float64", "bfloat16", "float16", "mixed", "complex64"),
    "layout": ("contiguous", "strided", "expanded", "missing", "sparse"),
    "inputs": ("ordinary", "extreme", "nonfinite"),
    "threads": (1, 2),
}
MATRIX_RULES = r"\.(Muon|NorMuon|AdaMuon|MuonH|SOAP|KLSOAP) "
# Patterns of "optimizer option", a factor, and its values; with all others an error is raised.
LIMITS = (
    (r"\S (?!complex)", "dtype", "float32 float64 bfloat16 float16 mixed"),
    (r" complex", "dtype", "complex64"),
    (r"masters| round|\+round| mixed", "dtype", "bfloat16 float16 mixed"),
    (r" row_floor", "dtype", "float32 float64 bfloat16"),
    (r" state_storage", "dtype", "float32 bfloat16 float16"),
    (r" weights| seven_bytes", "dtype", "bfloat16"),
    (rf"{MATRIX_RULES}|\.(Adafactor|AdafactorHF|SM3|Mixed) ", "dtype",
     "float32 float64 bfloat16 mixed complex64"),
    (r"^optim\.(?!(SGD|Adagrad|RuleOptimizer|SparseAdam) )| round|\+diagnostics| seven_bytes",
     "layout", "contiguous strided expanded missing"),
    (r" fused_unscale", "layout", "contiguous strided missing"),
    (r"\.SparseAdam ", "layout", "missing sparse"),
    (r"^optim\.(?!(A?SGD|Ada(delta|grad|m|mW|max)|[NR]Adam|RMSprop|Rprop) )\S+ torch_step",
     "dtype", ""),
    (r"^optimize_loss", "layout", "contiguous strided expanded sparse"),
)  # fmt: skip


def make_torch_style(name: str, keywords: Arguments, params: list[Tensor]) -> Any:
    """Return an optimizer of `thalweg.optim` or `thalweg.optim.tensorflow`."""
    front_end, _, cls = name.partition(".")
    if cls != "Mixed":
        return getattr(optim if front_end == "optim" else tensorflow, cls)(params, **keywords)
    of_group = {key: keywords.pop(key) for key in ("lr", "weight_decay") if key in keywords}
    parts = (
        [param for param in params if param.dim() == 2],
        [param for param in params if param.dim() != 2],
    )
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
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled="fused_unscale" in keywords)
    scaler.scale(torch.zeros(()))  # The first call makes the scale.
    optimizer = make_torch_style(name, keywords, params)
    decay = 0.8 if kind == "schedule" else 1.0
    scheduler = optim.lr_scheduler.ExponentialLR(optimizer, decay)
    for grads in gradients:
        for param, grad in zip(params, grads, strict=True):
            if has_backward and grad is not None:
                torch.autograd.backward([param], [grad])
            elif not has_backward:
                param.grad = grad
        scaler.step(optimizer)
        scaler.update()
        if kind == "schedule":
            scheduler.step()
        optimizer.zero_grad()
    table = optimizer.diagnostics
    report, records = tuple(optimizer.last_step or ()), table and table.records.tolist()
    return optimizer.state_dict()["state"], report, records


def make_optimize_loss(
    cls: str, keywords: Arguments, variables: list[Tensor], kind: str | None
) -> Any:
    """Return the step of `optimize_loss`, to which gradients are given."""
    params = {key: keywords.pop(key) for key in ("momentum", "weight_decay") if key in keywords}
    calls = itertools.count()
    if "iter_size" in keywords:
        keywords["skip_update_ph"] = lambda: next(calls) % 2 == 0
    return optimize_loss(
        lambda: None,
        NovoGrad if cls == "NovoGrad" else cls,
        params,
        lambda count: lr_policies.poly_decay(count, 0.1, decay_steps=10) if kind else 0.1,
        var_list=variables,
        summaries=["learning_rate"],
        **keywords,
    )


def make_tensorflow_style(
    name: str, keywords: Arguments, variables: list[Tensor], count: Variable
) -> Any:
    """Return an optimizer of Keras, TensorFlow 1 or OpenSeq2Seq."""
    front_end, _, cls = name.partition(".")
    kind, calls = keywords.pop("rate", None), itertools.count(1)
    if front_end == "optimize_loss":
        return make_optimize_loss(cls, keywords, variables, kind)
    rate: Any = {None: 0.1, "callable": lambda: 0.1 / next(calls)}.get(kind)
    if front_end == "keras":
        rate = rate or schedules.ExponentialDecay(0.1, 2, 0.7)
        return getattr(keras.optimizers, cls)(learning_rate=rate, **keywords)
    keywords["learning_rate"] = rate or train.exponential_decay(0.1, count, 2, 0.7)
    if cls == "AdagradDAOptimizer":
        keywords["global_step"] = count
    if cls == "DecoupledWeightDecay":
        return contrib.extend_with_decoupled_weight_decay(train.AdamOptimizer)(**keywords)
    if cls in ("MovingAverageOptimizer", "VariableClippingOptimizer"):
        keywords["opt"] = train.MomentumOptimizer(keywords.pop("learning_rate"), 0.9)
    if cls == "VariableClippingOptimizer":
        keywords["vars_to_clip_dims"] = {var: [0] for var in variables if var.dim()}
    homes: Any = {"v1": train, "contrib": contrib}
    return NovoGrad(**keywords) if cls == "NovoGrad" else getattr(homes[front_end], cls)(**keywords)


def train_tensorflow_style(
    name: str, keywords: Arguments, variables: list[Tensor], gradients: Iterator[list[Any]]
) -> object:
    """Take steps of an optimizer of `Variable`s; return its state and diagnostics."""
    count = Variable(np.int64(0), "count", trainable=False)
    interval = keywords.pop("diagnostics", None)
    optimizer = make_tensorflow_style(name, keywords, variables, count)
    recorder = None if interval is None else diagnostics.attach(optimizer, every=interval)
    for grads in gradients:
        if name.startswith("optimize_loss"):
            optimizer.apply_gradients(grads)
        else:
            counts = [] if name.startswith("keras") else [count]
            optimizer.apply_gradients(list(zip(grads, variables, strict=True)), *counts)
    table = recorder and recorder.table
    return optimizer.state_dict(), table and table.records.tolist()


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
    random: np.random.Generator, case: Any, params: list[Tensor], is_torch: bool
) -> Iterator[list[Any]]:
    """Yield the gradients of each step; if "nonfinite", NaN and infinities in the last two."""
    is_sparse = case.layout == "sparse" or case.optimizer == "optim.SparseAdam"
    for step in range(STEPS):
        grads: list[Any] = []
        for place, param in enumerate(params):
            grad = draw_values(random, tuple(param.shape), param.dtype, case.inputs)
            if case.inputs == "nonfinite" and step > 3 and not place:
                grad.view(-1)[[3, 5, 7]] = torch.tensor([np.nan, np.inf, -np.inf]).to(grad.dtype)
            rows = torch.from_numpy(random.integers(0, len(param) if param.dim() else 1, 5))
            if case.layout == "missing" and (step + place) % 3 == 0:
                grads.append(None)
            elif not is_sparse or not param.dim():
                grads.append(lay_out(grad, case.layout))
            elif is_torch:
                grads.append(torch.sparse_coo_tensor(rows[None], grad[rows], grad.shape))
            else:
                grads.append(IndexedSlices(grad[rows], rows, tuple(grad.shape)))
        yield grads


def run_training(case: Any, engine: Any, random_seed: int) -> object:
    """Run the training of a case on an engine, and return all that its steps have changed."""
    enable_eager_execution()
    front_end = case.optimizer.partition(".")[0]
    keywords = OPTIMIZERS[case.optimizer][case.arguments]
    keywords = keywords | OPTIONS[front_end].get(case.option, {})
    random = np.random.default_rng(random_seed)
    is_torch = front_end in ("optim", "tensorflow")
    is_large = case.threads > 1 and case.inputs == "ordinary"
    has_matrices = re.search(f"{MATRIX_RULES}| row_floor", f"{case.optimizer} {case.option}")
    shapes = MATRIX_SHAPES if has_matrices else SHAPES + (LARGE,) * is_large
    if case.optimizer == "optim.SparseAdam":
        shapes = tuple(shape for shape in shapes if shape)
    params: list[Tensor] = []
    for place, shape in enumerate(shapes):
        dtype = MIXED[place % 4] if case.dtype == "mixed" else getattr(torch, case.dtype)
        values = draw_values(random, shape, dtype, case.inputs)
        if case.layout == "strided" and values.dim() > 1:
            values = lay_out(values, "strided")
        if is_torch:
            params.append(nn.Parameter(values, requires_grad=case.option != "torch_step"))
        else:
            params.append(Variable(values, f"w{place}"))
    gradients = draw_gradients(random, case, params, is_torch)
    train: Callable[..., object] = train_torch_style if is_torch else train_tensorflow_style
    with thalweg.engine(engine):
        return params, train(case.optimizer, keywords, params, gradients)
