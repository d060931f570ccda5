"""Optimizers on several ranks of torch.distributed; what the ranks do is in `distribute_cases`."""

from __future__ import annotations

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
from thalweg.keras.optimizers import SGD

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="torch without torch.distributed"
)

SUM = {2: 3.0, 3: 6.0}  # of rank + 1 over all ranks
COUNTS = (2, pytest.param(3, marks=pytest.mark.slow))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "told" in metafunc.fixturenames:
        metafunc.parametrize("told", COUNTS, indirect=True)


@pytest.fixture
def count(told: list[dict[str, Any]]) -> int:
    return len(told)


def moved(gradient: float, rate: float = 0.5) -> list[float]:
    """The variable of the cases after a step of gradient descent."""
    return [1.0 - rate * gradient, 2.0 - rate * gradient]


def agreed(told: list[dict[str, Any]], name: str) -> Any:
    """What all ranks have found, which is the same."""
    first, *others = [each[name] for each in told]
    assert all(other == first for other in others)
    return first


def test_storages_that_were_cut_are_refused(told: list[dict[str, Any]], count: int) -> None:
    *others, last = [each["storages_that_were_cut_on_the_last_rank"] for each in told]
    assert {name: said for name, said in last.items() if not said.startswith("LayoutError: ")} == {}
    word = f"ReplicaMismatchError: rank {count - 1} raised an error before its "
    for each in others:
        assert {name: said for name, said in each.items() if not said.startswith(word)} == {}


CROSS = {
    "keras": "RuntimeError: `apply_gradients()` cannot be called in a cross-replica context.",
    "v1": "RuntimeError: Use `_distributed_apply()` instead of `apply_gradients()` in a",
}


def test_gradients_are_summed_in_each_face(told: list[dict[str, Any]], count: int) -> None:
    assert agreed(told, "sums_in_each_face") == dict.fromkeys(
        ["keras", "v1"], moved(3 * SUM[count])
    )
    assert agreed(told, "sums_of_a_loss") == [moved(SUM[count])] * 3


def test_sums_are_told_of_and_parts_are_not(told: list[dict[str, Any]], count: int) -> None:
    for name, found in agreed(told, "sums_that_are_told_of").items():
        assert found[:2] == [4, SUM[count]]
        cls = {"keras": "Adam", "v1": "AdamOptimizer"}[name]
        assert found[2].startswith(f"NotImplementedError: diagnostics of {cls} are not defined")
        assert found[3] == -2  # after six steps of 0.5, the refused one left out


def test_rows_are_brought_together(told: list[dict[str, Any]], count: int) -> None:
    own = [-0.5] * count + [0.0] * (3 - count)
    own[2] -= 0.5 * count
    assert agreed(told, "sums_of_rows") == {"keras": own, "v1": own}


def test_gradients_may_be_applied_as_they_are(told: list[dict[str, Any]], count: int) -> None:
    assert agreed(told, "gradients_as_they_are") == [moved(1), moved(2)]
    copies = [1.0 - 0.5 * (rank + 1) for rank in range(count)]
    assert agreed(told, "own_gradients_move_own_copies") == copies


def test_sides_of_a_strategy(told: list[dict[str, Any]]) -> None:
    found = agreed(told, "across_replicas")
    assert found["where"] == [True, True, None]
    assert found["own"]
    assert found["after"] == [False, False]
    assert found["within"] == [True, False]
    assert found["nested"].startswith("RuntimeError: Cannot nest scopes")
    for face, message in CROSS.items():
        assert found[face].startswith(message)
    assert agreed(told, "merge_call") == [True, True, 3]


def test_nests_are_reduced(told: list[dict[str, Any]], count: int) -> None:
    found, total = agreed(told, "nests"), SUM[count]
    assert found["a"] == [total, total]
    assert (found["none"], found["number"]) == (None, total)
    assert found["rows"] == [[[1.0, 1.0]] * count, list(range(count))]
    assert found["mean"] == [total / count] * 2
    assert found["none on one"].startswith("ReplicaMismatchError: Value 0 is None on one rank")
    assert complex(found["complex"]) == complex(total, total)
    assert found["unknown"].startswith("InvalidArgumentError: reduce_op must be")


def test_values_are_reduced(told: list[dict[str, Any]], count: int) -> None:
    numbers = [float(n) for rank in range(count) for n in range(2 + rank)]
    total, mean, sum_, own, several = agreed(told, "reductions")
    assert total == [SUM[count]] * 2
    assert mean == pytest.approx(sum(numbers) / len(numbers))
    assert sum_ == sum(numbers)
    assert own == [SUM[count] / count] * 2
    assert several == [[SUM[count]] * 2] * 2


def test_whole_numbers_have_means(told: list[dict[str, Any]], count: int) -> None:
    over, along = [1.0, 1 + SUM[count] / count], (count + SUM[count] + count) / (2 * count)
    expected = [[[over], None], [[along], None]]
    found = agreed(told, "reductions_of_whole_numbers")
    assert found == [expected * 2, ["torch.float32"] * 2, 1.5 * count]


def test_variables_without_gradients_are_named(told: list[dict[str, Any]]) -> None:
    text = ["Gradients do not exist for variables ['nowhere:0'] when minimizing the loss."]
    assert agreed(told, "missing_gradients_are_said") == [text] * 3


def test_ranks_compare_what_ordered_sums_depend_on(told: list[dict[str, Any]], count: int) -> None:
    found = agreed(told, "what_ordered_sums_depend_on")
    if count == 3:
        assert found == []
        return
    start = "ReplicaMismatchError: rank 1 disagrees with rank 0 at "
    assert found == [
        f"{start}threads of torch: 2 vs 1.",
        f"{start}micro_batches of the strategy: 16 vs 8.",
        "nothing was raised",
    ]


def test_none_counts_as_zeros_where_another_rank_has_a_gradient(
    told: list[dict[str, Any]], count: int
) -> None:
    found = agreed(told, "none_counts_as_zeros")
    rest = SUM[count] - 1
    for face in ("keras", "v1"):
        assert found[face] == [moved(1), moved(rest), [1.0, 2.0]]
        assert found[f"{face} none"].startswith("ValueError: No gradients provided for any var")
    assert agreed(told, "none_in_a_loss") == [[moved(1), moved(count - 1)]] * 2


def test_hooks_of_keras_come_in_order(told: list[dict[str, Any]], count: int) -> None:
    hooked, said, aggregated, calls = agreed(told, "hooks_of_keras")
    assert hooked == moved(2 * 2 * SUM[count])
    assert said == ["own", "sum"] * 2
    assert (aggregated, calls) == (moved(1), [1])


def test_clipping_follows_the_sum(told: list[dict[str, Any]], count: int) -> None:
    by_norm, by_value = agreed(told, "clipping_follows_the_sum")
    assert by_norm == pytest.approx([1 - 2**-0.5] * 2)
    assert by_value == [-3.0, -3.0]


def test_distributed_apply_takes_strategies_and_groups(
    told: list[dict[str, Any]], count: int
) -> None:
    assert agreed(told, "distributed_apply") == [[moved(SUM[count]), 1]] * 3


def test_extended(told: list[dict[str, Any]]) -> None:
    assert agreed(told, "extended") == [[True, [2.0, 3.0]], [1], 3, ["cpu"]]


def test_assignments_in_replicas_are_aggregated(told: list[dict[str, Any]], count: int) -> None:
    found, total = agreed(told, "assignments_are_aggregated"), SUM[count]
    own = [[2 * (rank + 1) + 9.0, 3.0] for rank in range(count)]
    both = {"AUTO": own, "ON_READ": own}
    values = {
        "NONE": both,
        "SUM": both | {"AUTO": [[2 * total - count + 10, 4.0 * count - count]] * count},
        "MEAN": both | {"AUTO": [[2 * total / count + 9, 3.0]] * count},
        "ONLY_FIRST_REPLICA": both | {"AUTO": [own[0]] * count},
    }
    for kind, expected in values.items():
        assert {sync: found[f"{kind} {sync}"] for sync in both} == expected
    assert found["hook"] == [2 * total, moved(total)]
    assert found["integers"].endswith("int64, which has no mean over replicas. Use"
                                      " VariableAggregation.SUM.")  # fmt: skip
    assert found["tf"] == [[total], "named:0"]


def test_assignments_of_graphs_are_aggregated(told: list[dict[str, Any]], count: int) -> None:
    total = SUM[count]
    mean, both = total / count, [total, 4.0 * count]
    new = {"add_weight": [mean, 4.0], "get_variable": [mean, 4.0], "tf": both, "compat": both}
    values = {name: [first * 2, last] for name, (first, last) in new.items()}
    values["tf"] = [2 * total - 1, 4.0 * count - 1]
    for rank, each in enumerate(told):
        found, own = each["assignments_in_graphs"], [rank + 1.0, 4.0]
        assert found["new"] == {**new, "v1": [1.0, 4.0], "on read": own}
        assert found["values"] == {**values, "v1": [2.0, 4.0], "on read": [2 * rank + 2.0, 4.0]}
        at_once = "InvalidArgumentError: Cannot assign to 'Variable:0': it has shape (2,) but the"
        assert found["refused"].startswith("ReplicaMismatchError: rank " if rank == 1 else at_once)
        assert found["integers"].endswith("no mean over replicas. Use VariableAggregation.SUM.")


def test_refused_assignments_keep_no_rank_waiting(told: list[dict[str, Any]], count: int) -> None:
    own = ["InvalidArgumentError", "InvalidArgumentError", "InvalidTypeError", "InvalidTypeError"]
    for rank, each in enumerate(told):
        errors, w, u, first = each["refused_assignments"]
        kinds = own if rank == count - 1 else ["ReplicaMismatchError"] * 4
        assert [error.partition(":")[0] for error in errors] == [*kinds, "ReplicaMismatchError"]
        where = "disagrees with rank 0 at what is assigned to: 'u:0', MEAN vs 'w:0', MEAN."
        assert where in errors[-1]
        assert (w, u, first) == ([SUM[count] / count, 3.0], [0.0, 0.0], [0.0, 0.0])


def test_optimizers_of_torchs_kind_are_refused(told: list[dict[str, Any]], count: int) -> None:
    errors, before, is_free = agreed(told, "optimizers_of_torchs_kind")
    alone = "FailedPreconditionError: SGD would train this replica alone: optimizers of torch's"
    assert all(error.startswith(alone) and f"the {count} replicas" in error for error in errors)
    assert (before, is_free) == ([[0.0, 0.0], [0.0, 0.0], []], True)


def test_examples_of_the_documents(told: list[dict[str, Any]], count: int) -> None:
    found = agreed(told, "examples_of_the_documents")
    batch, w = torch.arange(1.0, 13.0).view(-1, 2), torch.tensor([1.0, 2.0])
    mean = 2 * (batch @ w) @ batch / len(batch)  # of the loss over all examples
    by_hand, clipped, summed = found["aggregated"]
    assert by_hand == summed == pytest.approx((w - 0.1 * mean).tolist())
    assert clipped == pytest.approx([0.9, 1.9])
    assert found["written"] == ["all", [1.0 - count], 1]
    assert found["across"] == [True]
    assert found["eager group"] is None


@pytest.mark.parametrize("gate", ["0", "1", "2"])
def test_losses_without_a_list_of_variables(
    told: list[dict[str, Any]], count: int, gate: str
) -> None:
    for rank, each in enumerate(told):
        first, broken, more, none, last, values = each["losses_without_a_list_of_variables"][gate]
        assert first == last == "nothing was raised"
        error = "KeyError: 'no such batch'"
        trouble = "ReplicaMismatchError: rank {} raised an error before its gradients were there: "
        trouble += error
        assert broken == (error if rank else trouble.format(count - 1))
        assert more.endswith("disagrees with rank 0 at the number of variables: 2 vs 1")
        assert none.endswith("disagrees with rank 0 at the number of variables: 0 vs 1")
        assert values == [moved(2 * SUM[count]), [1.0, 2.0]]


def test_reductions_are_nodes_of_a_graph(told: list[dict[str, Any]], count: int) -> None:
    found = agreed(told, "graphs")
    assert found["train_op"]
    assert found["across"].startswith(CROSS["v1"])
    w, u, keras = found["values"]
    assert w == pytest.approx([0.0, 1.0], abs=1e-5)  # Adam's first steps, whatever the gradient
    assert u == pytest.approx([0.0, 1.0], abs=1e-5)
    assert keras == [1.0 - 2 * 0.5 * SUM[count], 2.0 - 2 * 0.5 * 2 * count]
    assert (found["unused"], found["step"]) == ([5.0], 2)
    assert found["total"] == [SUM[count], 2.0 * count]


def test_a_mean_loss_is_scaled_for_estimators_alone(told: list[dict[str, Any]], count: int) -> None:
    plain = [1.0, False]
    scaled = [pytest.approx(1 / count), True]
    unknown, of_a_sum, of_a_mean = [plain, scaled, plain], [plain] * 3, [plain, scaled, plain]
    assert agreed(told, "scaled_losses") == [*unknown, *of_a_sum, *of_a_mean]


def test_horovod_is_the_mean_over_the_ranks(told: list[dict[str, Any]], count: int) -> None:
    assert agreed(told, "horovod_is_the_mean") == 4.0 - 2 * SUM[count] / count


def test_steps_of_horovod(told: list[dict[str, Any]], count: int) -> None:
    mean = SUM[count] / count
    for rank, each in enumerate(told):
        found = each["steps_of_horovod"]
        assert found["own apply_gradients"] == 4 - mean
        trouble = "ReplicaMismatchError: rank 1 raised an error before its gradients were there"
        assert found["an error on one"].startswith(
            "KeyError: 'no such batch'" if rank == 1 else trouble
        )
        assert found["after it"] == found["untouched"] == 4 - 2 * mean
        assert "rank 1 disagrees with rank 0 at learning_rate: 2.0 vs 1.0." in found["rates"]
        alone = (
            f"InvalidArgumentError: optimize_loss needs on_horovod=True in a strategy of {count}"
        )
        assert all(words.startswith(alone) for words in found["alone"])
        assert found["compressed"] == pytest.approx(-8 * mean, abs=8 * 2**-7)
        if count == 2:
            *words, before, after = found["ordered"]
            order = "InvalidArgumentError: iter_size=2 and reduction='ordered' exclude one another"
            assert all(each.startswith(order) for each in words)
            assert (before, after) == (4 - 2 * mean, 4 - 3 * mean)


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
def test_ranks_that_differ_all_say_where(told: list[dict[str, Any]], name: str) -> None:
    message = f"ReplicaMismatchError: rank 1 disagrees with rank 0 at {DIFFERENCES[name]}"
    assert [each["ranks_that_differ"][name].startswith(message) for each in told] == [True] * len(
        told
    )


def test_a_rank_in_trouble_stops_all(told: list[dict[str, Any]]) -> None:
    found = [each["ranks_that_differ"] for each in told]
    assert all(each["untouched"] == [[1.0, 2.0]] * 2 for each in found)
    assert all("is dense on one rank and sparse on another" in each["kinds"] for each in found)
    first, *others = [each["trouble"] for each in found]
    assert " raised an error before its gradients were there" in first
    assert all(each.startswith("InvalidTypeError: Gradient must be conv") for each in others)


def test_broadcast(told: list[dict[str, Any]]) -> None:
    values, alike, refusal = agreed(told, "broadcast")
    assert values == [1.0, 1.0]
    assert all(alike)
    assert "the number of variables: 2 vs 1" in refusal


def test_sums_do_not_depend_on_buckets(told: list[dict[str, Any]]) -> None:
    assert agreed(told, "many_buckets") == [True] * 3


@pytest.mark.parametrize("face", ["keras", "v1"])
def test_gradients_are_sent_while_others_are_computed(
    told: list[dict[str, Any]], count: int, face: str
) -> None:
    found = [each["gradients_are_sent_while_others_are_computed"] for each in told]
    a, b, table, frozen = found[0][face]
    assert all(each[face] == found[0][face] for each in found)
    assert a == moved(5 * SUM[count])
    assert b == moved(3 * count + (count - 1))
    assert table == [-0.5 * 5] * count + [-0.5 * 5 * count] * (3 - count) or count == 3
    assert frozen == 5.0
    assert all(each[f"{face} sent"] == found[0][f"{face} sent"] for each in found)
    for rank, each in enumerate(found):
        error = "KeyError" if rank == 1 else "ReplicaMismatchError"
        nothing = "nothing was raised"
        assert each[f"{face} told"] == [nothing] * 4 + [error, nothing]


def test_gradients_that_somebody_changes_are_sent_again(
    told: list[dict[str, Any]], count: int
) -> None:
    assert agreed(told, "gradients_that_somebody_changes") == [moved(2 * 4 * SUM[count])] * 3


def test_gradients_that_change_their_kind(told: list[dict[str, Any]], count: int) -> None:
    found, total = agreed(told, "gradients_that_change_their_kind"), SUM[count]
    rows = [-0.5 * 2 * count - 0.5 * 2 * (row < count) for row in range(2)]
    last = -0.5 * 2 * count - 0.5 * 2 * (count + (count == 3))
    assert found["sparse"] == [moved(4 * total), [*rows, last]]
    assert found["added"] == [moved(3 * total)] * 2
    assert found["twice"] == moved(2 * 3 * total)
    assert found["foreign"] == moved(5 * total)


def test_buckets_stay_and_sums_that_somebody_keeps_do_too(
    told: list[dict[str, Any]], count: int
) -> None:
    total = SUM[count]
    for name, keeps, is_one_place, a, b, *kept in agreed(told, "memory_of_buckets"):
        assert a == b == moved(36 * total), name
        assert is_one_place is not keeps, name
        assert kept == ([total * number for number in range(1, 9)] if keeps else []), name


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_16_bits_leave_out_is_sent_later(
    told: list[dict[str, Any]], count: int, dtype: str
) -> None:
    found = agreed(told, "compressed_sums")
    (alike, fed), (also, lost) = found[f"{dtype} True"], found[f"{dtype} False"]
    assert alike
    assert also
    # No more than half a spacing is left, of a number that was divided by the ranks.
    spacing = {"float16": (2**-24, 2**-11), "bfloat16": (2**-34, 2**-8)}[dtype]
    assert fed[0] == pytest.approx(32e-8, abs=count * spacing[0] / 2)
    assert fed[1] == pytest.approx(32 * (1 + 2**-12), abs=count * spacing[1] / 2)
    assert abs(lost[1] - 32 * (1 + 2**-12)) > 32 * 2**-14
    assert lost[0] == 0 or dtype == "bfloat16"


def test_compression_saves_bytes_of_wide_dense_gradients(
    told: list[dict[str, Any]], count: int
) -> None:
    plain, *narrow = agreed(told, "bytes_that_are_compressed")
    assert plain[0] == 400 + 80 + 14 + 24
    for size, rows, values in narrow:
        assert size == 200 + 20 + 14 + 24
        assert rows == plain[1]
        assert values == plain[2] == [-2.0 * count * count] * 4


def test_steps_that_fail_leave_what_was_left_out(told: list[dict[str, Any]]) -> None:
    for each in told:
        same, nothing, words, moved = each["steps_that_fail_leave_what_was_left_out"]
        assert same
        assert nothing == ["nothi"]
        assert words == ["KeyEr", "nothi"]
        assert moved


def test_numbers_too_large_for_16_bits_are_seen(told: list[dict[str, Any]], count: int) -> None:
    rest = str(3.0 * count)
    assert agreed(told, "numbers_too_large_for_16_bits") == [
        f"[inf, {rest}]", f"[inf, {rest}]", f"[nan, {rest}]", f"[{2.0 * count}, {rest}]",
    ]  # fmt: skip


def test_ordered_sums_have_the_bits_of_one_rank(told: list[dict[str, Any]], count: int) -> None:
    found = agreed(told, "ordered_sums")
    if count == 3:
        assert (
            found
            == "InvalidArgumentError: An ordered reduction needs 1, 2, 4, 8, ... ranks, not 3."
        )
        return
    dense, sparse, never, refusal = found
    assert dense
    assert sparse
    assert never == [1.0, 2.0]
    assert (
        refusal == "InvalidArgumentError: micro_batches must be a multiple of the 2 ranks, not 9."
    )


def test_replicas_hold_equal_bits_after_every_step(told: list[dict[str, Any]]) -> None:
    names, differ = agreed(told, "replicas_hold_equal_bits")
    assert len(names) == len(by_rule())
    assert differ == []


def test_a_job_is_gone_on_with_by_other_numbers_of_ranks(
    told: list[dict[str, Any]], count: int
) -> None:
    check_resumed(told, count)


def check_resumed(told: list[dict[str, Any]], count: int) -> None:
    """Each is as if it had never stopped: to the bit, or but for the order of sums."""
    sizes = range(1, count + 1)
    powers = [size for size in sizes if size & (size - 1) == 0]
    for rank, each in enumerate(told):
        pairs = {f"sum {one} {other}" for one in sizes for other in sizes if other > rank}
        pairs |= {f"ordered {one} {other}" for one in powers for other in powers if other > rank}
        assert each["resumed_jobs"].keys() == pairs
        for name, (is_equal, distance) in each["resumed_jobs"].items():
            assert is_equal or name.startswith("sum"), name
            assert distance < 1e-6, name


def test_a_file_that_several_ranks_write_is_whole(told: list[dict[str, Any]]) -> None:
    files = ["checkpoint-6.safetensors", "checkpoint-7.safetensors", "one"]
    assert agreed(told, "files_that_several_ranks_write") == [[True] * 3, files]


def test_without_a_group_there_is_one_replica() -> None:
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


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(thalweg.InvalidTypeError, match="group must be a process group"):
        Strategy("gloo")
    with pytest.raises(thalweg.InvalidArgumentError, match="timeout must be above 0, not -1"):
        Strategy(timeout=-1)
    for silly in (float("inf"), 1e300, 1e10, 10**400, 1e-9):
        with pytest.raises(thalweg.InvalidArgumentError, match="timeout must be from 0"):
            Strategy(timeout=silly)
    with pytest.raises(thalweg.InvalidArgumentError, match="timeout must be above 0, not nan"):
        Strategy(timeout=float("nan"))
    for option, given in (("timeout", True), ("timeout", "9"), ("bucket_size", True)):
        with pytest.raises(thalweg.InvalidTypeError, match=f"{option} must be a number, not "):
            Strategy(**{option: given})  # pyright: ignore[reportArgumentType]
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
