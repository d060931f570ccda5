"""`tf.compat.v1`: TensorFlow 1, with graphs and sessions, and all of `tf` that did not change.

In code for TensorFlow 1, replace `import tensorflow as tf` by `import thalweg.tf.compat.v1 as tf`.

The first call of a function of this module begins graph mode: new constants and variables belong to
the default graph, as in TensorFlow 1. There are two exceptions:

* The program has chosen a mode: `disable_v2_behavior` and `disable_eager_execution` begin graph
  mode, `enable_v2_behavior` and `enable_eager_execution` eager mode, at any time, for all threads.
* thalweg has computed eagerly before, or an argument is a torch tensor: the program stays in eager
  mode, as in TensorFlow 2, and `placeholder` raises an error.

Example:
    >>> import thalweg.tf.compat.v1 as tf
    >>> tf.disable_v2_behavior()  # in a program of its own there is no need to
    >>> a = tf.constant(2)
    >>> with tf.Session() as session:
    ...     session.run(a + tf.constant(3))
    np.int32(5)
    >>> tf.enable_v2_behavior()
"""

from typing import Any as _Any

import thalweg.tf.compat as compat
import thalweg.tf.data as data
import thalweg.tf.io as io
import thalweg.tf.keras as keras
from thalweg._graph import Shape as TensorShape
from thalweg._graph import executing_eagerly as executing_eagerly_outside_functions
from thalweg._graph import tuple_ as tuple
from thalweg._graph.compat_v1_names import *
from thalweg._graph.gradients import GradientTape
from thalweg.autodiff import UnconnectedGradients
from thalweg.tf import debugging, distribute, dtypes, errors, linalg, math, nest, random, raw_ops
from thalweg.tf.arrays import *
from thalweg.tf.checks import *
from thalweg.tf.clipping import *
from thalweg.tf.compat import behavior as _behavior
from thalweg.tf.compat import legacy as _legacy
from thalweg.tf.compat import removed_in_v2 as _dropped
from thalweg.tf.compat.behavior import *
from thalweg.tf.compat.ignored_settings import *
from thalweg.tf.compat.legacy import *
from thalweg.tf.compat.legacy import Variable
from thalweg.tf.compat.removed_in_v2 import *
from thalweg.tf.compat.v1 import (
    app,
    contrib,
    examples,
    flags,
    gfile,
    initializers,
    layers,
    logging,
    losses,
    metrics,
    nn,
    summary,
    test,
    train,
    version,
)
from thalweg.tf.compat.v1.initializers import (
    glorot_normal,
    he_normal,
    he_uniform,
    lecun_normal,
    lecun_uniform,
)
from thalweg.tf.compat.v1.initializers import glorot_normal as glorot_normal_initializer
from thalweg.tf.compat.v1.initializers import orthogonal as orthogonal_initializer
from thalweg.tf.compat.v1.initializers import (
    uniform_unit_scaling as uniform_unit_scaling_initializer,
)
from thalweg.tf.compat.v1.initializers import variance_scaling as variance_scaling_initializer
from thalweg.tf.compat.v1.logging import get_logger
from thalweg.tf.compat.v1.version import VERSION
from thalweg.tf.control import *
from thalweg.tf.control import no_op
from thalweg.tf.convert import is_tensor
from thalweg.tf.data.spec import TensorSpec
from thalweg.tf.dtypes import *
from thalweg.tf.elementwise import *
from thalweg.tf.missing import attribute_of as _attribute_of
from thalweg.tf.python_functions import numpy_function, print, py_function
from thalweg.tf.random import normal as random_normal
from thalweg.tf.random import set_seed as set_random_seed
from thalweg.tf.random import shuffle as random_shuffle
from thalweg.tf.random import truncated_normal
from thalweg.tf.random import uniform as random_uniform
from thalweg.tf.segments import *
from thalweg.tf.slicing import *
from thalweg.tf.variables import IndexedSlices, SparseTensor, Tensor
from thalweg.v1.summary.protos import PUBLIC as _MESSAGES
from thalweg.v1.train.queues import FIFOQueue, QueueBase, RandomShuffleQueue
from thalweg.v1.variables import VariableAggregation, VariableSynchronization, get_variable

pad = _dropped.pad  # not that of `slicing`
where = _legacy.where  # not that of `elementwise`

newaxis = None
__version__ = VERSION
_behavior.have_all_begin_graphs(globals())  # those that stand above
_missing = _attribute_of("compat.v1")


def __getattr__(name: str) -> _Any:
    return getattr(summary, name) if name in _MESSAGES else _missing(name)
