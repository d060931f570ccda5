"""`Variable` and `get_variable`, with aggregation of values over replicas."""

from thalweg import _graph, distribute
from thalweg.variable import VariableAggregation, VariableSynchronization

__all__ = ["Variable", "VariableAggregation", "VariableSynchronization", "get_variable"]

Variable = distribute.with_aggregation(_graph.Variable)
get_variable = distribute.with_aggregation(_graph.get_variable)
