"""Names of `tf.compat.v1` that `_graph` has, for `thalweg.v1` and `thalweg.tf.compat.v1`."""

from thalweg._base.execution_context import executing_eagerly, get_default_session
from thalweg._base.static_shape import Dimension
from thalweg._graph.collections import GraphKeys
from thalweg._graph.control import (
    assert_variables_initialized,
    global_variables,
    global_variables_initializer,
    initialize_all_variables,
    is_variable_initialized,
    local_variables,
    local_variables_initializer,
    moving_average_variables,
    report_uninitialized_variables,
    trainable_variables,
    variables_initializer,
)
from thalweg._graph.default_graph import (
    add_to_collection,
    disable_eager_execution,
    enable_eager_execution,
    get_collection,
    get_collection_ref,
    get_default_graph,
    reset_default_graph,
)
from thalweg._graph.get_variable import create_partitioned_variables
from thalweg._graph.gradients import gradients
from thalweg._graph.graph import Graph
from thalweg._graph.initializers import (
    constant_initializer,
    glorot_uniform_initializer,
    ones_initializer,
    random_normal_initializer,
    random_uniform_initializer,
    truncated_normal_initializer,
    zeros_initializer,
)
from thalweg._graph.nodes import Operation
from thalweg._graph.ops import (
    assign,
    assign_add,
    assign_sub,
    placeholder,
    placeholder_with_default,
    scatter_add,
    scatter_div,
    scatter_max,
    scatter_min,
    scatter_mul,
    scatter_sub,
    scatter_update,
)
from thalweg._graph.partitioners import (
    fixed_size_partitioner,
    min_max_variable_partitioner,
    variable_axis_size_partitioner,
)
from thalweg._graph.session import InteractiveSession, Session
from thalweg._graph.variable_scopes import (
    AUTO_REUSE,
    VariableScope,
    get_variable_scope,
    variable_scope,
)

__all__ = [
    "AUTO_REUSE", "Dimension", "Graph", "GraphKeys", "InteractiveSession", "Operation", "Session",
    "VariableScope", "add_to_collection", "assert_variables_initialized", "assign", "assign_add",
    "assign_sub", "constant_initializer", "create_partitioned_variables", "disable_eager_execution",
    "enable_eager_execution", "executing_eagerly", "fixed_size_partitioner", "get_collection",
    "get_collection_ref", "get_default_graph", "get_default_session", "get_variable_scope",
    "global_variables", "global_variables_initializer", "glorot_uniform_initializer", "gradients",
    "initialize_all_variables", "is_variable_initialized", "local_variables",
    "local_variables_initializer", "min_max_variable_partitioner", "moving_average_variables",
    "ones_initializer", "placeholder", "placeholder_with_default", "random_normal_initializer",
    "random_uniform_initializer", "report_uninitialized_variables", "reset_default_graph",
    "scatter_add", "scatter_div", "scatter_max", "scatter_min", "scatter_mul", "scatter_sub",
    "scatter_update", "trainable_variables", "truncated_normal_initializer",
    "variable_axis_size_partitioner", "variable_scope", "variables_initializer",
    "zeros_initializer",
]  # fmt: skip
