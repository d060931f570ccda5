"""TensorFlow 1's graph mode: calls are recorded as nodes of a graph, and sessions run them.

Where TensorFlow leaves an order open, here it is fixed: reads come before updates.
Random numbers are torch's. `==` between symbolic tensors compares identities, as in TensorFlow 1.
"""

from thalweg._base.execution_context import (
    SessionVariable,
    current_session,
    executing_eagerly,
    get_default_session,
    handle_of,
    is_symbolic,
    resolve,
)
from thalweg._base.static_shape import Dimension, Shape
from thalweg._core.graph_mode import register
from thalweg._core.graph_update import apply_as_one_update
from thalweg._graph import graph_mode_backend
from thalweg._graph.arguments import by_reference
from thalweg._graph.assertions import must_hold
from thalweg._graph.atomic_update import after_writes, updates_since
from thalweg._graph.collections import GraphKeys
from thalweg._graph.conditional import case, cond
from thalweg._graph.control import (
    assert_variables_initialized,
    global_variables,
    global_variables_initializer,
    group,
    initialize_all_variables,
    is_variable_initialized,
    local_variables,
    local_variables_initializer,
    moving_average_variables,
    no_op,
    report_uninitialized_variables,
    trainable_variables,
    tuple_,
    variables_initializer,
)
from thalweg._graph.default_graph import (
    add_to_collection,
    control_dependencies,
    disable_eager_execution,
    enable_eager_execution,
    get_collection,
    get_collection_ref,
    get_default_graph,
    graph_variable_of,
    name_scope,
    reset_default_graph,
)
from thalweg._graph.derived_gradients import made_of_gradients
from thalweg._graph.get_variable import create_partitioned_variables, get_variable
from thalweg._graph.gradients import gradients
from thalweg._graph.graph import Graph
from thalweg._graph.initializers import (
    Initializer,
    constant_initializer,
    glorot_uniform_initializer,
    numbers_of,
    ones_initializer,
    random_normal,
    random_normal_initializer,
    random_uniform,
    random_uniform_initializer,
    set_random_seed,
    truncated_normal,
    truncated_normal_initializer,
    zeros_initializer,
)
from thalweg._graph.loops import foldl, foldr, map_fn, scan, while_loop
from thalweg._graph.nodes import Operation, SymbolicTensor
from thalweg._graph.operation import operation
from thalweg._graph.ops import (
    assign,
    assign_add,
    assign_sub,
    cast,
    constant,
    convert_to_tensor,
    embedding_lookup,
    gather,
    identity,
    ones,
    placeholder,
    placeholder_with_default,
    scatter_add,
    scatter_div,
    scatter_max,
    scatter_min,
    scatter_mul,
    scatter_sub,
    scatter_update,
    stop_gradient,
    zeros,
)
from thalweg._graph.partitioners import (
    fixed_size_partitioner,
    min_max_variable_partitioner,
    variable_axis_size_partitioner,
)
from thalweg._graph.session import InteractiveSession, Session
from thalweg._graph.shape_arguments import ints, known_size, known_sizes, sizes_of
from thalweg._graph.shapes import Output
from thalweg._graph.sparse_rows import deduplicated
from thalweg._graph.symbolic_slices import IndexedSlicesValue, SymbolicSlices
from thalweg._graph.traced_hooks import apply_constraint, explain_errors, gradient_symbol, update_of
from thalweg._graph.variable_creation import Variable, make_variable
from thalweg._graph.variable_scopes import (
    AUTO_REUSE,
    VariableScope,
    get_variable_scope,
    variable_scope,
)
from thalweg._graph.variables import GraphVariable, check_updates

__all__ = [
    "AUTO_REUSE", "Dimension", "Graph", "GraphKeys", "GraphVariable", "IndexedSlicesValue",
    "Initializer", "InteractiveSession", "Operation", "Output", "Session", "SessionVariable",
    "Shape", "SymbolicSlices", "SymbolicTensor", "Variable", "VariableScope", "add_to_collection",
    "after_writes", "apply_as_one_update", "apply_constraint", "assert_variables_initialized",
    "assign", "assign_add", "assign_sub", "by_reference", "case", "cast", "check_updates", "cond",
    "constant", "constant_initializer", "control_dependencies", "convert_to_tensor",
    "create_partitioned_variables", "current_session", "deduplicated", "disable_eager_execution",
    "embedding_lookup", "enable_eager_execution", "executing_eagerly", "explain_errors",
    "fixed_size_partitioner", "foldl", "foldr", "gather", "get_collection", "get_collection_ref",
    "get_default_graph", "get_default_session", "get_variable", "get_variable_scope",
    "global_variables", "global_variables_initializer", "glorot_uniform_initializer",
    "gradient_symbol", "gradients", "graph_variable_of", "group", "handle_of", "identity",
    "initialize_all_variables", "ints", "is_symbolic", "is_variable_initialized", "known_size",
    "known_sizes", "local_variables", "local_variables_initializer", "made_of_gradients",
    "make_variable", "map_fn", "min_max_variable_partitioner", "moving_average_variables",
    "must_hold", "name_scope", "no_op", "numbers_of", "ones", "ones_initializer", "operation",
    "placeholder", "placeholder_with_default", "random_normal", "random_normal_initializer",
    "random_uniform", "random_uniform_initializer", "report_uninitialized_variables",
    "reset_default_graph", "resolve", "scan", "scatter_add", "scatter_div", "scatter_max",
    "scatter_min", "scatter_mul", "scatter_sub", "scatter_update", "set_random_seed", "sizes_of",
    "stop_gradient", "trainable_variables", "truncated_normal", "truncated_normal_initializer",
    "tuple_", "update_of", "updates_since", "variable_axis_size_partitioner", "variable_scope",
    "variables_initializer", "while_loop", "zeros", "zeros_initializer",
]  # fmt: skip

__dir__ = __all__.copy

register(graph_mode_backend)
