"""Value of `Operation.node_def` in TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class NodeDef:
    """Description of an operation; changes to it have no effect on the operation.

    Attributes:
        op: Type of the operation.
        input: Names of the inputs, "name:1" for a second output, then "^name" of control inputs.
        device: Device where the operation is expected to run.
        attr: {"shared_name": name} for a variable, otherwise empty.
    """

    name: str
    op: str
    input: list[str] = field(default_factory=list)
    device: str = ""
    attr: dict[str, str] = field(default_factory=dict)


def node_def_of(operation: Any) -> NodeDef:
    """Return the description of an operation as it is now."""
    inputs = [tensor.name.removesuffix(":0") for tensor in operation.inputs]
    inputs += [f"^{control.name}" for control in operation.control_inputs]
    attr = {"shared_name": operation.name} if operation.kind == "variable" else {}
    return NodeDef(operation.name, operation.type, inputs, str(operation.device), attr)
