"""`tf.compat.v1`: graphs and sessions, and everything of `tf` that did not change."""

from thalweg.autodiff import GradientTape
from thalweg.graph import (
    AUTO_REUSE,
    Graph,
    GraphKeys,
    InteractiveSession,
    Operation,
    Session,
    VariableScope,
    add_to_collection,
    assign,
    assign_add,
    assign_sub,
    constant_initializer,
    disable_eager_execution,
    enable_eager_execution,
    executing_eagerly,
    get_collection,
    get_collection_ref,
    get_default_graph,
    get_default_session,
    get_variable_scope,
    global_variables,
    global_variables_initializer,
    glorot_uniform_initializer,
    gradients,
    initialize_all_variables,
    is_variable_initialized,
    local_variables,
    local_variables_initializer,
    ones_initializer,
    placeholder,
    placeholder_with_default,
    random_normal_initializer,
    random_uniform_initializer,
    report_uninitialized_variables,
    reset_default_graph,
    trainable_variables,
    truncated_normal_initializer,
    variable_scope,
    variables_initializer,
    zeros_initializer,
)
from thalweg.graph import tuple_ as tuple
from thalweg.tf import keras, linalg, math, random, train
from thalweg.tf.arrays import *
from thalweg.tf.clipping import *
from thalweg.tf.compat import legacy as _legacy
from thalweg.tf.compat.legacy import *
from thalweg.tf.compat.legacy import Variable
from thalweg.tf.compat.v1 import nn
from thalweg.tf.control import *
from thalweg.tf.control import no_op
from thalweg.tf.dtypes import *
from thalweg.tf.elementwise import *
from thalweg.tf.missing import attribute_of as _attribute_of
from thalweg.tf.random import normal as random_normal
from thalweg.tf.random import set_seed as set_random_seed
from thalweg.tf.random import shuffle as random_shuffle
from thalweg.tf.random import truncated_normal
from thalweg.tf.random import uniform as random_uniform
from thalweg.tf.reductions import norm
from thalweg.tf.variables import IndexedSlices, Tensor
from thalweg.v1.variables import VariableAggregation, VariableSynchronization, get_variable

where = _legacy.where  # not that of `elementwise`

__getattr__ = _attribute_of("compat.v1")
