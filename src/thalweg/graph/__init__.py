"""TensorFlow 1's graph mode: calls are recorded as nodes of a graph, and sessions run them.

Where TensorFlow leaves an order open, here it is fixed: what reads comes before what updates.
Random numbers are torch's. `==` between symbolic tensors compares identities, as in TensorFlow 1.
"""

from thalweg.graph.arguments import by_reference
from thalweg.graph.collections import GraphKeys
from thalweg.graph.control import (
    global_variables,
    global_variables_initializer,
    group,
    initialize_all_variables,
    is_variable_initialized,
    local_variables,
    local_variables_initializer,
    no_op,
    report_uninitialized_variables,
    trainable_variables,
    tuple_,
    variables_initializer,
)
from thalweg.graph.creation import Variable, make_variable
from thalweg.graph.default import (
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
from thalweg.graph.gradients import gradients
from thalweg.graph.graph import Graph
from thalweg.graph.initializers import (
    Initializer,
    constant_initializer,
    glorot_uniform_initializer,
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
from thalweg.graph.nodes import Operation, SymbolicTensor
from thalweg.graph.operation import operation
from thalweg.graph.ops import (
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
    stop_gradient,
    zeros,
)
from thalweg.graph.session import InteractiveSession, Session
from thalweg.graph.shapes import Output
from thalweg.graph.slices import IndexedSlicesValue, SymbolicSlices
from thalweg.graph.static_shape import Shape
from thalweg.graph.variable_scopes import (
    AUTO_REUSE,
    VariableScope,
    get_variable,
    get_variable_scope,
    variable_scope,
)
from thalweg.graph.variables import GraphVariable
from thalweg.running import (
    SessionVariable,
    current_session,
    executing_eagerly,
    get_default_session,
    handle_of,
    is_symbolic,
    resolve,
)

__all__ = [
    "AUTO_REUSE",
    "Graph",
    "GraphKeys",
    "GraphVariable",
    "IndexedSlicesValue",
    "Initializer",
    "InteractiveSession",
    "Operation",
    "Output",
    "Session",
    "SessionVariable",
    "Shape",
    "SymbolicSlices",
    "SymbolicTensor",
    "Variable",
    "VariableScope",
    "add_to_collection",
    "assign",
    "assign_add",
    "assign_sub",
    "by_reference",
    "cast",
    "constant",
    "constant_initializer",
    "control_dependencies",
    "convert_to_tensor",
    "current_session",
    "disable_eager_execution",
    "embedding_lookup",
    "enable_eager_execution",
    "executing_eagerly",
    "gather",
    "get_collection",
    "get_collection_ref",
    "get_default_graph",
    "get_default_session",
    "get_variable",
    "get_variable_scope",
    "global_variables",
    "global_variables_initializer",
    "glorot_uniform_initializer",
    "gradients",
    "graph_variable_of",
    "group",
    "handle_of",
    "identity",
    "initialize_all_variables",
    "is_symbolic",
    "is_variable_initialized",
    "local_variables",
    "local_variables_initializer",
    "make_variable",
    "name_scope",
    "no_op",
    "ones",
    "ones_initializer",
    "operation",
    "placeholder",
    "placeholder_with_default",
    "random_normal",
    "random_normal_initializer",
    "random_uniform",
    "random_uniform_initializer",
    "report_uninitialized_variables",
    "reset_default_graph",
    "resolve",
    "set_random_seed",
    "stop_gradient",
    "trainable_variables",
    "truncated_normal",
    "truncated_normal_initializer",
    "tuple_",
    "variable_scope",
    "variables_initializer",
    "zeros",
    "zeros_initializer",
]
