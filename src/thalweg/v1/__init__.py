"""TensorFlow 1, as in `tf.compat.v1`: graph mode, optimizers in `train` and `contrib.opt`."""

from thalweg import _graph
from thalweg._graph import *  # noqa: F403
from thalweg._graph import tuple_ as tuple
from thalweg._graph.eager_or_graph import IndexedSlices
from thalweg._graph.gradients import GradientTape
from thalweg.errors import CancelledError, FailedPreconditionError, InvalidArgumentError
from thalweg.v1 import contrib, dtypes, summary, train, training_ops, variables
from thalweg.v1.dtypes import *  # noqa: F403
from thalweg.v1.missing import attribute_of
from thalweg.v1.variables import *  # noqa: F403

__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    *_graph.__all__, *dtypes.__all__, *variables.__all__, "CancelledError",
    "FailedPreconditionError", "GradientTape", "IndexedSlices", "InvalidArgumentError", "contrib",
    "summary", "train", "training_ops", "tuple",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted({*__all__})


__getattr__ = attribute_of("")
