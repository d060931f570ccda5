"""`tf.distribute`: each rank that `torchrun` starts is a replica; see `thalweg.distribute`."""

from __future__ import annotations

from thalweg.distribute import (
    ReduceOp,
    ReplicaContext,
    Strategy,
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
)
from thalweg.tf.missing import attribute_of


class MirroredStrategy(Strategy):
    """A strategy over the ranks that `torchrun` has started, each of which has one device.

    Args:
        devices, cross_device_ops: Accepted for compatibility.
    """

    def __init__(self, devices: object = None, cross_device_ops: object = None) -> None:
        super().__init__()


class MultiWorkerMirroredStrategy(Strategy):
    """A strategy over the ranks that `torchrun` has started, on one machine or several.

    Args:
        cluster_resolver, communication_options: Accepted for compatibility.
    """

    def __init__(
        self, cluster_resolver: object = None, communication_options: object = None
    ) -> None:
        super().__init__()


__getattr__ = attribute_of("distribute")
