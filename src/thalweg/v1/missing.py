"""What `tf.compat.v1` had and `thalweg.v1` has not, and what to use instead."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

from thalweg.errors import did_you_mean

_TORCH = "call torch for it: torch's functions take symbolic tensors and record themselves"
_ELSEWHERE = "it has what training code around an optimizer uses; for the rest"
_LAYER = "call a torch.nn layer on the symbolic tensor"
_NO_SUMMARIES = (
    "there are no summary operations: fetch the values, and give them to"
    " torch.utils.tensorboard.SummaryWriter"
)
_BUILT_ANEW = "build the graph anew: it is Python"
_READER = "use torch.utils.data, and feed the batches"
_IGNORED = "Session ignores it: leave it out"

INSTEAD = {
    "ConfigProto": _IGNORED,
    "GPUOptions": _IGNORED,
    "RunOptions": _IGNORED,
    "RunMetadata": _IGNORED,
    "FixedLenFeature": _READER,
    "FIFOQueue": "use queue.Queue, or torch.utils.data",
    "Module": "use torch.nn.Module",
    "SparseTensor": "use IndexedSlices, or torch.sparse",
    "TFRecordReader": _READER,
    "TensorArray": "use a Python list and torch.stack",
    "app": "call main(): there are no flags to parse",
    "argmax": "use torch.argmax, with dim for axis",
    "case": "use torch.where",
    "clip_by_global_norm": "use thalweg.tf.clip_by_global_norm",
    "clip_by_norm": "use thalweg.tf.clip_by_norm",
    "clip_by_value": "use torch.clamp",
    "concat": "use torch.cat(values, dim)",
    "cond": "use torch.where",
    "config": "use torch.cuda and torch.set_num_threads",
    "contrib": "thalweg.v1.contrib has opt and layers",
    "data": _READER,
    "device": "move tensors with .to(device)",
    "distribute": "use thalweg.distribute",
    "disable_resource_variables": "leave it out: all variables are resource variables",
    "enable_resource_variables": "leave it out: all variables are resource variables",
    "estimator": "call Session.run in a loop",
    "expand_dims": "use torch.unsqueeze(x, dim)",
    "feature_column": "use torch.nn.Embedding",
    "flags": "use argparse",
    "gfile": "use Python's open and pathlib",
    "image": "use torchvision.transforms",
    "initializers": "use zeros_initializer, glorot_uniform_initializer and so on",
    "io": "use Python's open",
    "keras": "use thalweg.keras for the optimizers, and thalweg.tf.keras for all of it",
    "layers": _LAYER,
    "logging": "use Python's logging",
    "losses": "write it with torch.nn.functional",
    "lookup": "use a dict",
    "make_template": "use variable_scope with reuse",
    "map_fn": "use torch.vmap",
    "math": "use torch's functions",
    "matmul": "use torch.matmul, or @",
    "metrics": "compute them in Python from what Session.run returns",
    "nn": "use torch.nn.functional",
    "nn.softmax_cross_entropy_with_logits": "use thalweg.tf.nn",
    "placeholder_v2": "use placeholder",
    "print": "fetch the value with Session.run, and print it",
    "Print": "fetch the value with Session.run, and print it",
    "py_func": "use thalweg.graph.operation",
    "py_function": "use thalweg.graph.operation",
    "python": "it was never public; look for the name in thalweg.v1",
    "python_io": _READER,
    "random": "use random_normal and random_uniform",
    "reduce_max": "use torch.amax, with dim for axis",
    "reduce_mean": "use torch.mean, with dim for axis",
    "reduce_min": "use torch.amin, with dim for axis",
    "reduce_sum": "use torch.sum, with dim for axis",
    "reshape": "use torch.reshape",
    "saved_model": "use torch.export",
    "scan": "use a loop over torch's functions",
    "shape": "use x.shape",
    "sparse": "use torch.sparse",
    "split": "use torch.split: it takes sizes, not a number of parts",
    "squeeze": "use torch.squeeze",
    "stack": "use torch.stack",
    "strings": "use str",
    "summary": "use torch.utils.tensorboard.SummaryWriter",
    "test": "use pytest",
    "tile": "use torch.tile",
    "to_float": "use cast(x, float32)",
    "to_int32": "use cast(x, int32)",
    "transpose": "use torch.permute",
    "while_loop": "use a loop over torch's functions, or over Session.run",
    "train.Example": _READER,
    "train.ProfilerHook": "use torch.profiler",
    "train.Server": "use torch.distributed",
    "train.SummarySaverHook": _NO_SUMMARIES,
    "train.Supervisor": "use MonitoredTrainingSession",
    "train.WorkerSessionCreator": "workers are threads in the session of the chief",
    "train.batch": _READER,
    "train.export_meta_graph": _BUILT_ANEW,
    "train.import_meta_graph": _BUILT_ANEW,
    "train.match_filenames_once": _READER,
    "train.replica_device_setter": "use torch.distributed",
    "train.shuffle_batch": _READER,
    "train.string_input_producer": _READER,
    "train.warm_start": "use init_from_checkpoint",
    "train.write_graph": "nothing reads it: leave it out",
    "contrib.cudnn_rnn": "call torch.nn.LSTM or torch.nn.GRU on the symbolic tensor",
    "contrib.data": _READER,
    "contrib.distribute": "use thalweg.distribute",
    "contrib.estimator": "call Session.run in a loop",
    "contrib.framework": "thalweg.v1 has get_variable, variable_scope and train's global step",
    "contrib.layers.batch_norm": _LAYER,
    "contrib.layers.conv2d": _LAYER,
    "contrib.layers.fully_connected": _LAYER,
    "contrib.layers.optimize_loss": "thalweg.openseq2seq.optimizers has optimize_loss",
    "contrib.layers.xavier_initializer": "use glorot_uniform_initializer",
    "contrib.learn": "call Session.run in a loop",
    "contrib.lookup": "use a dict",
    "contrib.losses": "write it with torch.nn.functional",
    "contrib.metrics": "compute them in Python from what Session.run returns",
    "contrib.mixed_precision": "thalweg.openseq2seq.optimizers has MixedPrecisionOptimizerWrapper",
    "contrib.opt.ScipyOptimizerInterface": "use scipy.optimize",
    "contrib.rnn": "call torch.nn.LSTM or torch.nn.GRU on the symbolic tensor",
    "contrib.seq2seq": "write it with torch",
    "contrib.slim": _LAYER,
    "contrib.summary": "use torch.utils.tensorboard.SummaryWriter",
    "contrib.tpu": "there are no TPUs in torch without torch_xla",
    "contrib.training": _READER,
}


def attribute_of(module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module: an AttributeError that says what to use instead.

    Args:
        module: The name of the module below `thalweg.v1`, "" for that itself.
    """

    def missing(name: str) -> Any:
        path = f"{module}.{name}" if module else name
        full = f"thalweg.v1.{module}" if module else "thalweg.v1"
        there = vars(sys.modules[full]).items()
        names = [each for each, value in there if not isinstance(value, ModuleType)]
        raise not_provided("thalweg.v1", path, INSTEAD, names, _TORCH)

    return missing


def not_provided(
    facade: str, path: str, instead: Mapping[str, str], names: Iterable[str], rest: str
) -> AttributeError:
    """The error for a name that is not there.

    Args:
        facade: The module that people import.
        path: The name below it.
        instead: What to use for which path.
        names: The names that are there, of which a near one is named if nothing else is known.
        rest: What to do for all the rest.
    """
    name = path.rpartition(".")[-1]
    if name.startswith("_"):
        return AttributeError(f"module {facade!r} has no attribute {path!r}", name=name)
    known = instead.get(path)
    if known is None:
        public = [each for each in names if not each.startswith("_")]
        whole = f"{name}Optimizer"
        hint = f"Did you mean '{whole}'?" if whole in public else did_you_mean(name, public)
        known = hint or f"{_ELSEWHERE} {rest}"
    end = "" if known.endswith("?") else "."
    return AttributeError(f"{facade} has no '{path}'; {known}{end}", name=name)
