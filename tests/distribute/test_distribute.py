"""Optimizers on several ranks of torch.distributed; `distribute_cases` runs on each rank."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import distributed

import thalweg
from thalweg._cli.registry import by_rule
from thalweg.distribute import (
    Strategy,
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
)
from thalweg.distribute.aggregation import strategy_of
from thalweg.distribute.buckets import Sending
from thalweg.distribute.process_group import Ranks
from thalweg.distribute.reducer import Reducer
from thalweg.errors import ReplicaLostError
from thalweg.keras.optimizers import SGD

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="torch without torch.distributed"
)

SUM = {2: 3.0, 3: 6.0}  # of rank + 1 over all ranks
Reports = list[dict[str, Any]]
COUNTS = (2, pytest.param(3, marks=pytest.mark.slow))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "reports" in metafunc.fixturenames:
        metafunc.parametrize("reports", COUNTS, indirect=True)


@pytest.fixture
def count(reports: Reports) -> int:
    return len(reports)


def moved(gradient: float, rate: float = 0.5) -> list[float]:
    """Return the variable of the cases after a step of gradient descent."""
    return [1.0 - rate * gradient, 2.0 - rate * gradient]


def agreed(reports: Reports, name: str) -> Any:
    """Return the report on a case, which is equal on all ranks."""
    first, *peers = [report[name] for report in reports]
    assert all(peer == first for peer in peers)
    return first


def test_truncated_storages_raise(reports: Reports, count: int) -> None:
    *peers, bad = [report["storages_that_were_cut_on_the_last_rank"] for report in reports]
    assert {name: text for name, text in bad.items() if not text.startswith("LayoutError: ")} == {}
    word = f"ReplicaMismatchError: rank {count - 1} raised an error before its "
    for peer in peers:
        assert {name: text for name, text in peer.items() if not text.startswith(word)} == {}


CROSS = {
    "keras": "RuntimeError: `apply_gradients()` cannot be called in a cross-replica context.",
    "v1": "RuntimeError: Use `_distributed_apply()` instead of `apply_gradients()` in a",
}


def test_gradients_are_summed_in_every_front_end(reports: Reports, count: int) -> None:
    assert agreed(reports, "sums_in_each_face") == dict.fromkeys(
        ["keras", "v1"], moved(3 * SUM[count])
    )
    assert agreed(reports, "sums_of_a_loss") == [moved(SUM[count])] * 3


def test_sums_are_reported_but_not_parts(reports: Reports, count: int) -> None:
    for name, outcome in agreed(reports, "sums_that_are_told_of").items():
        assert outcome[:2] == [4, SUM[count]]
        cls = {"keras": "Adam", "v1": "AdamOptimizer"}[name]
        assert outcome[2].startswith(f"NotImplementedError: diagnostics of {cls} are not defined")
        assert outcome[3] == -2  # after six steps of 0.5, the refused one left out


def test_sparse_rows_are_gathered(reports: Reports, count: int) -> None:
    expected = [-0.5] * count + [0.0] * (3 - count)
    expected[2] -= 0.5 * count
    assert agreed(reports, "sums_of_rows") == {"keras": expected, "v1": expected}


def test_gradients_can_be_applied_without_summing(reports: Reports, count: int) -> None:
    assert agreed(reports, "gradients_as_they_are") == [moved(1), moved(2)]
    copies = [1.0 - 0.5 * (rank + 1) for rank in range(count)]
    assert agreed(reports, "own_gradients_move_own_copies") == copies


def test_strategy_has_replica_and_cross_replica_contexts(reports: Reports) -> None:
    outcome = agreed(reports, "across_replicas")
    assert outcome["where"] == [True, True, None]
    assert outcome["own"]
    assert outcome["after"] == [False, False]
    assert outcome["within"] == [True, False]
    assert outcome["nested"].startswith("RuntimeError: Cannot nest scopes")
    for face, message in CROSS.items():
        assert outcome[face].startswith(message)
    assert agreed(reports, "merge_call") == [True, True, 3]


def test_nested_values_are_reduced(reports: Reports, count: int) -> None:
    outcome, total = agreed(reports, "nests"), SUM[count]
    assert outcome["a"] == [total, total]
    assert (outcome["none"], outcome["number"]) == (None, total)
    assert outcome["rows"] == [[[1.0, 1.0]] * count, list(range(count))]
    assert outcome["mean"] == [total / count] * 2
    assert outcome["none on one"].startswith("ReplicaMismatchError: Value 0 is None on one rank")
    assert complex(outcome["complex"]) == complex(total, total)
    assert outcome["unknown"].startswith("InvalidArgumentError: reduce_op must be")


def test_values_are_reduced(reports: Reports, count: int) -> None:
    numbers = [float(n) for rank in range(count) for n in range(2 + rank)]
    total, mean, sum_, from_values, batch = agreed(reports, "reductions")
    assert total == [SUM[count]] * 2
    assert mean == pytest.approx(sum(numbers) / len(numbers))
    assert sum_ == sum(numbers)
    assert from_values == [SUM[count] / count] * 2
    assert batch == [[SUM[count]] * 2] * 2


def test_integer_values_have_means(reports: Reports, count: int) -> None:
    cells, axis_mean = ([1.0, 1 + SUM[count] / count], (count + SUM[count] + count) / (2 * count))
    expected = [[[cells], None], [[axis_mean], None]]
    outcome = agreed(reports, "reductions_of_whole_numbers")
    assert outcome == [expected * 2, ["torch.float32"] * 2, 1.5 * count]


def test_variables_without_gradients_are_named(reports: Reports) -> None:
    text = ["Gradients do not exist for variables ['nowhere:0'] when minimizing the loss."]
    assert agreed(reports, "missing_gradients_are_said") == [text] * 3


def test_ranks_compare_settings_of_ordered_sums(reports: Reports, count: int) -> None:
    outcome = agreed(reports, "what_ordered_sums_depend_on")
    if count == 3:
        assert outcome == []
        return
    start = "ReplicaMismatchError: rank 1 disagrees with rank 0 at "
    assert outcome == [
        f"{start}threads of torch: 2 vs 1.",
        f"{start}micro_batches of the strategy: 16 vs 8.",
        "nothing was raised",
    ]


def test_missing_gradient_counts_as_zeros_on_other_ranks(reports: Reports, count: int) -> None:
    outcome = agreed(reports, "none_counts_as_zeros")
    remainder = SUM[count] - 1
    for face in ("keras", "v1"):
        assert outcome[face] == [moved(1), moved(remainder), [1.0, 2.0]]
        assert outcome[f"{face} none"].startswith("ValueError: No gradients provided for any var")
    assert agreed(reports, "none_in_a_loss") == [[moved(1), moved(count - 1)]] * 2


def test_hooks_of_keras_come_in_order(reports: Reports, count: int) -> None:
    hooked, events, aggregated, calls = agreed(reports, "hooks_of_keras")
    assert hooked == moved(2 * 2 * SUM[count])
    assert events == ["own", "sum"] * 2
    assert (aggregated, calls) == (moved(1), [1])


def test_clipping_follows_the_sum(reports: Reports, count: int) -> None:
    by_norm, by_value = agreed(reports, "clipping_follows_the_sum")
    assert by_norm == pytest.approx([1 - 2**-0.5] * 2)
    assert by_value == [-3.0, -3.0]


def test_distributed_apply_takes_strategies_and_groups(reports: Reports, count: int) -> None:
    assert agreed(reports, "distributed_apply") == [[moved(SUM[count]), 1]] * 3


def test_strategy_extended_api(reports: Reports) -> None:
    assert agreed(reports, "extended") == [[True, [2.0, 3.0]], [1], 3, ["cpu"]]


def test_assignments_in_replicas_are_aggregated(reports: Reports, count: int) -> None:
    outcome, total = agreed(reports, "assignments_are_aggregated"), SUM[count]
    local = [[2 * (rank + 1) + 9.0, 3.0] for rank in range(count)]
    unreduced = {"AUTO": local, "ON_READ": local}
    values = {
        "NONE": unreduced,
        "SUM": unreduced | {"AUTO": [[2 * total - count + 10, 4.0 * count - count]] * count},
        "MEAN": unreduced | {"AUTO": [[2 * total / count + 9, 3.0]] * count},
        "ONLY_FIRST_REPLICA": unreduced | {"AUTO": [local[0]] * count},
    }
    for kind, expected in values.items():
        assert {sync: outcome[f"{kind} {sync}"] for sync in unreduced} == expected
    assert outcome["hook"] == [2 * total, moved(total)]
    assert outcome["integers"].endswith("int64, which has no mean over replicas. Use"
                                      " VariableAggregation.SUM.")  # fmt: skip
    assert outcome["tf"] == [[total], "named:0"]


def test_assignments_of_graphs_are_aggregated(reports: Reports, count: int) -> None:
    total = SUM[count]
    mean, sums = total / count, [total, 4.0 * count]
    new = {"add_weight": [mean, 4.0], "get_variable": [mean, 4.0], "tf": sums, "compat": sums}
    values = {name: [first * 2, second] for name, (first, second) in new.items()}
    values["tf"] = [2 * total - 1, 4.0 * count - 1]
    for rank, report in enumerate(reports):
        outcome, local = report["assignments_in_graphs"], [rank + 1.0, 4.0]
        assert outcome["new"] == {**new, "v1": [1.0, 4.0], "on read": local}
        assert outcome["values"] == {**values, "v1": [2.0, 4.0], "on read": [2 * rank + 2.0, 4.0]}
        error = "InvalidArgumentError: Cannot assign to 'Variable:0': it has shape (2,) but the"
        assert outcome["refused"].startswith("ReplicaMismatchError: rank " if rank == 1 else error)
        assert outcome["integers"].endswith("no mean over replicas. Use VariableAggregation.SUM.")


def test_invalid_assignments_do_not_block_ranks(reports: Reports, count: int) -> None:
    names = ["InvalidArgumentError", "InvalidArgumentError", "InvalidTypeError", "InvalidTypeError"]
    for rank, report in enumerate(reports):
        errors, w, u, first = report["refused_assignments"]
        kinds = names if rank == count - 1 else ["ReplicaMismatchError"] * 4
        assert [error.partition(":")[0] for error in errors] == [*kinds, "ReplicaMismatchError"]
        detail = "disagrees with rank 0 at what is assigned to: 'u:0', MEAN vs 'w:0', MEAN."
        assert detail in errors[-1]
        assert (w, u, first) == ([SUM[count] / count, 3.0], [0.0, 0.0], [0.0, 0.0])


def test_torch_style_optimizers_raise(reports: Reports, count: int) -> None:
    errors, initial, is_free = agreed(reports, "optimizers_of_torchs_kind")
    prefix = "FailedPreconditionError: SGD would train this replica alone: optimizers of torch's"
    assert all(error.startswith(prefix) and f"the {count} replicas" in error for error in errors)
    assert (initial, is_free) == ([[0.0, 0.0], [0.0, 0.0], []], True)


def test_documented_examples_run(reports: Reports, count: int) -> None:
    outcome = agreed(reports, "examples_of_the_documents")
    batch, w = torch.arange(1.0, 13.0).view(-1, 2), torch.tensor([1.0, 2.0])
    mean = 2 * (batch @ w) @ batch / len(batch)  # of the loss over all examples
    by_hand, clipped, by_minimize = outcome["aggregated"]
    assert by_hand == by_minimize == pytest.approx((w - 0.1 * mean).tolist())
    assert clipped == pytest.approx([0.9, 1.9])
    assert outcome["written"] == ["all", [1.0 - count], 1]
    assert outcome["across"] == [True]
    assert outcome["eager group"] is None


@pytest.mark.parametrize("gate", ["0", "1", "2"])
def test_losses_without_var_list_are_summed(reports: Reports, count: int, gate: str) -> None:
    for rank, report in enumerate(reports):
        first, broken, extra, empty, final, values = report["losses_without_a_list_of_variables"][
            gate
        ]
        assert first == final == "nothing was raised"
        error = "KeyError: 'no such batch'"
        trouble = "ReplicaMismatchError: rank {} raised an error before its gradients were there: "
        trouble += error
        assert broken == (error if rank else trouble.format(count - 1))
        assert extra.endswith("disagrees with rank 0 at the number of variables: 2 vs 1")
        assert empty.endswith("disagrees with rank 0 at the number of variables: 0 vs 1")
        assert values == [moved(2 * SUM[count]), [1.0, 2.0]]


def test_reductions_are_graph_nodes(reports: Reports, count: int) -> None:
    outcome = agreed(reports, "graphs")
    assert outcome["train_op"]
    assert outcome["across"].startswith(CROSS["v1"])
    w, u, keras = outcome["values"]
    assert w == pytest.approx([0.0, 1.0], abs=1e-5)  # Adam's first steps, whatever the gradient
    assert u == pytest.approx([0.0, 1.0], abs=1e-5)
    assert keras == [1.0 - 2 * 0.5 * SUM[count], 2.0 - 2 * 0.5 * 2 * count]
    assert (outcome["unused"], outcome["step"]) == ([5.0], 2)
    assert outcome["total"] == [SUM[count], 2.0 * count]


def test_a_mean_loss_is_scaled_for_estimators_alone(reports: Reports, count: int) -> None:
    unit = [1.0, False]
    share = [pytest.approx(1 / count), True]
    unknown, of_a_sum, of_a_mean = ([unit, share, unit], [unit] * 3, [unit, share, unit])
    assert agreed(reports, "scaled_losses") == [*unknown, *of_a_sum, *of_a_mean]


def test_horovod_averages_over_ranks(reports: Reports, count: int) -> None:
    assert agreed(reports, "horovod_is_the_mean") == 4.0 - 2 * SUM[count] / count


def test_horovod_steps_equal_the_mean_step(reports: Reports, count: int) -> None:
    mean = SUM[count] / count
    for rank, report in enumerate(reports):
        outcome = report["steps_of_horovod"]
        assert outcome["own apply_gradients"] == 4 - mean
        trouble = "ReplicaMismatchError: rank 1 raised an error before its gradients were there"
        assert outcome["an error on one"].startswith(
            "KeyError: 'no such batch'" if rank == 1 else trouble
        )
        assert outcome["after it"] == outcome["untouched"] == 4 - 2 * mean
        assert "rank 1 disagrees with rank 0 at learning_rate: 2.0 vs 1.0." in outcome["rates"]
        prefix = (
            f"InvalidArgumentError: optimize_loss needs on_horovod=True in a strategy of {count}"
        )
        assert all(words.startswith(prefix) for words in outcome["alone"])
        assert outcome["compressed"] == pytest.approx(-8 * mean, abs=8 * 2**-7)
        if count == 2:
            *words, first_value, second_value = outcome["ordered"]
            order = "InvalidArgumentError: iter_size=2 and reduction='ordered' exclude one another"
            assert all(message.startswith(order) for message in words)
            assert (first_value, second_value) == (4 - 2 * mean, 4 - 3 * mean)


DIFFERENCES = {
    "order": "variable 0: 'enc/other:0' float32 (2,) vs 'enc/one:0' float32 (2,).",
    "count": "the number of variables: 1 vs 2.",
    "name": "variable 0: 'w1:0' float32 (2,) vs 'w0:0' float32 (2,).",
    "shape": "variable 0: 'w:0' float32 (3,) vs 'w:0' float32 (2,).",
    "dtype": "variable 0: 'w:0' float64 (2,) vs 'w:0' float32 (2,).",
    "rate": "learning_rate: 1.5 vs 0.5.",
    "class": "optimizer: Adam vs SGD.",
    "step": "step: 7 vs 0.",
    "clipping": "clipnorm: 2.0 vs 1.0.",
    "epsilon": "epsilon: 1.5 vs 0.5.",
    "schedule": "learning_rate: ExponentialDecay {initial_learning_rate: 1.0, decay_steps: 10,"
    " decay_rate: 1.5, staircase: False, name: None} vs ExponentialDecay",
    "nesterov": "use_nesterov: True vs False.",
    "power": "beta1_power: ",
    "compression": "compression of the strategy: torch.float16 vs None.",
    "values": "the bits of the values of 'w:0': a sum of ",
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_ranks_that_differ_all_report_where(reports: Reports, name: str) -> None:
    message = f"ReplicaMismatchError: rank 1 disagrees with rank 0 at {DIFFERENCES[name]}"
    assert [report["ranks_that_differ"][name].startswith(message) for report in reports] == [
        True
    ] * len(reports)


def test_rank_in_trouble_stops_all_ranks(reports: Reports) -> None:
    rows = [report["ranks_that_differ"] for report in reports]
    assert all(row["untouched"] == [[1.0, 2.0]] * 2 for row in rows)
    assert all("is dense on one rank and sparse on another" in row["kinds"] for row in rows)
    first, *peers = [row["trouble"] for row in rows]
    assert " raised an error before its gradients were there" in first
    assert all(peer.startswith("InvalidTypeError: Gradient must be conv") for peer in peers)


def test_broadcast_compares_and_sends_variables(reports: Reports) -> None:
    values, matches, refusal = agreed(reports, "broadcast")
    assert values == [1.0, 1.0]
    assert all(matches)
    assert "the number of variables: 2 vs 1" in refusal


def test_sums_do_not_depend_on_buckets(reports: Reports) -> None:
    assert agreed(reports, "many_buckets") == [True] * 3


@pytest.mark.parametrize("face", ["keras", "v1"])
def test_gradients_are_sent_while_others_are_computed(
    reports: Reports, count: int, face: str
) -> None:
    outcomes = [report["gradients_are_sent_while_others_are_computed"] for report in reports]
    a, b, table, frozen = outcomes[0][face]
    assert all(outcome[face] == outcomes[0][face] for outcome in outcomes)
    assert a == moved(5 * SUM[count])
    assert b == moved(3 * count + (count - 1))
    assert table == [-0.5 * 5] * count + [-0.5 * 5 * count] * (3 - count) or count == 3
    assert frozen == 5.0
    assert all(outcome[f"{face} sent"] == outcomes[0][f"{face} sent"] for outcome in outcomes)
    for rank, outcome in enumerate(outcomes):
        error = "KeyError" if rank == 1 else "ReplicaMismatchError"
        no_error = "nothing was raised"
        assert outcome[f"{face} told"] == [no_error] * 4 + [error, no_error]


def test_gradients_changed_after_sending_are_sent_again(reports: Reports, count: int) -> None:
    assert agreed(reports, "gradients_that_somebody_changes") == [moved(2 * 4 * SUM[count])] * 3


def test_gradients_may_change_between_dense_and_sparse(reports: Reports, count: int) -> None:
    outcome, total = agreed(reports, "gradients_that_change_their_kind"), SUM[count]
    rows = [-0.5 * 2 * count - 0.5 * 2 * (row < count) for row in range(2)]
    last_row = -0.5 * 2 * count - 0.5 * 2 * (count + (count == 3))
    assert outcome["sparse"] == [moved(4 * total), [*rows, last_row]]
    assert outcome["added"] == [moved(3 * total)] * 2
    assert outcome["twice"] == moved(2 * 3 * total)
    assert outcome["foreign"] == moved(5 * total)


def test_buckets_are_reused_unless_sums_are_retained(reports: Reports, count: int) -> None:
    total = SUM[count]
    for name, retains, is_one_place, a, b, *retained in agreed(reports, "memory_of_buckets"):
        assert a == b == moved(36 * total), name
        assert is_one_place is not retains, name
        assert retained == ([total * number for number in range(1, 9)] if retains else []), name


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_compression_errors_are_sent_later(reports: Reports, count: int, dtype: str) -> None:
    outcome = agreed(reports, "compressed_sums")
    (is_equal, exact), (also_equal, lossy) = (outcome[f"{dtype} True"], outcome[f"{dtype} False"])
    assert is_equal
    assert also_equal
    # No more than half a spacing is left, of a number that was divided by the ranks.
    spacing = {"float16": (2**-24, 2**-11), "bfloat16": (2**-34, 2**-8)}[dtype]
    assert exact[0] == pytest.approx(32e-8, abs=count * spacing[0] / 2)
    assert exact[1] == pytest.approx(32 * (1 + 2**-12), abs=count * spacing[1] / 2)
    assert abs(lossy[1] - 32 * (1 + 2**-12)) > 32 * 2**-14
    assert lossy[0] == 0 or dtype == "bfloat16"


def test_compression_saves_bytes_of_wide_dense_gradients(reports: Reports, count: int) -> None:
    uncompressed, *narrow = agreed(reports, "bytes_that_are_compressed")
    assert uncompressed[0] == 400 + 80 + 14 + 24
    for size, rows, values in narrow:
        assert size == 200 + 20 + 14 + 24
        assert rows == uncompressed[1]
        assert values == uncompressed[2] == [-2.0 * count * count] * 4


def test_failed_steps_keep_compression_errors(reports: Reports) -> None:
    for report in reports:
        is_equal, errors, words, is_updated = report["steps_that_fail_leave_what_was_left_out"]
        assert is_equal
        assert errors == ["nothi"]
        assert words == ["KeyEr", "nothi"]
        assert is_updated


def test_overflow_of_16_bit_compression_is_detected(reports: Reports, count: int) -> None:
    finite = str(3.0 * count)
    assert agreed(reports, "numbers_too_large_for_16_bits") == [
        f"[inf, {finite}]", f"[inf, {finite}]", f"[nan, {finite}]", f"[{2.0 * count}, {finite}]",
    ]  # fmt: skip


def test_ordered_sums_have_the_bits_of_one_rank(reports: Reports, count: int) -> None:
    outcome = agreed(reports, "ordered_sums")
    if count == 3:
        assert (
            outcome
            == "InvalidArgumentError: An ordered reduction needs 1, 2, 4, 8, ... ranks, not 3."
        )
        return
    dense, sparse, unused, refusal = outcome
    assert dense
    assert sparse
    assert unused == [1.0, 2.0]
    assert (
        refusal == "InvalidArgumentError: micro_batches must be a multiple of the 2 ranks, not 9."
    )


def test_replicas_hold_equal_bits_after_every_step(reports: Reports) -> None:
    names, differ = agreed(reports, "replicas_hold_equal_bits")
    assert len(names) == len(by_rule())
    assert differ == []


def test_job_resumes_on_other_numbers_of_ranks(reports: Reports, count: int) -> None:
    check_resumed(reports, count)


def check_resumed(reports: Reports, count: int) -> None:
    """Compare jobs with uninterrupted ones: to the bit, or but for the order of sums."""
    sizes = range(1, count + 1)
    powers = [size for size in sizes if size & (size - 1) == 0]
    for rank, report in enumerate(reports):
        pairs = {f"sum {old} {new}" for old in sizes for new in sizes if new > rank}
        pairs |= {f"ordered {old} {new}" for old in powers for new in powers if new > rank}
        assert report["resumed_jobs"].keys() == pairs
        for name, (is_equal, distance) in report["resumed_jobs"].items():
            assert is_equal or name.startswith("sum"), name
            assert distance < 1e-6, name


def test_file_written_by_several_ranks_is_complete(reports: Reports) -> None:
    files = ["checkpoint-6.safetensors", "checkpoint-7.safetensors", "one"]
    assert agreed(reports, "files_that_several_ranks_write") == [[True] * 3, files]


def test_destroyed_groups_are_released() -> None:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    groups = weakref.WeakSet([distributed.group.WORLD, distributed.new_group([0])])
    strategies = [strategy_of(group) for group in groups]
    assert [strategy_of(group) for group in groups] == strategies
    distributed.destroy_process_group()
    gc.collect()
    assert not groups
    with pytest.raises(ReplicaLostError, match="The process group of this strategy was d"):
        strategies[0].ranks.take_maximum(torch.ones(1))


def test_error_of_one_rank_is_raised_in_the_backward_pass() -> None:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(ZeroDivisionError), Reducer(Ranks(), Sending()).guard_backward():
            raise ZeroDivisionError
    finally:
        distributed.destroy_process_group()


def test_strategy_without_group_has_one_replica() -> None:
    strategy, w = Strategy(), thalweg.Variable([1.0])
    assert strategy.num_replicas_in_sync == get_strategy().num_replicas_in_sync == 1
    strategy.run(lambda: SGD(0.5).apply_gradients([([1.0], w)]))
    assert w.item() == 0.5
    assert not has_strategy()
    assert not in_cross_replica_context()
    context = get_replica_context()
    assert context is not None
    assert context.all_reduce("mean", [torch.ones(1), None])[1] is None
    assert context.merge_call(lambda strategy, x: x, (5,)) == 5
    assert context.merge_call(lambda _: (has_strategy(), in_cross_replica_context())) == (
        False,
        True,
    )
    with strategy.scope():
        assert has_strategy()
    assert strategy.reduce("mean", [torch.tensor(3), None], axis=None)[0].dtype == torch.float32
    assert strategy.experimental_local_results(3) == (3,)


def test_invalid_arguments_raise() -> None:
    with pytest.raises(thalweg.InvalidTypeError, match="group must be a process group"):
        Strategy("gloo")
    with pytest.raises(thalweg.InvalidArgumentError, match="timeout must be above 0, not -1"):
        Strategy(timeout=-1)
    for silly in (float("inf"), 1e300, 1e10, 10**400, 1e-9):
        with pytest.raises(thalweg.InvalidArgumentError, match="timeout must be from 0"):
            Strategy(timeout=silly)
    with pytest.raises(thalweg.InvalidArgumentError, match="timeout must be above 0, not nan"):
        Strategy(timeout=float("nan"))
    for option, setting in (("timeout", True), ("timeout", "9"), ("bucket_size", True)):
        with pytest.raises(thalweg.InvalidTypeError, match=f"{option} must be a number, not "):
            Strategy(**{option: setting})  # pyright: ignore[reportArgumentType]
    assert Strategy(timeout=1e9).num_replicas_in_sync == 1
    with pytest.raises(thalweg.InvalidArgumentError, match="bucket_size must be above 0, not 0"):
        Strategy(bucket_size=0)
    with pytest.raises(thalweg.InvalidArgumentError, match="compression must be 'float16'"):
        Strategy(compression="int8")  # pyright: ignore[reportArgumentType]
    words = "reduction='ordered' and compression='float16' exclude one another"
    with pytest.raises(thalweg.InvalidArgumentError, match=words):
        Strategy(reduction="ordered", compression="float16")
    words = "shard_slots=True and compression='bfloat16' exclude one another"
    with pytest.raises(thalweg.InvalidArgumentError, match=words):
        Strategy(shard_slots=True, compression="bfloat16")
    with pytest.raises(thalweg.InvalidArgumentError, match="reduction must be 'sum' or 'ordered'"):
        Strategy(reduction="mean")  # pyright: ignore[reportArgumentType]
