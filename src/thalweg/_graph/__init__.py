"""TensorFlow 1's graph mode: calls are recorded as nodes of a graph, and sessions run them.

Where TensorFlow leaves an order open, here it is fixed: reads come before updates.
Random numbers are torch's. `==` between symbolic tensors compares identities, as in TensorFlow 1.
"""

from thalweg._base.execution_context import (
    SessionVariable,
    current_session,
    handle_of,
    is_symbolic,
    resolve,
)
from thalweg._base.static_shape import Shape
from thalweg._core.graph_mode import register
from thalweg._core.graph_update import apply_as_one_update
from thalweg._graph import compat_v1_names, graph_mode_backend
from thalweg._graph.arguments import by_reference
from thalweg._graph.compat_v1_names import *  # noqa: F403
from thalweg._graph.conditional import case, cond
from thalweg._graph.control import after_writes, group, no_op, tuple_, updates_since
from thalweg._graph.default_graph import control_dependencies, graph_variable_of, name_scope
from thalweg._graph.derived_gradients import deduplicated, made_of_gradients
from thalweg._graph.get_variable import get_variable
from thalweg._graph.initializers import (
    Initializer,
    numbers_of,
    random_normal,
    random_uniform,
    set_random_seed,
    truncated_normal,
)
from thalweg._graph.loops import foldl, foldr, map_fn, scan, while_loop
from thalweg._graph.nodes import SymbolicTensor
from thalweg._graph.operation import must_hold, operation
from thalweg._graph.ops import (
    cast,
    constant,
    convert_to_tensor,
    embedding_lookup,
    gather,
    identity,
    ones,
    stop_gradient,
    zeros,
)
from thalweg._graph.shape_arguments import ints, known_size, known_sizes, sizes_of
from thalweg._graph.shapes import Output
from thalweg._graph.symbolic_slices import IndexedSlicesValue, SymbolicSlices
from thalweg._graph.traced_hooks import apply_constraint, explain_errors, gradient_symbol, update_of
from thalweg._graph.variable_creation import Variable, make_variable
from thalweg._graph.variables import GraphVariable, check_updates

__all__ = [
    "GraphVariable", "IndexedSlicesValue", "Initializer", "Output", "SessionVariable", "Shape",
    "SymbolicSlices", "SymbolicTensor", "Variable", "after_writes", "apply_as_one_update",
    "apply_constraint", "by_reference", "case", "cast", "check_updates", "cond", "constant",
    "control_dependencies", "convert_to_tensor", "current_session", "deduplicated",
    "embedding_lookup", "explain_errors", "foldl", "foldr", "gather", "get_variable",
    "gradient_symbol", "graph_variable_of", "group", "handle_of", "identity", "ints", "is_symbolic",
    "known_size", "known_sizes", "made_of_gradients", "make_variable", "map_fn", "must_hold",
    "name_scope", "no_op", "numbers_of", "ones", "operation", "random_normal", "random_uniform",
    "resolve", "scan", "set_random_seed", "sizes_of", "stop_gradient", "truncated_normal", "tuple_",
    "update_of", "updates_since", "while_loop", "zeros",
]  # fmt: skip
__all__ += compat_v1_names.__all__

__dir__ = __all__.copy

register(graph_mode_backend)
