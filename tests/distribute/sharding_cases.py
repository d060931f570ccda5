"""What ranks do whose strategy shares out the slots; run with the cases of `distribute_cases`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import thalweg
from thalweg import Hyper, IndexedSlices, Rule, Slot, Variable, checkpoint
from thalweg._engines.reduction_order import LEAF
from thalweg.distribute import Strategy
from thalweg.distribute.process_group import Ranks
from thalweg.distribute.sharding.reduce_scatter import Scatter
from thalweg.distribute.tree_reduction import in_pairs
from thalweg.errors import PerformanceWarning
from thalweg.formula import gradient_squares, variable_squares
from thalweg.keras.optimizers import SGD, Adam, RuleOptimizer
from thalweg.rules import ADAM, NOVOGRAD
from thalweg.rules.modern import MARS, PRODIGY
from thalweg.rules.wrappers import sphere
from thalweg.v1 import train
from thalweg.v1.contrib.opt import LARSOptimizer

Made = Callable[[], Any]
CASES: dict[str, Callable[[Strategy], Any]] = {}


def case(function: Callable[[Strategy], Any]) -> Callable[[Strategy], Any]:
    """A case of that name."""

    def found(s: Strategy) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PerformanceWarning)  # of a variable of any strides
            return function(s)

    CASES[function.__name__] = found
    return function


def refused(function: Callable[[], Any]) -> str:
    """What a call raises, in words."""
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def halved(var: Tensor) -> Tensor:
    return var * 0.5


def variables() -> list[Variable]:
    """Of all kinds: below a leaf, cut, in rows that divide a leaf and that do not, of other layouts
    and dtypes, empty, constrained.
    """
    noise = torch.Generator().manual_seed(7)

    def made(name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Variable:
        value = torch.randn(shape, generator=noise)
        return Variable(value, name=name, dtype=dtype)

    found = [
        made("cut", 3, LEAF),
        made("small", 7),
        made("rows", 160, 1024),
        made("odd_rows", 31, 300),
        made("number"),
        made("empty", 0, 3),
        made("half", 5, 30001, dtype=torch.bfloat16),
    ]
    across = torch.randn((300, 260), generator=noise).t()
    apart = torch.randn((9, 4), generator=noise)[:, ::2]
    found += [Variable(across, name="across"), Variable(torch.zeros(9, 2), name="apart")]
    found[-2].data = across
    found[-1].data = apart
    found[1].constraint = halved
    return found


SPARSE = ("rows", "odd_rows")


def drawn(step: int, rank: int, chosen: Sequence[Variable]) -> list[Any]:
    """The gradients of a rank in a step."""
    noise = torch.Generator().manual_seed(100 * step + rank)
    found: list[Any] = []
    for var in chosen:
        value = torch.randn(var.shape, generator=noise).to(var.dtype)
        if var.name.split(":")[0] in SPARSE:
            rows = torch.randint(0, len(var), (11,), generator=noise)
            found.append(IndexedSlices(value[:11], rows))
        else:
            found.append(None if step == 2 and rank == 0 and var.name == "number:0" else value)
    return found


def total(step: int, count: int, chosen: Sequence[Variable]) -> list[Any]:
    """Those of all ranks, added up as ranks that share out slots do."""
    found: list[Any] = []
    for own in zip(*(drawn(step, rank, chosen) for rank in range(count)), strict=True):
        if isinstance(own[0], IndexedSlices):
            values, indices = zip(*((each.values, each.indices) for each in own), strict=True)
            found.append(IndexedSlices(torch.cat(values), torch.cat(indices)))
        else:
            like = next(each for each in own if each is not None)
            found.append(in_pairs([torch.zeros_like(like) if g is None else g for g in own]))
    return found


def trained(strategy: Strategy, opt: Any, chosen: Sequence[Variable], steps: Sequence[int]) -> None:
    """Take steps with the slots shared out."""
    rank = strategy.ranks.rank
    for step in steps:
        pairs = list(zip(drawn(step, rank, chosen), chosen, strict=True))
        strategy.run(opt.apply_gradients, (pairs,))


def alone(opt: Any, chosen: Sequence[Variable], steps: Sequence[int], count: int) -> None:
    """Take the same steps in one process."""
    for step in steps:
        opt.apply_gradients(list(zip(total(step, count, chosen), chosen, strict=True)))


def bits(tensors: Sequence[Tensor]) -> list[bytes]:
    return [
        each.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() for each in tensors
    ]


def slots_of(state: dict[str, Any]) -> list[bytes]:
    return [
        part
        for name in sorted(state["slots"])
        for part in bits([each for _, each in sorted(state["slots"][name].items())])
    ]


def product(var: Any, grad: Any, m: Any) -> Any:
    return var * grad + m


def per_variable(*, gradient_squares: Any, variable_squares: Any, product: Any, seen: Any) -> Any:
    rate = 1 / (1 + gradient_squares + variable_squares + product * product)
    return {"rate": rate, "seen": seen + 1}


def update(var: Any, grad: Any, m: Any, *, learning_rate: Any, rate: Any) -> Any:
    m = m * 0.5 + grad * rate
    return var - learning_rate * m, m


MEASURED = Rule(
    name="Measured",
    update=update,
    per_variable=per_variable,
    measures={
        "gradient_squares": gradient_squares,
        "variable_squares": variable_squares,
        "product": product,
    },
    hypers=(Hyper("learning_rate", 0.5),),
    slots=(Slot("m"), Slot("seen", scalar=True)),
)


def doubled(pairs: Any) -> Any:
    return [(grad * 2, var) for grad, var in pairs]


OPTIMIZERS: dict[str, Made] = {
    "adam": lambda: Adam(0.01),
    "global_clipnorm": lambda: Adam(0.01, global_clipnorm=5.0),
    "clipvalue": lambda: SGD(0.01, momentum=0.5, clipvalue=0.5),
    "measured": lambda: RuleOptimizer(MEASURED, clipnorm=5.0),
    "whole": lambda: RuleOptimizer(NOVOGRAD, 0.01, global_clipnorm=5.0),
    "in common": lambda: RuleOptimizer(PRODIGY, d0=1e-3, clipnorm=5.0),
    "clipped": lambda: RuleOptimizer(MARS, 0.01),
    "wrapped": lambda: RuleOptimizer(sphere(ADAM), 0.01, clipnorm=5.0),
    "transformed": lambda: SGD(0.01, momentum=0.5, gradient_transformers=[doubled]),
}
SUMMED_WHOLE = (
    "whole",
    "wrapped",
    "transformed",
)  # by torch, in its own order


@case
def shared_out(s: Strategy) -> Any:
    """Whether variables and slots have the bits of one process, and how much each rank has."""
    count, found = s.num_replicas_in_sync, dict[str, Any]()
    for name, make in OPTIMIZERS.items():
        sharing = Strategy(shard_slots=True, bucket_size=2**19)
        own, opt = variables(), make()
        trained(sharing, opt, own, range(3))
        one, other = variables(), make()
        if name in SUMMED_WHOLE:
            trained(Strategy(bucket_size=2**19), other, one, range(3))
        else:
            alone(other, one, range(3), count)
        state = opt.state_dict()
        memory = {
            slot.untyped_storage().data_ptr(): slot.untyped_storage().nbytes()
            for *_, slot in opt._slots.triples()
        }
        each = len({slot for _, slot, _ in opt._slots.triples()})
        found[name] = {
            "variables": bits(own) == bits(one),
            "slots": slots_of(state) == slots_of(other.state_dict()),
            "kinds of slot": each,
            "bytes": sum(memory.values()),
            "weights": [
                list(one.shape) == list(two.shape) and bool((one == two).all())
                for one, two in zip(opt.get_weights(), other.get_weights(), strict=True)
            ],
        }
    return found


def folder() -> Path:
    """One that all ranks of this run have."""
    return Path(sys.argv[2]).parent


@case
def saved_and_restored(s: Strategy) -> Any:
    count, path = s.num_replicas_in_sync, folder() / "shared.safetensors"
    sharing = Strategy(shard_slots=True)
    own, opt = variables(), Adam(0.01)
    trained(sharing, opt, own, range(2))
    checkpoint.save(path, optimizer=opt, variables=own)
    one, other = variables(), Adam(0.01)
    alone(other, one, range(4), count)
    found: dict[str, Any] = {}

    again = variables()
    fresh = checkpoint.restore(path, variables=again).optimizer
    trained(sharing, fresh, again, (2, 3))
    found["by a new one"] = bits(again) == bits(one)

    trained(sharing, opt, own, (2, 3))
    checkpoint.restore(path, optimizer=opt, variables=own)
    trained(sharing, opt, own, (2, 3))
    found["by the same"] = bits(own) == bits(one)

    single = variables()
    unshared = checkpoint.restore(path, variables=single).optimizer
    alone(unshared, single, (2, 3), count)
    found["by one process"] = bits(single) == bits(one)

    state = opt.state_dict()
    trained(sharing, opt, own, (4,))
    opt.load_state_dict(state)
    found["by a state"] = slots_of(opt.state_dict()) == slots_of(state)
    opt.set_weights([weight * 0 for weight in opt.get_weights()])
    found["weights"] = [bool((weight == 0).all()) for weight in opt.get_weights()]
    found["slot"] = list(opt.get_slot(own[0], "m").shape)

    manager = checkpoint.CheckpointManager(folder() / "kept", keep=1, asynchronous=True)
    for step in range(2):
        manager.save(step, optimizer=opt, variables=own)
    manager.wait()
    s.ranks.gather_texts("there")
    found["manager"] = [each.step for each in manager.checkpoints()]
    return found


@case
def sent_while_others_are_computed(s: Strategy) -> Any:
    """Slots exist before they are shared out; a gradient changes its kind."""
    sharing, count = Strategy(shard_slots=True, bucket_size=2**12), s.num_replicas_in_sync

    def made() -> list[Any]:
        table = Variable(torch.ones(50, 301), name="table")
        return [Variable(torch.ones(2, 700), name="a"), Variable(torch.ones(5), name="b"), table]

    def loss(chosen: Sequence[Any], step: int, rank: int) -> Tensor:
        a, b, table = chosen
        rows = torch.tensor([rank, 3, step])
        picked = thalweg.embedding_lookup(table, rows) if step % 2 else table[rows]
        return (a * (rank + 1)).sum() + (b * b).sum() * step + (picked * picked).sum()

    sent: list[int] = []
    real = Scatter.send

    def send(self: Scatter, ranks: Ranks, ordered: bool) -> None:
        sent.append(len(self.places))
        real(self, ranks, ordered)

    own, opt = made(), Adam(0.01)
    one, other = made(), Adam(0.01)
    opt.minimize(lambda: loss(own, 0, 0), own)
    other.minimize(lambda: loss(one, 0, 0), one)
    Scatter.send = send
    try:
        for step in range(1, 6):
            sharing.run(opt.minimize, (partial(loss, own, step, s.ranks.rank), own))
    finally:
        Scatter.send = real
    for step in range(1, 6):
        parts = []
        for rank in range(count):
            with thalweg.GradientTape() as tape:
                value = loss(one, step, rank)
            parts.append(tape.gradient(value, one))
        dense = [in_pairs([each[k] for each in parts]) for k in range(2)]
        rows = [each[2] for each in parts]
        if step % 2:
            values = torch.cat([each.values for each in rows])
            last: Any = IndexedSlices(values, torch.cat([each.indices for each in rows]))
        else:
            last = in_pairs(rows)
        other.apply_gradients(list(zip([*dense, last], one, strict=True)))
    return {"bits": bits(own) == bits(one), "sent": len(sent)}


@case
def alone_with_gaps(s: Strategy) -> Any:
    """A variable that is sent alone, and whose elements do not lie side by side."""
    sharing, count = Strategy(shard_slots=True), s.num_replicas_in_sync
    own, one = ([Variable(torch.zeros(9, 2), name="apart")] for _ in range(2))
    for (var,) in (own, one):
        var.data = torch.ones(9, 4)[:, ::2]
    trained(sharing, Adam(0.01), own, range(2))
    alone(Adam(0.01), one, range(2), count)
    return bits(own) == bits(one)


@case
def kept_from_step_to_step(s: Strategy) -> Any:
    """Variables of equal shapes take turns."""
    sharing, count = Strategy(shard_slots=True), s.num_replicas_in_sync
    sets = [[Variable(torch.zeros(2, LEAF)), Variable(torch.zeros(9))] for _ in range(4)]
    own, one, opt, other = sets[:2], sets[2:], Adam(0.01), Adam(0.01)
    for step in range(4):
        trained(sharing, opt, own[step % 2], (step,))
        alone(other, one[step % 2], (step,), count)

    def gone_on(optimizer: Any, chosen: Sequence[Variable], rank: int) -> None:
        numbers = drawn(step, rank, chosen)
        optimizer.minimize(
            lambda: sum((a * b).sum() for a, b in zip(chosen, numbers, strict=True)), chosen
        )

    for step in range(4, 8):
        sharing.run(gone_on, (opt, own[1], s.ranks.rank))
        alone(other, one[1], (step,), count)
    return [bits(each) for each in own] == [bits(each) for each in one]


@case
def in_tf_train(s: Strategy) -> Any:
    """The same with optimizers of TensorFlow 1, and with gradients that are sums already."""
    count, rank, sharing = s.num_replicas_in_sync, s.ranks.rank, Strategy(shard_slots=True)
    makers: dict[str, Made] = {
        "adam": lambda: train.AdamOptimizer(0.01),
        "lars": lambda: LARSOptimizer(0.1),
        "keras": lambda: Adam(0.01, clipnorm=1.0),
    }
    found: dict[str, Any] = {}
    for name, make in makers.items():
        own, opt = variables(), make()
        one, other = variables(), make()
        is_summed = name == "keras"
        for step in range(3):
            sums = list(zip(total(step, count, own), own, strict=True))
            mine = list(zip(drawn(step, rank, own), own, strict=True))
            if is_summed:
                sharing.run(opt.apply_gradients, (sums, None, False))
            else:
                sharing.run(opt.apply_gradients, (mine,))
        alone(other, one, range(3), count)
        given = [] if is_summed else [own]
        state, expected = opt.state_dict(*given), other.state_dict(*(given and [one]))
        if is_summed:
            same = slots_of(state) == slots_of(expected)
        else:
            same = all(torch.equal(state[key], expected[key]) for key in expected)
            opt.load_state_dict(expected, own)
            after = opt.state_dict(own)
            same = same and all(torch.equal(after[key], expected[key]) for key in expected)
            kind = opt.get_slot_names()[0]
            same = same and opt.get_slot(own[0], kind).shape == own[0].shape
        found[name] = [bits(own) == bits(one), same]
    return found


def tensors_of(state: dict[str, Any]) -> list[Tensor]:
    """The slots in a state of either face."""
    own = [part for each in state.get("slots", {}).values() for part in each.values()]
    return own or list(state.values())


def far(ones: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    """How far numbers are apart, in units of the larger ones of their tensor."""
    pairs = zip(ones, others, strict=True)
    return max(float(((a - b).abs().max() / b.abs().max()).detach()) for a, b in pairs)


@case
def of_a_mesh(s: Strategy) -> Any:
    """Local parts of DTensors: uneven, empty, cut along either dimension, beside others."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (s.num_replicas_in_sync,))
    noise = torch.Generator().manual_seed(3)
    kinds = {
        "uneven": ((7, 300), Shard(0)),
        "one_row": ((1, 40), Shard(0)),
        "columns": ((3, 70001), Shard(1)),
        "everywhere": ((5,), Replicate()),
        "plain": ((6,), None),
    }

    def placed(value: Tensor, placement: Any) -> Any:
        if placement is None:
            return value
        return distribute_tensor(value, mesh, [placement], src_data_rank=None)

    values = {name: torch.randn(shape, generator=noise) for name, (shape, _) in kinds.items()}
    makers: dict[str, Made] = {
        "adam": lambda: Adam(0.01),
        "clipnorm": lambda: Adam(0.01, clipnorm=1.0),
        "global_clipnorm": lambda: SGD(0.01, momentum=0.9, global_clipnorm=1.0),
        "lars": lambda: LARSOptimizer(0.1),
    }
    found: dict[str, Any] = {}
    for name, make in makers.items():
        own = {
            key: torch.nn.Parameter(placed(value.clone(), kinds[key][1]))
            for key, value in values.items()
        }
        thalweg.named_variables(list(own.items()))
        one = {key: Variable(value.clone(), name=key) for key, value in values.items()}
        opt, other = make(), make()
        for step in range(3):
            noise = torch.Generator().manual_seed(step)
            grads = {key: torch.randn(each.shape, generator=noise) for key, each in one.items()}
            mine = [(placed(grads[key], kinds[key][1]), var) for key, var in own.items()]
            opt.apply_gradients(mine)
            other.apply_gradients([(grads[key], var) for key, var in one.items()])
        whole = [v.full_tensor() if isinstance(v, DTensor) else v for v in own.values()]
        is_v1 = name == "lars"
        state = opt.state_dict(list(own.values())) if is_v1 else opt.state_dict()
        expected = other.state_dict(list(one.values())) if is_v1 else other.state_dict()
        found[name] = {
            "variables": far(whole, list(one.values())),
            "slots": far(tensors_of(state), tensors_of(expected)),
        }
        again = {
            key: torch.nn.Parameter(placed(torch.zeros_like(value), kinds[key][1]))
            for key, value in values.items()
        }
        thalweg.named_variables(list(again.items()))
        if not is_v1:
            path = folder() / f"mesh-{name}.safetensors"
            checkpoint.save(path, optimizer=opt, variables=own)
            fresh = checkpoint.restore(path, variables=again).optimizer
            now = fresh.state_dict()
            found[name]["restored"] = slots_of(now) == slots_of(state) and bits(
                [v.full_tensor() if isinstance(v, DTensor) else v for v in again.values()]
            ) == bits(whole)
        with thalweg.engine(check_numerics=True):
            grads["uneven"][6, 0] = float("nan")  # the last rank alone has it
            mine[0] = placed(grads["uneven"], Shard(0)), mine[0][1]
            found[name]["numerics"] = refused(lambda: opt.apply_gradients(mine))
        rows = IndexedSlices(torch.ones(1, 300), torch.tensor([0]))
        found[name]["rows"] = refused(lambda: opt.apply_gradients([(rows, own["uneven"])]))
        found[name]["summed"] = refused(lambda: s.run(opt.apply_gradients, (mine,)))
    return found


@case
def of_fully_shard(s: Strategy) -> Any:
    """FSDP2: the parameters that it makes, and the gradients that it sums."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    count, rank = s.num_replicas_in_sync, s.ranks.rank

    def made() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 1))

    model, single = made(), made()
    fully_shard(model, mesh=init_device_mesh("cpu", (count,)))
    opt, other = Adam(0.01, global_clipnorm=0.1), Adam(0.01, global_clipnorm=0.1)
    for step in range(3):
        examples = torch.randn(count, 4, 5, generator=torch.Generator().manual_seed(step))
        for each in (model, single):
            each.zero_grad()
        model(examples[rank]).square().mean().backward()
        single(examples.flatten(0, 1)).square().mean().backward()
        opt.apply_gradients([(var.grad, var) for var in model.parameters()])
        other.apply_gradients([(var.grad, var) for var in single.parameters()])
    whole: list[Any] = [var.full_tensor() for var in model.parameters()]  # pyright: ignore
    return max(
        float((a - b).abs().detach().max()) for a, b in zip(whole, single.parameters(), strict=True)
    )


@case
def same_bits_on_any_number(s: Strategy) -> Any:
    if s.num_replicas_in_sync == 3:
        return None
    ordered = Strategy(reduction="ordered", shard_slots=True)
    w = Variable(torch.zeros(2, LEAF), name="w")
    v, opt, other = Variable(torch.zeros(2, LEAF), name="w"), Adam(0.01, clipnorm=1.0), None
    other = Adam(0.01, clipnorm=1.0)

    def loss(number: int, var: Tensor) -> Tensor:
        noise = torch.Generator().manual_seed(number)
        return (var * torch.randn(var.shape, generator=noise)).sum()

    single = Strategy.alone()
    for _ in range(3):
        pairs = ordered.gradients(lambda number: loss(number, w), [w], 8)
        ordered.run(opt.apply_gradients, (pairs,))
        other.apply_gradients(single.gradients(lambda number: loss(number, v), [v], 8))
    return bits([w]) == bits([v])


@case
def ranks_in_trouble(s: Strategy) -> Any:
    """What all ranks say of a step that fails on one, and that nothing has changed."""
    rank, sharing = s.ranks.rank, Strategy(shard_slots=True)
    own, opt = variables(), Adam(0.01, clipnorm=1.0)
    trained(sharing, opt, own, (0,))
    before = bits(own), slots_of(opt.state_dict())
    found: dict[str, Any] = {}

    def step(optimizer: Any, pairs: Any) -> str:
        return refused(lambda: sharing.run(optimizer.apply_gradients, (pairs,)))

    def grads() -> list[Any]:
        return list(zip(drawn(1, rank, own), own, strict=True))

    found["shape"] = step(opt, [(torch.ones(8), own[1])] if rank else [(torch.ones(7), own[1])])

    def rate() -> float:
        if rank == 1:
            raise KeyError("no rate")
        return 0.01

    late = Adam(rate)
    found["schedule"] = step(late, grads())
    found["schedule without"] = len(late.state_dict()["slots"])
    with thalweg.engine(check_numerics=True):
        pairs = grads()
        if rank == 1:
            pairs[0][0][0, 5] = float("nan")
        found["numerics"] = step(opt, pairs)
    found["twice"] = step(opt, [(torch.ones(7), own[1])] * 2)
    rows = grads()[2]
    own[2].constraint = halved if rank == 1 else None
    found["constraint"] = step(opt, [rows])
    own[2].constraint = None
    found["state"] = refused(opt.state_dict) if rank == 1 else step(opt, grads())
    cut = own[0].data
    own[0].data = cut.t().contiguous().t()
    found["moved"] = step(opt, grads())
    own[0].data = cut[:2] if rank == 1 else cut
    found["resized"] = step(opt, [(torch.ones_like(own[0]), own[0])])
    own[0].data = cut
    found["unchanged"] = (bits(own), slots_of(opt.state_dict())) == before
    found["elsewhere"] = refused(lambda: opt.apply_gradients(grads()))

    class Own(Adam):
        def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> None:
            var.sub_(grad)

    found["by a hook"] = step(Own(0.01), grads())
    found["copied"] = refused(lambda: __import__("copy").deepcopy(opt))
    trained(sharing, opt, own, (1,))
    one, other = variables(), Adam(0.01, clipnorm=1.0)
    alone(other, one, (0, 1), s.num_replicas_in_sync)
    found["after"] = bits(own) == bits(one)
    return found
