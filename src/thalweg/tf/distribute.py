"""`tf.distribute`: each rank of `torchrun` is a replica; see `thalweg.distribute`."""

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
    """Strategy over the ranks of `torchrun`, with one device per rank.

    Args:
        devices, cross_device_ops: Accepted for compatibility.
    """

    def __init__(self, devices: object = None, cross_device_ops: object = None) -> None:
        super().__init__()


class MultiWorkerMirroredStrategy(Strategy):
    """Strategy over the ranks of `torchrun`, on one or several machines.

    Args:
        cluster_resolver, communication_options: Accepted for compatibility.
    """

    def __init__(
        self, cluster_resolver: object = None, communication_options: object = None
    ) -> None:
        super().__init__()


__getattr__ = attribute_of("distribute")
