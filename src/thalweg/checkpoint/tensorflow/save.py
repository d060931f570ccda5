"""`save`: write a checkpoint that TensorFlow restores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torch import Tensor

from thalweg._formats import bundle
from thalweg._formats.atomic_write import Path, Progress
from thalweg._formats.bundle import ObjectGraph
from thalweg._formats.stored_tensor import StoredTensor
from thalweg.checkpoint.tensorflow.export.export_contents import copy_contents
from thalweg.checkpoint.tensorflow.export.layouts import as_objects, as_saver
from thalweg.checkpoint.tensorflow.mapping.mapped_tensors import TargetTensors
from thalweg.checkpoint.tensorflow.mapping.mapping_rules import Rules

Kind = Literal["tf2", "tf1"]


def save(
    prefix: Path,
    optimizer: object,
    variables: object,
    rules: object = None,
    kind: Kind = "tf2",
    *,
    global_step: object = None,
    averages: Mapping[str, Tensor] | None = None,
    progress: Progress | None = None,
) -> None:
    """Write variables and an optimizer as a TensorFlow checkpoint.

    A "tf1" checkpoint is restored by `tf.train.Saver`. A "tf2" checkpoint is restored by
    `tf.train.Checkpoint(model=..., optimizer=...)`, with the equally named class of
    `tf.compat.v1.train` or `tf.keras.optimizers.legacy`. Rules of `restore` are applied backwards.
    Without rules, `layer1.weight` becomes `layer1/weight`, with "tf2" `model/layer1/weight`.

    Args:
        prefix: The path of the checkpoint for TensorFlow, such as "run7/ckpt-5".
        optimizer: An optimizer of `thalweg.v1` or `thalweg.keras`, or None.
        variables: A module, a dictionary of variables by name, or a list of variables.
        rules: Optional. The path of a rules file, or a dictionary.
        kind: "tf2" or "tf1".
        global_step: Optional. The variable that counts steps, saved as "global_step".
        averages: Optional. {name of a variable: moving average}; only with "tf1".
        progress: `progress(bytes_written, total_bytes)` is called during writing.

    Raises:
        CheckpointMismatchError: A variable has no name in TensorFlow, or two share a name. Nothing
            was written.
        InvalidTypeError: TensorFlow has no checkpoint of this class of optimizer.
        CheckpointWriteError: A file cannot be written.
    """
    tensors, graph = tensors_of(optimizer, variables, rules, kind, global_step, averages)
    bundle.write(prefix, tensors, graph, progress=progress)


def tensors_of(
    optimizer: object,
    variables: object,
    rules: object,
    kind: Kind,
    global_step: object = None,
    averages: Mapping[str, Tensor] | None = None,
) -> tuple[dict[str, StoredTensor], ObjectGraph | None]:
    """Return ({name: tensor} that `save` writes, object graph or None). Tensors are copies.

    The graph is None for "tf1". Arguments and errors are as for `save`.
    """
    contents = copy_contents(
        optimizer, TargetTensors.of(variables), Rules.of(rules), kind, global_step, averages
    )
    return as_saver(contents) if kind == "tf1" else as_objects(contents)
