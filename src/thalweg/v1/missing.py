"""Names of `tf.compat.v1` that `thalweg.v1` lacks, with their replacements."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

from thalweg.errors import did_you_mean

_TORCH = "call torch for it: torch's functions take symbolic tensors and record themselves"
_ELSEWHERE = "it has what training code around an optimizer uses; for the rest"
_LAYER = "use thalweg.tf.layers, or call a torch.nn layer on the symbolic tensor"
_REBUILD = (
    "a graph holds Python functions, which no file can: build it by the same Python code, and"
    " restore its variables with train.Saver"
)
_NO_REWRITE = (
    "no graph is rewritten: cast what is to be of 16 bits, or use torch.autocast, and put"
    " train.experimental.MixedPrecisionLossScaleOptimizer around the optimizer"
)
_READER = "use torch.utils.data, and feed the batches"
_FACADE = "thalweg.tf.compat.v1 has it"

# Names that are not TensorFlow's, which `thalweg scan --names` does not list.
_OF_OTHER_PACKAGES = {
    "train.RuleOptimizer": "use thalweg.keras.optimizers.RuleOptimizer, in graphs too"
}
INSTEAD = {
    **dict.fromkeys((
        "ConfigProto", "GPUOptions", "RunOptions", "RunMetadata", "FIFOQueue", "app", "device",
        "disable_resource_variables", "enable_resource_variables", "flags", "gfile", "logging",
        "make_template", "print", "Print", "py_func", "py_function", "to_float", "to_int32",
    ), _FACADE),
    **dict.fromkeys((
        "FixedLenFeature", "TFRecordReader", "data", "python_io", "train.Example", "train.batch",
        "train.match_filenames_once", "train.shuffle_batch", "train.string_input_producer",
        "contrib.data", "contrib.training",
    ), _READER),
    **dict.fromkeys((
        "estimator", "contrib.estimator", "contrib.learn",
    ), "call Session.run in a loop"),
    "Module": "use torch.nn.Module",
    "SparseTensor": "use IndexedSlices, or torch.sparse",
    "TensorArray": "use a Python list and torch.stack",
    "argmax": "use torch.argmax, with dim for axis",
    "clip_by_global_norm": "use thalweg.tf.clip_by_global_norm",
    "clip_by_norm": "use thalweg.tf.clip_by_norm",
    "clip_by_value": "use torch.clamp",
    "concat": "use torch.cat(values, dim)",
    "config": "use torch.cuda and torch.set_num_threads",
    "contrib": "thalweg.v1.contrib has framework, layers and opt",
    "distribute": "use thalweg.distribute",
    "expand_dims": "use torch.unsqueeze(x, dim)",
    "feature_column": "use torch.nn.Embedding",
    "image": "use torchvision.transforms",
    "initializers": "use thalweg.tf.compat.v1.initializers",
    "io": "use Python's open",
    "keras": "use thalweg.keras for the optimizers, and thalweg.tf.keras for all of it",
    "layers": _LAYER,
    "losses": "use thalweg.tf.compat.v1.losses, or torch.nn.functional",
    "lookup": "use a dict",
    "math": "use torch's functions",
    "matmul": "use torch.matmul, or @",
    "metrics": "use thalweg.tf.compat.v1.metrics",
    "nn": "use thalweg.tf.nn, or torch.nn.functional",
    "nn.softmax_cross_entropy_with_logits": "use thalweg.tf.nn",
    "placeholder_v2": "use placeholder",
    "python": "it was never public; look for the name in thalweg.v1",
    "random": "use random_normal and random_uniform",
    "reduce_max": "use torch.amax, with dim for axis",
    "reduce_mean": "use torch.mean, with dim for axis",
    "reduce_min": "use torch.amin, with dim for axis",
    "reduce_sum": "use torch.sum, with dim for axis",
    "reshape": "use torch.reshape",
    "saved_model": "use torch.export",
    "shape": "use x.shape",
    "sparse": "use torch.sparse",
    "split": "use torch.split: it takes sizes, not a number of parts",
    "squeeze": "use torch.squeeze",
    "stack": "use torch.stack",
    "strings": "use str",
    "test": "use pytest",
    "tile": "use torch.tile",
    "transpose": "use torch.permute",
    "train.ProfilerHook": "use torch.profiler",
    "train.Server": "use torch.distributed",
    "train.Supervisor": "use MonitoredTrainingSession",
    "train.WorkerSessionCreator": "workers are threads in the session of the chief",
    "train.experimental.enable_mixed_precision_graph_rewrite": _NO_REWRITE,
    "train.experimental.disable_mixed_precision_graph_rewrite": _NO_REWRITE,
    "train.export_meta_graph": _REBUILD,
    "train.import_meta_graph": _REBUILD,
    "train.replica_device_setter": "use torch.distributed",
    "train.warm_start": "use init_from_checkpoint",
    "train.write_graph": "nothing reads it: leave it out",
    "contrib.cudnn_rnn": "call torch.nn.LSTM or torch.nn.GRU on the symbolic tensor",
    "contrib.distribute": "use thalweg.distribute",
    "contrib.framework": "thalweg.v1 has get_variable and variable_scope",
    "contrib.lookup": "use a dict",
    "contrib.losses": "use thalweg.tf.compat.v1.losses",
    "contrib.metrics": "use thalweg.tf.compat.v1.metrics",
    "contrib.mixed_precision": "thalweg.openseq2seq.optimizers has MixedPrecisionOptimizerWrapper",
    "contrib.opt.ScipyOptimizerInterface": "use scipy.optimize",
    "contrib.rnn": "call torch.nn.LSTM or torch.nn.GRU on the symbolic tensor",
    "contrib.seq2seq": "write it with torch",
    "contrib.slim": "use thalweg.tf.layers",
    "contrib.summary": "use thalweg.tf.summary",
    "contrib.tpu": "there are no TPUs in torch without torch_xla",
}  # fmt: skip


def attribute_of(module: str) -> Callable[[str], Any]:
    """Return a module's `__getattr__`, which raises an AttributeError that names a replacement.

    Args:
        module: Name of the module below `thalweg.v1`; "" for `thalweg.v1` itself.
    """

    def missing(name: str) -> object:
        path = f"{module}.{name}" if module else name
        full = f"thalweg.v1.{module}" if module else "thalweg.v1"
        attributes = vars(sys.modules[full]).items()
        # Imported modules are attributes of a module, too, and must not be suggested.
        names = [key for key, entry in attributes if not isinstance(entry, ModuleType)]
        replacements = {**INSTEAD, **_OF_OTHER_PACKAGES}
        raise not_provided("thalweg.v1", path, replacements, names, _TORCH)

    return missing


def not_provided(
    facade: str, path: str, replacements: Mapping[str, str], names: Iterable[str], default_hint: str
) -> AttributeError:
    """Return the AttributeError for a name that a package lacks; the caller raises the error.

    The message has the first hint that exists: the name's replacement, a similar existing name,
    `default_hint`.

    Args:
        facade: The module that users import.
        path: The missing name, relative to `facade`.
        replacements: {missing path: advice}.
        names: The existing names.
        default_hint: Advice if there is neither a replacement nor a similar name.
    """
    name = path.rpartition(".")[-1]
    # Tools probe for names such as `__wrapped__`, and show no advice.
    if name.startswith("_"):
        return AttributeError(f"module {facade!r} has no attribute {path!r}", name=name)
    advice = replacements.get(path)
    if advice is None:
        public = [key for key in names if not key.startswith("_")]
        guess = f"{name}Optimizer"
        hint = f"Did you mean '{guess}'?" if guess in public else did_you_mean(name, public)
        advice = hint or f"{_ELSEWHERE} {default_hint}"
    end = "" if advice.endswith("?") else "."
    return AttributeError(f"{facade} has no '{path}'; {advice}{end}", name=name)
