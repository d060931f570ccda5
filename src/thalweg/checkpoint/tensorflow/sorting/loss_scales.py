"""What a dynamic loss scale remembers, by the names of `tf.train.experimental.DynamicLossScale`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thalweg.storage.stored import Stored

SCALE, STEPS = "current_loss_scale", "good_steps"
# The names of TensorFlow, of its first versions, and of Keras 3.
OF_SCALES = {SCALE: SCALE, STEPS: STEPS, "num_good_steps": STEPS}
OF_KERAS_3 = {"dynamic_scale": SCALE, "step_counter": STEPS}


def scaled_by(scale: Mapping[str, Stored]) -> tuple[str, ...]:
    """What should be known of going on without it, in words."""
    if SCALE not in scale or scale[SCALE].shape:
        return ()
    return (
        f"the loss was scaled, at the end by {scale[SCALE].array().item()}; here it is not, unless"
        " restore(..., loss_scale=DynamicLossScale()) takes it over",
    )


def scale_in(tensors: Mapping[str, Stored]) -> dict[str, Stored]:
    """The two variables by which a Saver keeps a loss scale; {} if they are not there."""
    found = {name: tensors[name] for name in (SCALE, STEPS) if name in tensors}
    kinds = [(each.dtype, each.shape) for each in found.values()]
    return found if kinds == [("F32", ()), ("I64", ())] else {}
