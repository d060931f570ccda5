"""Sparse steps like the one before in Triton's interpreter: the CPU engine's tests once more."""

# ruff: noqa: F401
from __future__ import annotations

import pytest

import test_replay_sparse
from test_replay_sparse import (
    test_a_bad_gradient_raises_and_changes_nothing,
    test_a_dense_gradient_in_the_table_is_copied_first,
    test_backward_through_an_older_graph_raises,
    test_other_gradients_between_replays_equal_the_reference,
    test_repeated_table_is_updated_twice,
    test_replay_does_not_keep_gradients_alive,
    test_replayed_sparse_steps_equal_the_reference,
    test_shrunken_gradient_raises,
    test_steps_continue_after_memory_moved,
)


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch):
    init = test_replay_sparse.Training.__init__

    def begin(self, opt, engine, dense=False):
        init(self, opt, "cuda" if engine == "cpu" else engine, dense)

    monkeypatch.setattr(test_replay_sparse.Training, "__init__", begin)
