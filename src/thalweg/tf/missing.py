"""What the facade does not have, and what to use instead."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from thalweg.v1.missing import INSTEAD as of_version_1
from thalweg.v1.missing import not_provided as refusal

_TORCH = "call torch for it: torch's functions take the tensors of thalweg.tf, in graph mode too"

INSTEAD = {
    "Module": "use torch.nn.Module",
    "TensorArray": "use a Python list and tf.stack",
    "SparseTensor": "use tf.IndexedSlices, or torch.sparse",
    "audio": "use torchaudio",
    "autograph": "nothing is traced: Python runs as it is written",
    "case": "use if and elif: nothing is traced",
    "cond": "use if, or tf.where: nothing is traced",
    "config": "use torch.cuda and torch.set_num_threads",
    "custom_gradient": "use torch.autograd.Function",
    "data": "use torch.utils.data",
    "debugging": "use Python's assert, and torch.autograd.detect_anomaly",
    "device": "use torch.device(...), which is a context manager too",
    "distribute.TPUStrategy": "there are no TPUs in torch without torch_xla",
    "distribute.experimental": "use tf.distribute.MultiWorkerMirroredStrategy, under torchrun",
    "distribute.ParameterServerStrategy": "use tf.distribute.MirroredStrategy, under torchrun",
    "distribute.DistributedDataset": "use torch.utils.data.distributed.DistributedSampler",
    "estimator": "use tf.keras.Model",
    "feature_column": "use tf.keras.layers, or torch.nn.Embedding",
    "hub": "use torch.hub",
    "image": "use torchvision.transforms",
    "io": "use Python's open and torch.load",
    "lite": "use torch.export",
    "lookup": "use a dict",
    "map_fn": "use torch.vmap, or a loop",
    "nest": "use torch.utils._pytree, or a loop",
    "print": "use print",
    "profiler": "use torch.profiler",
    "py_function": "call the function: nothing is traced",
    "numpy_function": "call the function: nothing is traced",
    "queue": "use queue.Queue, or torch.utils.data",
    "ragged": "use torch.nested",
    "raw_ops": "use torch.ops",
    "saved_model": "use torch.export",
    "signal": "use torch.fft",
    "sparse": "use torch.sparse",
    "strings": "use str",
    "summary": "use torch.utils.tensorboard.SummaryWriter",
    "test": "use pytest",
    "tpu": "there are no TPUs in torch without torch_xla",
    "vectorized_map": "use torch.vmap",
    "version": "use thalweg.__version__",
    "while_loop": "use while: nothing is traced",
    "nn.conv2d": "use tf.keras.layers.Conv2D, or torch.nn.functional.conv2d (channels first)",
    "nn.max_pool": "use tf.keras.layers, or torch.nn.functional.max_pool2d (channels first)",
    "nn.max_pool2d": "use tf.keras.layers, or torch.nn.functional.max_pool2d (channels first)",
    "nn.avg_pool": "use tf.keras.layers, or torch.nn.functional.avg_pool2d (channels first)",
    "nn.batch_normalization": "use tf.keras.layers, or torch.nn.functional.batch_norm",
    "keras.optimizers.AdamW": "use thalweg.v1.contrib.opt.AdamWOptimizer",
    "keras.backend": "use tf.keras.ops, or torch",
    "compat.v1.layers": "call a torch.nn layer on the symbolic tensor",
    "compat.v1.losses": "write it with tf.reduce_mean and tf.nn",
    "compat.v1.metrics": "write it with tf.reduce_mean",
    "compat.v1.py_func": "use thalweg.graph.operation",
    "compat.v1.ConfigProto": "Session ignores it: leave it out",
    "compat.v1.GPUOptions": "Session ignores it: leave it out",
}


def attribute_of(module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module: an AttributeError that says what to use instead.

    Args:
        module: The name of the module below `tf`, "" for `tf` itself.
    """

    def missing(name: str) -> Any:
        raise not_provided(module, name)

    return missing


def not_provided(module: str, name: str) -> AttributeError:
    """The error for a name that is not there."""
    path = f"{module}.{name}" if module else name
    full = f"thalweg.tf.{module}" if module else "thalweg.tf"
    names = set(vars(sys.modules[full]))
    if not module:
        names |= set(vars(sys.modules.get("thalweg.tf.compat.v1", sys.modules[full])))
    own = path.removeprefix("compat.v1.")
    known = INSTEAD.get(path) or INSTEAD.get(own) or of_version_1.get(own)
    return refusal("thalweg.tf", path, {path: known} if known else {}, names, _TORCH)
