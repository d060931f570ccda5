"""`Scaffold`: operations that prepare a session for training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thalweg import _graph
from thalweg._base.showing import show_value
from thalweg.errors import FailedPreconditionError, InvalidTypeError
from thalweg.v1.summary import merge_all
from thalweg.v1.train.monitored.checkpoint_saver_hook import the_saver
from thalweg.v1.train.saving.saver import Saver


class Scaffold:
    """Operations that prepare a session, and a saver; `finalize` creates missing ones.

    Args:
        init_op: Optional. Operation that initializes variables if no checkpoint is restored; by
            default all global variables.
        init_feed_dict: Optional. Feeds of `init_op`.
        init_fn: Optional. `init_fn(scaffold, session)` is called after `init_op`.
        ready_op: Optional. Returns the names of uninitialized variables; by default of global and
            local variables. An empty result means ready.
        ready_for_local_init_op: Optional. Like `ready_op`, but run before `local_init_op`; by
            default for global variables.
        local_init_op: Optional. Initializes variables not in checkpoints; by default all local
            variables.
        summary_op: Optional. Returns the summaries; by default of the collection SUMMARIES.
        saver: Optional. By default the saver of the collection SAVERS, or a new saver of all
            variables.
        copy_from_scaffold: Optional. A scaffold whose attributes replace missing arguments.
        local_init_feed_dict: Optional. Feeds of `local_init_op`.

    Attributes:
        init_op, init_feed_dict, ready_op, ready_for_local_init_op, local_init_op, summary_op,
            saver, local_init_feed_dict: The arguments, or None before `finalize` creates them.
            `summary_op` remains None without summaries.
        init_fn: None, or a function `init_fn(session)`.

    Reference: tf.train.Scaffold
    """

    def __init__(
        self,
        init_op: object = None,
        init_feed_dict: object = None,
        init_fn: Callable[[Scaffold, Any], object] | None = None,
        ready_op: object = None,
        ready_for_local_init_op: object = None,
        local_init_op: object = None,
        summary_op: object = None,
        saver: Saver | None = None,
        copy_from_scaffold: Scaffold | None = None,
        local_init_feed_dict: object = None,
    ) -> None:
        source = copy_from_scaffold
        if not isinstance(source, Scaffold | None):
            raise InvalidTypeError(
                f"copy_from_scaffold is not a Scaffold instance: {show_value(source)}. Pass a"
                " Scaffold or None."
            )
        self.init_fn: Callable[[object], object] | None = None
        if init_fn is not None:
            self.init_fn = lambda session: init_fn(self, session)
        self.init_op = init_op
        self.init_feed_dict = init_feed_dict
        self.ready_op = ready_op
        self.ready_for_local_init_op = ready_for_local_init_op
        self.local_init_op = local_init_op
        self.summary_op = summary_op
        self.saver = saver
        self.local_init_feed_dict = local_init_feed_dict
        for name, attribute in list(vars(self).items()):
            if attribute is None and source is not None:
                setattr(self, name, getattr(source, name))

    def finalize(self) -> Scaffold:
        """Set the attributes that are None, and finalize the default graph.

        An attribute becomes the item of its graph collection. If the collection is empty, a new
        item is created and added.

        Returns:
            The scaffold itself.

        Raises:
            RuntimeError: A collection has several candidates for a missing attribute.
        """
        factories = {
            "init_op": (_graph.GraphKeys.INIT_OP, _graph.global_variables_initializer),
            "ready_op": (_graph.GraphKeys.READY_OP, _graph.report_uninitialized_variables),
            "ready_for_local_init_op": (
                _graph.GraphKeys.READY_FOR_LOCAL_INIT_OP,
                lambda: _graph.report_uninitialized_variables(_graph.global_variables()),
            ),
            "local_init_op": (_graph.GraphKeys.LOCAL_INIT_OP, Scaffold.default_local_init_op),
            "summary_op": (_graph.GraphKeys.SUMMARY_OP, merge_all),
        }
        for name, (key, make) in factories.items():
            if getattr(self, name) is None:
                setattr(self, name, Scaffold.get_or_default(name, key, make))
        graph = _graph.get_default_graph()
        if self.saver is None:
            self.saver = the_saver(graph)
        if self.saver is None:
            # Of a graph without variables, too, which a plain `Saver` rejects.
            self.saver = Saver(sharded=True, allow_empty=True)
            graph.add_to_collection(_graph.GraphKeys.SAVERS, self.saver)
        self.saver.build()
        graph.finalize()
        return self

    @staticmethod
    def get_or_default(
        arg_name: str, collection_key: str, default_constructor: Callable[[], object]
    ) -> Any:
        """Return the item of a graph's collection; create and add an item if there is none.

        Args:
            arg_name: Name of the argument of `Scaffold`, for the error.
            collection_key: The key of the collection.
            default_constructor: `default_constructor()` returns a new item, or None, which is
                returned but not added.

        Raises:
            RuntimeError: The collection has several items.
        """
        graph = _graph.get_default_graph()
        members = graph.get_collection(collection_key)
        if len(members) > 1:
            raise FailedPreconditionError(
                f'More than one item in the collection "{collection_key}". Please indicate which'
                " one to use by passing it to the tf.Scaffold constructor as: "
                f" tf.Scaffold({arg_name}=item to use)"
            )
        if members:
            return members[0]
        default_member = default_constructor()
        if default_member is not None:
            graph.add_to_collection(collection_key, default_member)
        return default_member

    @staticmethod
    def default_local_init_op() -> Any:
        """Return an operation that initializes the local variables."""
        return _graph.group(_graph.local_variables_initializer(), name="local_init")
