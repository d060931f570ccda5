"""State of a dynamic loss scale, by TensorFlow's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from thalweg.checkpoint.tensorflow.detection.scalars import INTEGERS

if TYPE_CHECKING:
    from thalweg._formats.stored_tensor import StoredTensor

SCALE, STEPS = "current_loss_scale", "good_steps"
# The names of TensorFlow, of its first versions, and of Keras 3.
OF_SCALES = {SCALE: SCALE, STEPS: STEPS, "num_good_steps": STEPS}
OF_KERAS_3 = {"dynamic_scale": SCALE, "step_counter": STEPS}


def scaled_by(scale: Mapping[str, StoredTensor]) -> tuple[str, ...]:
    """Return a note about continuing without the loss scale, or () if there is none."""
    if not scale:
        return ()
    return (
        f"the loss was scaled, at the end by {scale[SCALE].array().item()}; here it is not, unless"
        " restore(..., loss_scale=DynamicLossScale()) takes it over",
    )


def if_valid(scale: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return a copy of the entries if dtypes and shapes are those of a loss scale, else {}."""
    is_scale = SCALE in scale and scale[SCALE].dtype == "F32"
    are_counts = all(tensor.dtype in INTEGERS for name, tensor in scale.items() if name != SCALE)
    are_scalars = not any(tensor.shape for tensor in scale.values())
    return dict(scale) if is_scale and are_counts and are_scalars else {}


def scale_in(stored_tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the two variables that a Saver stores of a loss scale; {} if they are missing."""
    scale = {name: stored_tensors[name] for name in (SCALE, STEPS) if name in stored_tensors}
    return if_valid(scale) if len(scale) == 2 else {}
