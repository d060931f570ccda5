"""Names of TensorFlow that `thalweg.tf` lacks, with replacements."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from thalweg.v1.missing import INSTEAD as of_version_1
from thalweg.v1.missing import not_provided as refusal

_TORCH = "call torch for it: torch's functions take the tensors of thalweg.tf, in graph mode too"
_READ = "read the file in Python, and use Dataset.from_generator"

INSTEAD = {
    "Module": "use torch.nn.Module",
    "TensorArray": "use a Python list and tf.stack in eager mode, tf.map_fn or tf.scan in a graph",
    "audio": "use torchaudio",
    "autograph": "nothing is traced: Python runs as it is written",
    "config": "use torch.cuda and torch.set_num_threads",
    "data.FixedLengthRecordDataset": _READ,
    "data.TFRecordDataset": _READ,
    "data.TextLineDataset": _READ,
    "distribute.TPUStrategy": "there are no TPUs in torch without torch_xla",
    "distribute.experimental": "use tf.distribute.MultiWorkerMirroredStrategy, under torchrun",
    "distribute.ParameterServerStrategy": "use tf.distribute.MirroredStrategy, under torchrun",
    "distribute.DistributedDataset": "use torch.utils.data.distributed.DistributedSampler",
    "estimator": "use tf.keras.Model",
    "feature_column": "use tf.keras.layers, or torch.nn.Embedding",
    "hub": "use torch.hub",
    "image": "use torchvision.transforms",
    "io.read_file": "use Python's open",
    "io.write_file": "use Python's open",
    "lite": "use torch.export",
    "lookup": "use a dict",
    "profiler": "use torch.profiler",
    "queue": "use queue.Queue, or torch.utils.data",
    "ragged": "use torch.nested",
    "saved_model": "use torch.export",
    "signal": "use torch.fft",
    "sparse": "use torch.sparse",
    "strings": "use str",
    "test.create_local_cluster": "use torch.distributed",
    "tpu": "there are no TPUs in torch without torch_xla",
    "vectorized_map": "use torch.vmap",
    "nn.bidirectional_dynamic_rnn": "call torch.nn.LSTM or torch.nn.GRU on the symbolic tensor",
    "nn.dynamic_rnn": "call torch.nn.LSTM or torch.nn.GRU on the symbolic tensor",
    "nn.rnn_cell": "call torch.nn.LSTM or torch.nn.GRU on the symbolic tensor",
    "nn.static_rnn": "call torch.nn.LSTM or torch.nn.GRU on the symbolic tensor",
    "layers.conv3d_transpose": "use torch.nn.functional.conv_transpose3d",
    "layers.separable_conv2d": "use tf.nn.separable_conv2d",
    "losses.mean_pairwise_squared_error": "write it with tf.square and tf.reduce_sum",
    "summary.audio": "use torch.utils.tensorboard.SummaryWriter.add_audio",
    "summary.create_file_writer": "use tf.summary.FileWriter, or torch.utils.tensorboard",
    "contrib.data": "use tf.data",
    "contrib.slim": "use tf.contrib.layers, or tf.layers",
    "keras.backend": "use tf.keras.ops, or torch",
    "keras.optimizers.AdamW": "use thalweg.v1.contrib.opt.AdamWOptimizer",
    "compat.v1.test.create_local_cluster": "use torch.distributed",
}


def attribute_of(module: str) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module, which raises AttributeError with a replacement.

    `module` is the name of the module below `tf`, or "" for `tf` itself.
    """

    def missing(name: str) -> Any:
        raise not_provided(module, name)

    return missing


def not_provided(module: str, name: str) -> AttributeError:
    """Return an AttributeError for a missing name, with a replacement or similar names."""
    path = f"{module}.{name}" if module else name
    full = f"thalweg.tf.{module}" if module else "thalweg.tf"
    names = set(vars(sys.modules[full]))
    if not module:
        names |= set(vars(sys.modules.get("thalweg.tf.compat.v1", sys.modules[full])))
    short = path.removeprefix("compat.v1.")
    advice = (
        INSTEAD.get(path) or INSTEAD.get(short) or of_version_1.get(short) or INSTEAD.get(module)
    )
    return refusal("thalweg.tf", path, {path: advice} if advice else {}, names, _TORCH)
