"""Keys of a config: training keys, and keys that are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thalweg._base.showing import show_value
from thalweg.errors import InvalidTypeError
from thalweg.openseq2seq.params import Kind, check_params
from thalweg.variable import as_dtype

REQUIRED: dict[str, Kind] = {"optimizer": object, "lr_policy": object}

# The kind and the default of each optional key.
_OPTIONS: dict[str, tuple[Kind, Any]] = {
    "optimizer_params": (dict, {}),
    "lr_policy_params": (dict, {}),
    "max_grad_norm": (float, None),
    "larc_params": (dict, None),
    # A float, an algorithm's name or None.
    "loss_scaling": (object, 1.0),
    "loss_scaling_params": (dict, None),
    "summaries": (list, None),
    "iter_size": (int, 1),
    "dtype": ([torch.float16, torch.float32, "mixed"], torch.float32),
    "regularizer": (object, None),
    "regularizer_params": (dict, {}),
    # A regular expression or None.
    "freeze_variables_regex": (object, None),
    "use_horovod": (bool, False),
    "batch_size_per_gpu": (int, None),
    "num_epochs": (int, None),
    "max_steps": (int, None),
}

OPTIONAL: dict[str, Kind] = {name: kind for name, (kind, _) in _OPTIONS.items()}
DEFAULTS: dict[str, Any] = {name: default for name, (_, default) in _OPTIONS.items()}

# Keys about data, model and logs, which a complete config has, too. They are ignored.
UNRELATED_KEYS = frozenset((
    "bench_start", "data_layer", "data_layer_params", "decoder", "decoder_params", "encoder",
    "encoder_params", "eval_batch_size_per_gpu", "eval_steps", "finetune", "gpu_ids", "hooks",
    "initializer", "initializer_params", "lm_vocab_file", "load_fc", "load_model", "logdir",
    "loss", "loss_params", "num_checkpoints", "num_gpus", "print_bench_info_steps",
    "print_loss_steps", "print_samples_steps", "processed_data_folder", "random_seed",
    "restore_best_checkpoint", "save_checkpoint_steps", "save_summaries_steps",
    "save_to_tensorboard", "trt_is_dynamic_op", "trt_max_workspace_size_bytes",
    "trt_maximum_cached_engines", "trt_minimum_segment_size", "trt_precision_mode", "use_trt",
    "use_xla_jit",
))  # fmt: skip

_IN_OPTIMIZER = "It belongs into optimizer_params."
_IN_POLICY = "It belongs into lr_policy_params."
_OF_FROM_CONFIG = "It is an argument of from_config, not a key of the config."
_OF_OPTIMIZE = "It is an argument of optimize, not a key of the config."

HINTS: dict[str, str] = {
    **dict.fromkeys(("loss_scale", "automatic_loss_scaling"), "It became loss_scaling."),
    **dict.fromkeys(("clip_gradients", "clip_norm"), "In a config it is max_grad_norm."),
    **dict.fromkeys(("on_horovod", "horovod"), "In a config it is use_horovod."),
    **dict.fromkeys(("batch_size", "batch_size_per_worker"), "It is batch_size_per_gpu."),
    **dict.fromkeys(("epochs", "epoch"), "It is num_epochs."),
    **dict.fromkeys(("steps", "last_step", "num_steps"), "It is max_steps."),
    **dict.fromkeys(("larc_eta", "larc_mode", "min_update"), "It belongs into larc_params."),
    **dict.fromkeys(("momentum", "beta1", "beta2", "epsilon"), _IN_OPTIMIZER),
    **dict.fromkeys(("decay_steps", "warmup_steps", "begin_decay_at", "min_lr"), _IN_POLICY),
    **dict.fromkeys(("learning_rate", "lr"), "Give lr_policy_params a learning_rate."),
    "weight_decay": "It belongs into optimizer_params, or regularizer_params has the scale.",
    **dict.fromkeys(("dataset_size", "workers", "as_shipped"), _OF_FROM_CONFIG),
    **dict.fromkeys(
        ("regularize", "skip_update_ph", "model", "global_step", "all_reduce", "summary_writer"),
        _OF_OPTIMIZE,
    ),
    **dict.fromkeys(
        ("train_params", "eval_params", "infer_params", "base_params", "interactive_infer_params"),
        "Merge it into the config beforehand: {**base_params, **train_params}.",
    ),
}


def training_params(config: Mapping[str, object]) -> dict[str, Any]:
    """Return the training keys of a config, validated and completed with defaults, as a new dict.

    A dtype name is converted to a dtype.

    Raises:
        TypeError: The config is not a dict.
        ValueError: A key is unknown or missing, or its value is of another type.
    """
    if not isinstance(config, Mapping):
        raise InvalidTypeError(f"A config is a dict, not {show_value(config)}.")
    params = {name: value for name, value in config.items() if name not in UNRELATED_KEYS}
    dtype = params.get("dtype")
    if isinstance(dtype, str) and dtype in ("float16", "float32"):
        params["dtype"] = as_dtype(dtype)
    check_params(params, REQUIRED, OPTIONAL, HINTS)
    return {**DEFAULTS, **params}
