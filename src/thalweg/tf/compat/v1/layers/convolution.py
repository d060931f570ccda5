"""`tf.layers.conv2d`, `conv2d_transpose`, and variants for one and three spatial dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from thalweg.tf import conv_windows, convolution, nn
from thalweg.tf.compat.v1.initializers import zeros_initializer
from thalweg.tf.compat.v1.layers.base import Layer, activation_of, as_function
from thalweg.tf.conv_windows import Windows
from thalweg.tf.convert import call


class Convolution(Layer):
    """Layer that convolves inputs with a kernel (*sizes, channels, filters) and adds a bias.

    Args:
        filters: The number of channels of the outputs.
        kernel_size: A number, or one number per spatial dimension.
        strides: As `kernel_size`.
        padding: "valid" or "same".
        data_format: "channels_last" or "channels_first".
        dilation_rate: As `kernel_size`.
        activation: A function, or its name; None for none.
        use_bias: True to add a bias.
        kernel_initializer: By default the variable scope's initializer, or Glorot's uniform one.
        bias_initializer: An initializer.
        kernel_regularizer: A function of the kernel that returns a penalty.
        bias_regularizer: A function of the bias that returns a penalty.
        activity_regularizer: A function of the outputs, divided by the size of the batch.
        kernel_constraint: A function that optimizers apply to the kernel after each update.
        bias_constraint: A function that optimizers apply to the bias after each update.
        trainable: True to train the variables.
    """

    SIZES: int

    def __init__(
        self,
        filters: int,
        kernel_size: object,
        strides: object = 1,
        padding: str = "valid",
        data_format: str = "channels_last",
        dilation_rate: object = 1,
        activation: object = None,
        use_bias: bool = True,
        kernel_initializer: object = None,
        bias_initializer: object = zeros_initializer,
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        trainable: bool = True,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(trainable, name, activity_regularizer=activity_regularizer, **kwargs)
        self.filters, self.activation, self.use_bias = (
            int(filters),
            activation_of(activation),
            use_bias,
        )
        self.windows = Windows.of(strides, padding, dilation_rate, data_format, self.SIZES)
        first = self.windows.channels_first
        self.kernel_size = conv_windows.spatial(kernel_size, self.SIZES, first, "kernel_size")
        self._of_kernel = (kernel_initializer, kernel_regularizer, True, kernel_constraint)
        self._of_bias = (bias_initializer, bias_regularizer, True, bias_constraint)
        self.kernel: Any = None
        self.bias: Any = None

    def build(self, input_shape: Sequence[int | None]) -> None:
        channels = self.channels(input_shape, 1 if self.windows.channels_first else -1)
        shape = (*self.kernel_size, *self._ends(channels))
        self.kernel = self.add_weight("kernel", shape, None, *self._of_kernel)
        if self.use_bias:
            self.bias = self.add_weight("bias", (self.filters,), None, *self._of_bias)

    def _ends(self, channels: int) -> tuple[int, int]:
        """Return the last two sizes of the kernel."""
        return channels, self.filters

    def _convolved(self, inputs: Tensor) -> Tensor:
        name = f"Conv{self.SIZES}D"
        return call(conv_windows.convolve, inputs, self.kernel, self.windows, name=name)

    def call(self, inputs: Any) -> Any:
        outputs = self._convolved(inputs)
        if self.use_bias:
            first = self.windows.channels_first
            outputs = nn.bias_add(outputs, self.bias, "NC" if first else None)
        return outputs if self.activation is None else self.activation(outputs)


class Conv1D(Convolution):
    """Convolution of sequences (batch, width, channels); see `Convolution`."""

    SIZES, RANK = 1, (3, 3)


class Conv2D(Convolution):
    """Convolution of images (batch, height, width, channels); see `Convolution`."""

    SIZES, RANK = 2, (4, 4)


class Conv3D(Convolution):
    """Convolution of volumes (batch, depth, height, width, channels); see `Convolution`."""

    SIZES, RANK = 3, (5, 5)


class Conv2DTranspose(Convolution):
    """Layer that computes the input gradient of `Conv2D`, given the output gradient as input.

    The kernel is (height, width, filters, channels). See `Convolution` for the arguments; there is
    no `dilation_rate`.
    """

    SIZES, RANK = 2, (4, 4)

    def __init__(
        self,
        filters: int,
        kernel_size: object,
        strides: object = 1,
        padding: str = "valid",
        data_format: str = "channels_last",
        activation: object = None,
        use_bias: bool = True,
        kernel_initializer: object = None,
        bias_initializer: object = zeros_initializer,
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        trainable: bool = True,
        name: str | None = None,
        **kwargs: object,
    ) -> None:
        super().__init__(
            filters, kernel_size, strides, padding, data_format, 1, activation, use_bias,
            kernel_initializer, bias_initializer, kernel_regularizer, bias_regularizer,
            activity_regularizer, kernel_constraint, bias_constraint, trainable, name, **kwargs,
        )  # fmt: skip

    def _ends(self, channels: int) -> tuple[int, int]:
        return self.filters, channels

    def _convolved(self, inputs: Tensor) -> Tensor:
        return convolution.transposed(inputs, self.kernel, None, self.windows, "conv2d_transpose")


conv1d = as_function(Conv1D, "conv1d")
conv2d = as_function(Conv2D, "conv2d")
conv3d = as_function(Conv3D, "conv3d")
conv2d_transpose = as_function(Conv2DTranspose, "conv2d_transpose")
