"""Slots that ranks share out; what the ranks do is in `sharding_cases`."""

from __future__ import annotations

import random
from typing import Any

import pytest
from torch import distributed

import sharding_cases
from thalweg._engines.reduction_order import LEAF
from thalweg.distribute.sharding.shard_layout import pieces_of

pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="torch without torch.distributed"
)

COUNTS = (2, *(pytest.param(count, marks=pytest.mark.slow) for count in (3, 4)))
ranks = pytest.mark.parametrize("told", COUNTS, indirect=True)
Told = list[dict[str, Any]]
KINDS = len(sharding_cases.variables())


@ranks
@pytest.mark.parametrize("name", sharding_cases.OPTIMIZERS)
def test_variables_and_slots_have_the_bits_of_one_process(told: Told, name: str) -> None:
    for each in told:
        found = each["shared_out"][name]
        assert found["variables"]
        assert found["slots"]
        assert all(found["weights"])


@ranks
@pytest.mark.parametrize("name", sharding_cases.OPTIMIZERS)
def test_no_rank_has_more_slots_than_its_share_and_a_leaf(told: Told, name: str) -> None:
    variables = sharding_cases.variables()
    whole = sum(var.numel() * var.element_size() for var in variables)
    leaf, rounding = LEAF * 4, 64 * len(variables)
    for each in told:
        found = each["shared_out"][name]
        kinds = found["kinds of slot"]
        assert found["bytes"] <= kinds * (whole / len(told) + leaf + rounding)


@ranks
def test_states_are_brought_together_and_shared_out(told: Told) -> None:
    for each in told:
        found = each["saved_and_restored"]
        for way in ("by a new one", "by the same", "by one process", "by a state"):
            assert found[way], way
        assert all(found["weights"])
        assert found["slot"] == [3, LEAF]
        assert found["manager"] == [1]


@ranks
@pytest.mark.parametrize("name", ["adam", "lars", "keras"])
def test_gradients_may_be_those_of_tf_train_and_sums(told: Told, name: str) -> None:
    assert [each["in_tf_train"][name] for each in told] == [[True, True]] * len(told)


MESHES = ("adam", "clipnorm", "global_clipnorm", "lars")


@ranks
@pytest.mark.parametrize("name", MESHES)
def test_local_parts_of_dtensors_are_updated(told: Told, name: str) -> None:
    for each in told:
        found = each["of_a_mesh"][name]
        # Without norms nothing depends on how a variable is cut.
        bound = 0 if name == "adam" else 2**-22
        assert found["variables"] <= bound
        assert found["slots"] <= bound
        assert found.get("restored", True)
        assert found["numerics"].endswith("gradient of 'uneven:0' : Tensor had NaN values")
        assert "'uneven:0' is sparse, and the variable a DTensor" in found["rows"]
        assert "'uneven:0' is a DTensor, whose gradients torch has summed" in found["summed"]


@ranks
def test_parameters_of_fully_shard_are_updated(told: Told) -> None:
    assert all(each["of_fully_shard"] < 1e-6 for each in told)


@ranks
def test_gradients_of_a_loss_go_where_their_parts_are(told: Told) -> None:
    first, *others = [each["sent_while_others_are_computed"] for each in told]
    assert first["bits"]
    assert all(other == first for other in others)


@ranks
def test_variables_of_equal_shapes_may_take_turns(told: Told) -> None:
    assert [each["kept_from_step_to_step"] for each in told] == [True] * len(told)


@ranks
def test_a_variable_with_gaps_is_sent_as_a_whole(told: Told) -> None:
    assert [each["alone_with_gaps"] for each in told] == [True] * len(told)


@ranks
def test_ordered_sums_have_the_bits_of_one_rank(told: Told) -> None:
    expected = None if len(told) == 3 else True
    assert [each["same_bits_on_any_number"] for each in told] == [expected] * len(told)


def of_one(told: Told, name: str, rank: int) -> tuple[str, set[str]]:
    """What a rank says of its error, and what the others say."""
    said = [each["ranks_in_trouble"][name] for each in told]
    return said[rank], set(said[:rank] + said[rank + 1 :])


@ranks
def test_a_step_that_fails_on_one_rank_fails_on_all(told: Told) -> None:
    own, others = of_one(told, "schedule", 1)
    assert own == "KeyError: 'no rate'"
    nothing = "Nothing has changed on any rank."
    assert others == {
        f"ReplicaMismatchError: rank 1 raised an error in its step: KeyError: 'no rate'. {nothing}",
    }
    own, others = of_one(told, "constraint", 1)
    assert own == "RuntimeError: Cannot use a constraint function on a sparse variable: 'rows:0'."
    assert len(others) == 1
    assert others.pop().startswith("ReplicaMismatchError: rank 1 raised an error in its step: Runt")
    own, others = of_one(told, "resized", 1)
    assert own.startswith("InvalidArgumentError: 'cut:0' has 131072 elements now")
    assert len(others) == 1
    assert others.pop().startswith("ReplicaMismatchError: rank 1 raised an error before its grad")
    shapes = [each["ranks_in_trouble"]["shape"] for each in told]
    assert shapes[0].startswith("ReplicaMismatchError: rank ")
    assert all(each.startswith("InvalidArgumentError: Gradient of") for each in shapes[1:])
    for each in told:
        found = each["ranks_in_trouble"]
        assert found["numerics"].startswith("InvalidArgumentError: gradient of 'cut:0'")
        assert "no variable can come twice in a step: small:0" in found["twice"]
        assert found["moved"].startswith("InvalidArgumentError: 'cut:0' has strides (1, 3) now")
        assert found["state"].startswith("ReplicaMismatchError: rank 1 disagrees with rank 0 at")
        assert "it brings the state of an optimizer together" in found["state"]
        assert found["unchanged"]
        assert found["after"]


@ranks
def test_what_does_not_go_with_shared_slots_is_refused(told: Told) -> None:
    for each in told:
        found = each["ranks_in_trouble"]
        assert "are shared out over the ranks of a strategy" in found["elsewhere"]
        assert "its variables are not updated by a rule alone" in found["by a hook"]
        assert "cannot be copied or pickled" in found["copied"]


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_pieces_are_even(count: int) -> None:
    draw = random.Random(count)
    for _ in range(200):
        loads, total = [0] * count, 0
        for _ in range(draw.randint(1, 12)):
            size = draw.choice([0, 1, 50, 99, 100, 101, 250, draw.randint(1, 3000)])
            pieces = pieces_of(size, loads, 100)
            ends = [0, *(piece.stop for piece in pieces)]
            assert [piece.start for piece in pieces] == ends[:-1]
            assert ends[-1] == size
            assert len({piece.rank for piece in pieces}) == len(pieces)
            assert all(piece.start % 100 == 0 for piece in pieces)
            for rank, start, stop in pieces:
                loads[rank] += stop - start
            total += size
            assert max(loads) <= total / count + 100
