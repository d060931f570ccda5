"""TensorFlow's names over torch: `import thalweg.tf as tf` instead of `import tensorflow as tf`.

It covers what training code uses around an optimizer. Functions take TensorFlow's arguments and
torch's tensors, in eager mode and in graph mode. Names of TensorFlow 1 are here as well as in
`tf.compat.v1`. The error of a missing name suggests a replacement.

Example:
    >>> import thalweg.tf as tf
    >>> w = tf.Variable([1.0, 2.0])
    >>> with tf.GradientTape() as tape:
    ...     loss = tf.reduce_sum(tf.square(w))
    >>> opt = tf.keras.optimizers.SGD(learning_rate=0.1)
    >>> _ = opt.apply_gradients([(tape.gradient(loss, w), w)])
    >>> w.numpy()
    array([0.8, 1.6], dtype=float32)
"""

import sys as _sys

from thalweg._base.tensor_patching import lend_for_good as _lend_for_good
from thalweg._graph import (
    Graph,
    Operation,
    constant_initializer,
    executing_eagerly,
    gradients,
    ones_initializer,
    zeros_initializer,
)
from thalweg._graph import Shape as TensorShape
from thalweg._graph.gradients import GradientTape
from thalweg.autodiff import UnconnectedGradients
from thalweg.tf import (
    compat,
    data,
    debugging,
    distribute,
    errors,
    io,
    keras,
    linalg,
    math,
    nest,
    nn,
    random,
    raw_ops,
    test,
    train,
    version,
)
from thalweg.tf.array_operators import NAMES as _array_operators
from thalweg.tf.arrays import *
from thalweg.tf.checks import *
from thalweg.tf.clipping import *
from thalweg.tf.compat.deferred import FINDERS as _finders
from thalweg.tf.control import *
from thalweg.tf.convert import is_tensor
from thalweg.tf.data.spec import TensorSpec
from thalweg.tf.dtypes import *
from thalweg.tf.elementwise import *
from thalweg.tf.fallback import anything_else as __getattr__
from thalweg.tf.python_functions import *
from thalweg.tf.reductions import *
from thalweg.tf.segments import *
from thalweg.tf.slicing import *
from thalweg.tf.variables import *
from thalweg.tf.version import VERSION
from thalweg.variable import VariableAggregation, VariableSynchronization

__version__ = VERSION
newaxis = None

_finders["v2"] = lambda: _sys.modules[__name__]
_lend_for_good(_array_operators)
