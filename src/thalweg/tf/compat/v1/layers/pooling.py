"""`tf.layers.max_pooling2d`, `average_pooling2d`, and variants for one and three dimensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thalweg.tf import conv_windows, convolution
from thalweg.tf.compat.v1.layers.base import Layer, as_function


class Pooling(Layer):
    """Layer that reduces the elements in each window to one element.

    Args:
        pool_size: A number, or one number per spatial dimension.
        strides: As `pool_size`.
        padding: "valid" or "same".
        data_format: "channels_last" or "channels_first".
    """

    SIZES: int
    FUNCTION: Callable[..., Any]
    OP_NAME: str

    def __init__(
        self,
        pool_size: object,
        strides: object,
        padding: str = "valid",
        data_format: str = "channels_last",
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.pool_size, self.strides = pool_size, strides
        self.padding, self.data_format = padding, data_format

    def call(self, inputs: object) -> Any:
        options = (self.pool_size, self.strides, self.padding, self.data_format)
        function = type(self).FUNCTION
        return convolution.pool(function, inputs, *options, self.OP_NAME, self.SIZES)


def _pooling_class(
    class_name: str, sizes: int, function: Callable[..., object], op: str
) -> type[Pooling]:
    rank = sizes + 2
    body = {"SIZES": sizes, "RANK": (rank, rank), "FUNCTION": staticmethod(function), "OP_NAME": op}
    return type(
        class_name, (Pooling,), {**body, "__doc__": Pooling.__doc__, "__module__": __name__}
    )


MaxPooling1D = _pooling_class("MaxPooling1D", 1, conv_windows.largest, "MaxPool")
MaxPooling2D = _pooling_class("MaxPooling2D", 2, conv_windows.largest, "MaxPool")
MaxPooling3D = _pooling_class("MaxPooling3D", 3, conv_windows.largest, "MaxPool3D")
AveragePooling1D = _pooling_class("AveragePooling1D", 1, conv_windows.mean, "AvgPool")
AveragePooling2D = _pooling_class("AveragePooling2D", 2, conv_windows.mean, "AvgPool")
AveragePooling3D = _pooling_class("AveragePooling3D", 3, conv_windows.mean, "AvgPool3D")

max_pooling1d = as_function(MaxPooling1D, "max_pooling1d")
max_pooling2d = as_function(MaxPooling2D, "max_pooling2d")
max_pooling3d = as_function(MaxPooling3D, "max_pooling3d")
average_pooling1d = as_function(AveragePooling1D, "average_pooling1d")
average_pooling2d = as_function(AveragePooling2D, "average_pooling2d")
average_pooling3d = as_function(AveragePooling3D, "average_pooling3d")
