"""`Variable` and `get_variable`, with values of several replicas that become one."""

from thalweg import _graph as graph
from thalweg import distribute
from thalweg.variable import VariableAggregation, VariableSynchronization

__all__ = ["Variable", "VariableAggregation", "VariableSynchronization", "get_variable"]

Variable = distribute.with_aggregation(graph.Variable)
get_variable = distribute.with_aggregation(graph.get_variable)
