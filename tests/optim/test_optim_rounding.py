"""round="stochastic": the same bits however a step is taken, states, options beside, refusals."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import thalweg
from replay_twins import count_replays
from rulebook import assert_same, slow_unless
from thalweg import checkpoint, optim
from thalweg._core.options.stochastic_rounding import Rounding
from thalweg.errors import CheckpointMismatchError
from thalweg.optim import tensorflow
from thalweg.optim.rounding_streams import places_of
from thalweg.optim.rule_names import HOMES, KINDS

SEED = 7**15
HOW: dict[str, Any] = {"round": "stochastic", "seed": SEED}
SIZES = (1, 7, 8, 255, 256, 257, 65536 + 257)
SHAPES = ((), (257,), (9, 31), (2, 3, 70))
DTYPES = (torch.bfloat16, torch.float16)
MATRICES = tuple(name for name, home in HOMES.items() if home == "modern.matrix_rules")
OF_LINES = ("Adafactor", "SM3")  # whose elements see numbers of rows and columns
ELEMENTWISE = [
    *(("optim", name) for name in KINDS if name not in (*MATRICES, *OF_LINES, "SparseAdam")),
    *(("tensorflow", name) for name in tensorflow.__all__),
]
ARGUMENTS: dict[tuple[str, str], dict[str, Any]] = {
    ("optim", "SGD"): {"momentum": 0.9},
    ("tensorflow", "AdamW"): {"weight_decay": 0.01},
    ("tensorflow", "MomentumW"): {"weight_decay": 0.01},
    ("tensorflow", "RMSprop"): {"momentum": 0.9, "centered": True},
}
QUICK = ("SGD", "AdamW", "Lion")  # kernels take long to compile


def maker(home: str, name: str, **given: Any) -> Callable[[Any], Any]:
    """What makes an optimizer of parameters."""
    cls = getattr(optim if home == "optim" else tensorflow, name)
    arguments = {"lr": 0.01, **ARGUMENTS.get((home, name), {}), **HOW, **given}
    return lambda params: cls(params, **arguments)


def params_of(dtype: torch.dtype, shapes: Sequence[Any] = SHAPES) -> list[Parameter]:
    made = torch.Generator().manual_seed(0)
    return [Parameter(torch.randn(shape, generator=made).to(dtype)) for shape in shapes]


def give(params: Sequence[Tensor], step: int, without: Any = ()) -> None:
    for place, param in enumerate(params):
        made = torch.Generator().manual_seed(1000 * step + place)
        grad = (torch.randn(param.shape, generator=made) / 8).to(param.dtype)
        param.grad = None if place in without else grad


def params(made: Any) -> list[Tensor]:
    return [param for group in made.param_groups for param in group["params"]]


def everything(made: Any) -> list[Tensor]:
    """Parameters and all that is kept of them."""
    own = [made.state[param] for param in params(made)]
    kept = [x for each in own for x in each.values() if isinstance(x, Tensor)]
    found = [each.detach().clone() for each in (*params(made), *kept)]
    return [each.int() if each.dtype == torch.uint8 else each for each in found]


def steps(made: Any, count: int, first: int = 0, is_careful: bool = False) -> Any:
    for step in range(first, first + count):
        give(params(made), step)
        if is_careful:
            made._cache.forget_replay()
            made._cache.rebind_target = None
            for part in (*made._cache.parts.values(),):
                part.plans.last = None
        made.step()
    return made


def trained(
    make: Any,
    dtype: torch.dtype,
    shapes: Any = SHAPES,
    engine: str = "cpu",
    count: int = 5,
    **how: Any,
) -> Any:
    with thalweg.engine(engine):
        return steps(make(params_of(dtype, shapes)), count, **how)


# The same bits


@pytest.fixture
def threads() -> Any:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("home", "name", "dtype"),
    [
        slow_unless(dtype == DTYPES[0] and name in QUICK, home, name, dtype)
        for home, name in ELEMENTWISE
        for dtype in DTYPES
        if name != "RuleOptimizer"
    ],
    ids=lambda each: str(each).removeprefix("torch."),
)
def test_engines_threads_and_ways_agree(
    home: str, name: str, dtype: torch.dtype, threads: Any
) -> None:
    """To the last bit of parameters and slots; and to nearest is something else."""
    make = maker(home, name)
    wanted = trained(make, dtype, SIZES, "reference")
    for count in (1, 2):
        threads(count)
        quick = trained(make, dtype, SIZES)
        assert_same(everything(quick), everything(wanted))
        # TensorFlow's Nadam has a number of 16 bits, and looks at each step; Prodigy adds up first.
        is_careful = (home, name) in (("tensorflow", "Nadam"), ("optim", "Prodigy"))
        assert count_replays(quick) == (0 if is_careful else 3)
        careful = trained(make, dtype, SIZES, is_careful=True)
        assert_same(everything(careful), everything(wanted))
        assert count_replays(careful) == 0
    nearest = trained(maker(home, name, round=None, seed=0), dtype, SIZES)
    far = [not torch.equal(a, b) for a, b in zip(params(nearest), params(wanted), strict=True)]
    assert far[-1]


@pytest.mark.parametrize(
    "name", [slow_unless(x in ("Muon", "SM3"), x) for x in (*MATRICES, *OF_LINES)]
)
def test_rules_of_matrices(name: str) -> None:
    """Their parameters, and slots with a number for each element."""
    shapes, make = ((24, 16), (300, 257)), maker("optim", name)
    made, wanted = (trained(make, torch.bfloat16, shapes, each) for each in ("cpu", "reference"))
    assert_same(everything(made), everything(wanted))


@pytest.mark.parametrize("shape", [(3, 70_000), (70_000, 3), (5, 3, 3, 3), (1, 257), (257, 1)])
@pytest.mark.parametrize(("dtype", "other"), [(torch.bfloat16, None), (torch.float32, "bfloat16")])
def test_rows_and_columns_of_any_length(
    shape: tuple[int, ...], dtype: torch.dtype, other: str | None, threads: Any
) -> None:
    """Rows lie in several chunks and blocks, chunks in several rows."""
    state = {"state_dtype": getattr(torch, other)} if other else {}
    make = maker("optim", "SM3", momentum=0.9, **state)
    wanted = trained(make, dtype, [shape, (9, 31)], "reference")
    for count in (1, 2):
        threads(count)
        assert_same(everything(trained(make, dtype, [shape, (9, 31)])), everything(wanted))


BESIDE: list[dict[str, Any]] = [
    {"clip_grad_norm": 0.5},
    {"clip_grad_value": 0.05},
    {"fused_unscale": True},
    {"lookahead": 2},
    {"ema_decay": 0.9},
    {"masters": True},
    {"masters": True, "state_dtype": torch.bfloat16},
    {"state_dtype": torch.float16},
    {"state_dtype": torch.float32},
    {"accumulate": 2},
    {"accumulate": 2, "wide_sums": True},
    {"cautious": True},
    {"cautious_decay": True},
    {"trust_ratio": True},
    {"sphere": True},
    {"state_storage": "8bit"},
    {"gradients": "flat"},
]
BY_TORCH = ("cautious_decay", "state_storage")  # options that the table tries with torch's numbers


@pytest.mark.parametrize("options", BESIDE, ids=str)
@pytest.mark.parametrize("home", ["optim", "tensorflow"])
def test_options_beside(home: str, options: dict[str, Any]) -> None:
    if home == "tensorflow" and not {*options}.isdisjoint(BY_TORCH):
        return
    shapes = (*SHAPES, (4096 + 7,))
    make = maker(home, "Adam" if home == "tensorflow" else "AdamW", **options)
    found: list[list[Tensor]] = []
    for engine, is_careful in (("cpu", False), ("cpu", True), ("reference", False)):
        with thalweg.engine(engine):
            made = make(params_of(torch.bfloat16, shapes))
            for step in range(8):
                if "gradients" in options:
                    for place, param in enumerate(params(made)):
                        (param * (step - place - 0.5) / 64).square().sum().backward()
                else:
                    give(params(made), step)
                if is_careful:
                    made._cache.forget_replay()
                made.step()
                if "gradients" in options:
                    made.zero_grad()
        found.append(everything(made))
    assert_same(found[0], found[1])
    assert_same(found[0], found[2])


def test_masters_are_followed_to_the_nearest() -> None:
    """They have what rounding loses; their slots of 16 bits are rounded by random bits."""
    made = trained(maker("optim", "AdamW", masters=True), torch.bfloat16)
    plain = trained(maker("optim", "AdamW", masters=True, round=None, seed=0), torch.bfloat16)
    assert_same(everything(made), everything(plain))
    how = {"masters": True, "state_dtype": torch.bfloat16}
    drawn = trained(maker("optim", "AdamW", **how), torch.bfloat16)
    nearest = trained(maker("optim", "AdamW", **how, round=None, seed=0), torch.bfloat16)
    for param, other in zip(params(drawn), params(nearest), strict=True):
        assert_same([param.detach()], [drawn.state[param]["master"].bfloat16()])
        if param.dim():
            slots = drawn.state[param]["exp_avg"], nearest.state[other]["exp_avg"]
            assert not torch.equal(*slots)


def test_what_a_scaler_leaves_out_draws_nothing() -> None:
    make = maker("optim", "AdamW")
    wanted = steps(make(params_of(torch.bfloat16)), 4)
    for options in ({}, {"fused_unscale": True}):
        made = maker("optim", "AdamW", **options)(params_of(torch.bfloat16))
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100)
        taken_steps = 0
        for step in range(5):
            give(params(made), taken_steps)
            for param in params(made):
                assert param.grad is not None
                param.grad *= scaler.get_scale() if step != 2 else float("inf")
            scaler.scale(torch.zeros(()))  # which has it begin
            scaler.step(made)
            scaler.update()
            taken_steps += step != 2
        assert_same(everything(made), everything(wanted))


# What bits depend on


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("home", ["optim", "tensorflow"])
def test_a_parameter_draws_the_same_whatever_others_do(home: str, place: int) -> None:
    """They have no gradient now and then, or are added later."""
    shapes, make = ((300,), (300,), (40,)), maker(home, "Adam")
    wanted = trained(make, torch.bfloat16, shapes, count=6)
    made = make(params_of(torch.bfloat16, shapes))
    later = make(params_of(torch.bfloat16, shapes)[: place + 1])
    for step in range(6):
        give(params(made), step, without={0, 1, 2} - {place} if step % 2 else {(place + 1) % 3})
        made.step()
        if step == 3 and place < 2:
            later.add_param_group({"params": params_of(torch.bfloat16, shapes)[place + 1 :]})
        give(params(later), step)
        later.step()
    own = params(wanted)[place].detach()
    assert_same([params(made)[place].detach(), params(later)[place].detach()], [own, own])


def test_a_parameter_counts_its_own_steps() -> None:
    """One whose gradients begin later has the bits of one that was added later."""
    shapes = ((300,), (300,))
    both = maker("optim", "SGD", momentum=0)(params_of(torch.bfloat16, shapes))
    late = maker("optim", "SGD", momentum=0)(params_of(torch.bfloat16, shapes[:1]))
    late.add_param_group({"params": params_of(torch.bfloat16, shapes)[1:]})
    for step in range(4):
        for made in (both, late):
            give(params(made), step, without={1} if step < 2 else ())
            made.step()
    assert_same(everything(both), everything(late))


@pytest.mark.parametrize("home", ["optim", "tensorflow"])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)], ids=str)
def test_gradients_may_come_in_any_order(home: str, order: Sequence[int]) -> None:
    made = maker(home, "Adam", in_backward=True)(params_of(torch.bfloat16))
    plain = maker(home, "Adam")(params_of(torch.bfloat16))
    for step in range(5):
        for place in order:
            (params(made)[place] * (step - place - 0.5) / 64).sum().backward()
        for place in range(4):
            (params(plain)[place] * (step - place - 0.5) / 64).sum().backward()
        for each in (made, plain):
            each.step()
            each.zero_grad()
    assert_same(everything(made), everything(plain))


def test_nothing_draws_what_another_does() -> None:
    """Parameters of one value and one gradient: of a group, of two, and of other seeds."""

    def moved(groups: int, seed: int) -> list[Tensor]:
        same = [Parameter(torch.ones(4096, dtype=torch.bfloat16)) for _ in range(4)]
        own = [{"params": same[k::groups]} for k in range(groups)]
        made = optim.SGD(own, lr=2.0**-9, round="stochastic", seed=seed)
        for param in same:
            param.grad = torch.ones_like(param)
        made.step()
        return [param.detach() for param in params(made)]

    several = [*moved(1, 1), *moved(1, 2), *moved(1, 1 << 24)]
    for k, one in enumerate(several):
        for other in several[k + 1 :]:
            assert 0.3 < (one == other).float().mean() < 0.7
    assert_same(moved(2, 1), several[:4])  # of the place among all, not in a group


def test_slots_draw_apart() -> None:
    """From each other, and from the parameter: bits of one do not tell those of another."""
    param = Parameter(torch.ones(4096, dtype=torch.bfloat16))
    param.grad = torch.full_like(param, 0.7)
    made = optim.Adam([param], lr=2.0**-9, **HOW)
    made.step()
    own = made.state[param]
    numbers = [each.detach().float() for each in (param, own["exp_avg"], own["exp_avg_sq"])]
    both = torch.stack([(each > each.mean()).float() for each in numbers])
    told = torch.corrcoef(both) - torch.eye(3)
    assert told.abs().max() < 5 / 64


# What it is for


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("home", ["optim", "tensorflow"])
def test_small_steps_add_up(home: str, dtype: torch.dtype) -> None:
    """A weight of 1 stands still with steps of 1e-4 to the nearest."""
    found: list[float] = []
    for how in (HOW, {"round": None, "seed": 0}):
        param = Parameter(torch.ones(4096, dtype=dtype))
        made = maker(home, "SGD", **{"lr": 1e-4, "momentum": 0.0, **how})([param])
        for _ in range(100):
            param.grad = torch.ones_like(param)
            made.step()
        found.append(param.double().mean().item())
    assert abs(found[0] - 0.99) < 5e-4
    assert found[1] == 1.0


def test_a_decay_that_is_small_counts() -> None:
    """That of TensorFlow's classes comes before the rule, and is rounded with it."""
    for cls, lr, decay in ((tensorflow.AdamW, 1e-3, 1e-4), (optim.AdamW, 1e-3, 0.1)):
        param = Parameter(torch.ones(4096, dtype=torch.bfloat16))
        made = cls([param], lr=lr, weight_decay=decay, **HOW)
        for _ in range(100):
            param.grad = torch.zeros_like(param)
            made.step()
        assert abs(param.double().mean().item() - (1 - 1e-4) ** 100) < 5e-4


# States


def by_state_dict(made: Any, make: Any, folder: Path) -> Any:
    other = make([Parameter(param.detach().clone()) for param in params(made)])
    other.load_state_dict(copy.deepcopy(made.state_dict()))
    return other


def by_torch_save(made: Any, make: Any, folder: Path) -> Any:
    torch.save(made.state_dict(), folder / "state.pt")
    other = make([Parameter(param.detach().clone()) for param in params(made)])
    other.load_state_dict(torch.load(folder / "state.pt"))
    return other


def by_copy(made: Any, make: Any, folder: Path) -> Any:
    return copy.deepcopy(made)


def by_pickle(made: Any, make: Any, folder: Path) -> Any:
    return pickle.loads(pickle.dumps(made))


def by_checkpoint(made: Any, make: Any, folder: Path) -> Any:
    own = dict(zip("abcd", params(made), strict=True))
    checkpoint.save(folder / "ckpt", optimizer=made, variables=own)
    fresh = dict(zip("abcd", params_of(torch.bfloat16), strict=True))
    other = make(list(fresh.values()))
    checkpoint.restore(folder / "ckpt", optimizer=other, variables=fresh)
    return other


WAYS = (by_state_dict, by_torch_save, by_copy, by_pickle, by_checkpoint)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("home", ["optim", "tensorflow"])
def test_a_training_that_was_stopped_goes_on(home: str, way: Any, tmp_path: Path) -> None:
    make = maker(home, "Adam")
    wanted = trained(make, torch.bfloat16, count=6)
    made = trained(make, torch.bfloat16, count=3)
    again = way(made, make, tmp_path)
    assert_same(everything(steps(again, 3, 3)), everything(wanted))
    assert_same(everything(steps(made, 3, 3)), everything(wanted))
    for group in again.param_groups:
        assert not {"round", "seed"} & {*group}


@pytest.mark.parametrize("home", ["optim", "tensorflow"])
def test_groups_of_a_state_tell_of_bits(home: str) -> None:
    for seed in (0, SEED):
        made = trained(maker(home, "Adam", seed=seed), torch.bfloat16, count=1)
        made.add_param_group({"params": params_of(torch.bfloat16)[:1]})
        for group in made.state_dict()["param_groups"]:
            assert (group["round"], group["seed"]) == ("stochastic", seed)
        assert not {"round", "seed"} & {*made.param_groups[0]}
    plain = trained(maker(home, "Adam", round=None, seed=0), torch.bfloat16, count=1)
    assert not {"round", "seed"} & {*plain.state_dict()["param_groups"][0]}


# Options of the optimizer that saved, and of that which loads; what is said, None if it goes on.
OTHERS: list[tuple[dict[str, Any], dict[str, Any], str | None]] = [
    (HOW, {**HOW, "seed": 8}, f"'seed' of group 0 is {SEED}, here 8; .*convert=True"),
    (
        HOW,
        {},
        f"'round' of group 0 is 'stochastic', here None; .*'seed' of group 0 is {SEED}, here 0",
    ),
    ({"round": "stochastic"}, {}, "'round' of group 0 is 'stochastic', here None; "),
    ({"round": "stochastic"}, HOW, f"'seed' of group 0 is 0, here {SEED}; "),
    ({}, HOW, None),  # a training that goes on with random bits
]


@pytest.mark.parametrize(("saved", "here", "said"), OTHERS)
@pytest.mark.parametrize("home", ["optim", "tensorflow"])
def test_states_of_other_bits(
    home: str, saved: dict[str, Any], here: dict[str, Any], said: str | None, tmp_path: Path
) -> None:
    off = {"round": None, "seed": 0}
    make, other = (maker(home, "Adam", **{**off, **each}) for each in (saved, here))
    state = copy.deepcopy(trained(make, torch.bfloat16, count=2).state_dict())
    made = trained(other, torch.bfloat16, count=1)
    before = everything(made)
    if said is not None:
        with pytest.raises(CheckpointMismatchError, match=f"(?s){said}.*Nothing was loaded"):
            made.load_state_dict(state)
        assert_same(everything(made), before)
        made.load_state_dict(copy.deepcopy(state), convert=True)
    else:
        made.load_state_dict(copy.deepcopy(state))
    assert not {"round", "seed"} & {*made.param_groups[0]}
    went_on = steps(made, 2, 2)
    plain = other([Parameter(each) for each in before[: len(SHAPES)]])
    plain.load_state_dict(state, convert=True)
    assert_same(everything(steps(plain, 2, 2)), everything(went_on))


@pytest.mark.parametrize("home", ["optim", "tensorflow"])
def test_full_precision_tells_nothing_of_bits_and_has_slots_of_float32(home: str) -> None:
    made = trained(maker(home, "Adam"), torch.bfloat16, count=2)
    state = optim.full_precision(made)
    assert not {"round", "seed"} & {*state["param_groups"][0]}
    dtypes = {each.dtype for own in state["state"].values() for each in own.values() if each.dim()}
    assert dtypes == {torch.float32}
    assert "master" not in state["state"][0]
    wide = maker(home, "Adam", round=None, seed=0)(params_of(torch.float32))
    wide.load_state_dict(state)
    steps(wide, 2, 1)


def test_files_of_other_bits_are_refused(tmp_path: Path) -> None:
    made = trained(maker("optim", "Adam"), torch.bfloat16, count=2)
    own = dict(zip("abcd", params(made), strict=True))
    checkpoint.save(tmp_path / "ckpt", optimizer=made, variables=own)
    for how, said in (
        ({"seed": 8}, f"seed is 8, in the file {SEED}"),
        ({"round": None, "seed": 0}, "round is None, in the file 'stochastic'"),
    ):
        fresh = dict(zip("abcd", params_of(torch.bfloat16), strict=True))
        other = maker("optim", "Adam", **how)(list(fresh.values()))
        before = everything(other)
        with pytest.raises(CheckpointMismatchError, match=said):
            checkpoint.restore(tmp_path / "ckpt", optimizer=other, variables=fresh)
        assert_same(everything(other), before)


def test_torch_loads_the_state() -> None:
    made = trained(maker("optim", "AdamW"), torch.bfloat16, count=2)
    torchs = torch.optim.AdamW([Parameter(x.detach().clone()) for x in params(made)])
    torchs.load_state_dict(copy.deepcopy(made.state_dict()))
    give(params(torchs), 3)
    torchs.step()


# What is refused


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"round": "up"}, ValueError, "round must be None or 'stochastic', not 'up'"),
        ({"round": True}, ValueError, "round must be None or 'stochastic', not True"),
        ({"seed": 1}, ValueError, "seed=1 is of random bits, which round='stochastic' alone draws"),
        ({**HOW, "seed": -1}, ValueError, r"seed must be from 0 to 2\*\*48 - 1, not -1"),
        ({**HOW, "seed": 1 << 48}, ValueError, r"seed must be from 0 to 2\*\*48 - 1, not 28147"),
        ({**HOW, "seed": 1.0}, TypeError, r"seed must be an integer, not 1\.0"),
        ({**HOW, "seed": True}, TypeError, "seed must be an integer, not True"),
        ({**HOW, "seed": None}, TypeError, "seed must be an integer, not None"),
        ({**HOW, "state_device": "cpu"}, ValueError, "round='stochastic' and state_device='cpu'"),
    ],
)
@pytest.mark.parametrize("cls", [optim.SGD, tensorflow.Adam])
def test_what_it_cannot_be(cls: Any, given: dict[str, Any], kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        cls(params_of(torch.bfloat16), lr=0.1, **given)


@pytest.mark.parametrize("cls", [optim.Adam, tensorflow.Adam])
def test_float64_beside_slots_of_16_bits_is_refused(cls: Any) -> None:
    how = {"lr": 0.1, "state_dtype": torch.bfloat16, **HOW}
    said = "is float64, and slot '(exp_avg|m)' of it bfloat16: round='stochastic' rounds numbers"
    with pytest.raises(TypeError, match=said):
        cls([("w", params_of(torch.float64)[1])], **how)
    made = cls(params_of(torch.float32), **how)
    before = repr(made.state_dict())
    with pytest.raises(TypeError, match=said):
        made.add_param_group({"params": params_of(torch.float64)})
    assert repr(made.state_dict()) == before
    steps(made, 2)
    wide = cls(params_of(torch.float64), lr=0.1, **HOW)  # which has nothing to round
    plain = cls(params_of(torch.float64), lr=0.1)
    assert_same(everything(steps(wide, 3)), everything(steps(plain, 3)))


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("cls", [optim.SGD, optim.Adagrad, tensorflow.Adam, tensorflow.LazyAdam])
def test_sparse_gradients_are_refused(cls: Any, accumulate: int) -> None:
    table = Parameter(torch.ones(9, 4))
    made = cls([("table", table)], lr=0.1, accumulate=accumulate, **HOW)
    before = [
        table.detach().clone(),
        *(x.clone() for name, x in made.state[table].items() if name != "gradient_sum"),
    ]
    for k in range(accumulate):
        rows = torch.tensor([[1, 3]])
        table.grad = torch.sparse_coo_tensor(rows, torch.ones(2, 4), (9, 4), check_invariants=True)
        if k == accumulate - 1:
            with pytest.raises(
                NotImplementedError, match="gradient of 'table' is sparse, and round='stochastic'"
            ):
                made.step()
        else:
            made.step()
    own = [x for name, x in made.state[table].items() if "gradient" not in name]
    assert_same([table.detach(), *own], before)


def test_parameters_that_are_elsewhere_are_refused() -> None:
    """Something that tells of another device stands for one."""

    class Elsewhere:
        device, dtype, name = torch.device("xpu", 0), torch.bfloat16, "w"

    made = optim.SGD(params_of(torch.bfloat16), lr=0.1, **HOW)
    made.param_groups[0]["params"][0] = Elsewhere()
    with pytest.raises(
        ValueError, match=r"'w' is on xpu:0, and round='stochastic' is for parameters"
    ):
        places_of(made, made._rule_of(made.param_groups[0]), [made.param_groups[0]["params"][0]])


def test_torchs_own_step_is_refused() -> None:
    """It knows no random bits."""
    made = optim.AdamW(params_of(torch.bfloat16), differentiable=True, **HOW)
    before = everything(made)
    with pytest.raises(NotImplementedError, match="AdamW with round, seed takes steps on dense"):
        steps(made, 1)
    assert_same(everything(made), before)


def test_in_a_compiled_graph() -> None:
    make = maker("optim", "AdamW")
    made, other = make(params_of(torch.bfloat16)), make(params_of(torch.bfloat16))
    step = torch.compile(lambda: made.step(), backend="eager")
    for number in range(5):
        give(params(made), number)
        step()
    assert_same(everything(made), everything(steps(other, 5)))


def test_groups_of_several_rules() -> None:
    own = params_of(torch.bfloat16)
    groups = [{"params": own[:2], "rule": "Adam"}, {"params": own[2:], "rule": "Lion", "lr": 0.01}]
    made = steps(optim.Mixed(groups, **HOW), 5)
    adam = steps(optim.Adam(params_of(torch.bfloat16)[:2], **HOW), 5)
    assert_same([*map(Tensor.detach, params(made)[:2])], [*map(Tensor.detach, params(adam))])
    with thalweg.engine("reference"):
        other = params_of(torch.bfloat16)
        pairs = zip(groups, (other[:2], other[2:]), strict=True)
        same = optim.Mixed([{**group, "params": each} for group, each in pairs], **HOW)
        assert_same(everything(steps(same, 5)), everything(made))


def test_the_option_says_what_is_on() -> None:
    assert Rounding().on == {}
    assert Rounding(round="stochastic").on == {"round": "stochastic"}
    assert "round: stochastic\n    seed: 8\n" in repr(
        maker("optim", "SGD", seed=8)(params_of(torch.bfloat16))
    )
