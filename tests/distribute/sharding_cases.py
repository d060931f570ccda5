"""Cases of a strategy that shares out the slots; run with the cases of `distribute_cases`."""

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
from thalweg.distribute.tree_reduction import tree_sum
from thalweg.errors import PerformanceWarning
from thalweg.formula import gradient_squares, variable_squares
from thalweg.keras.optimizers import SGD, Adam, RuleOptimizer
from thalweg.rules import ADAM, NOVOGRAD
from thalweg.rules.modern import MARS, PRODIGY
from thalweg.rules.wrappers import sphere
from thalweg.v1 import train
from thalweg.v1.contrib.opt import LARSOptimizer

Factory = Callable[[], Any]
CASES: dict[str, Callable[[Strategy], Any]] = {}


def case(function: Callable[..., Any]) -> Callable[[Strategy], Any]:
    """Register a case under the name of its function."""

    def found(s: Strategy) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PerformanceWarning)  # of a variable of any strides
            return function(s)

    CASES[function.__name__] = found
    return function


def refused(function: Callable[..., Any]) -> str:
    """Return the class and message of the error that a call raises."""
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def halved(var: Tensor) -> Tensor:
    return var * 0.5


def variables() -> list[Variable]:
    """Return variables below a leaf, cut, in rows that divide a leaf and that do not, of other
    layouts and dtypes, empty, constrained.
    """
    noise = torch.Generator().manual_seed(7)

    def made(name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Variable:
        value = torch.randn(shape, generator=noise)
        return Variable(value, name=name, dtype=dtype)

    members = [
        made("cut", 3, LEAF),
        made("small", 7),
        made("rows", 160, 1024),
        made("odd_rows", 31, 300),
        made("number"),
        made("empty", 0, 3),
        made("half", 5, 30001, dtype=torch.bfloat16),
    ]
    transposed = torch.randn((300, 260), generator=noise).t()
    strided = torch.randn((9, 4), generator=noise)[:, ::2]
    members += [Variable(transposed, name="across"), Variable(torch.zeros(9, 2), name="apart")]
    members[-2].data = transposed
    members[-1].data = strided
    members[1].constraint = halved
    return members


SPARSE = ("rows", "odd_rows")


def drawn(step: int, rank: int, params: Sequence[Variable]) -> list[Any]:
    """Return the gradients of a rank in a step."""
    noise = torch.Generator().manual_seed(100 * step + rank)
    grads: list[Any] = []
    for var in params:
        value = torch.randn(var.shape, generator=noise).to(var.dtype)
        if var.name.split(":")[0] in SPARSE:
            rows = torch.randint(0, len(var), (11,), generator=noise)
            grads.append(IndexedSlices(value[:11], rows))
        else:
            grads.append(None if step == 2 and rank == 0 and var.name == "number:0" else value)
    return grads


def total(step: int, count: int, params: Sequence[Variable]) -> list[Any]:
    """Return the gradients summed over all ranks, as ranks that share out slots sum them."""
    grads: list[Any] = []
    for parts in zip(*(drawn(step, rank, params) for rank in range(count)), strict=True):
        if isinstance(parts[0], IndexedSlices):
            values, indices = zip(*((part.values, part.indices) for part in parts), strict=True)
            grads.append(IndexedSlices(torch.cat(values), torch.cat(indices)))
        else:
            template = next(grad for grad in parts if grad is not None)
            grads.append(tree_sum([torch.zeros_like(template) if g is None else g for g in parts]))
    return grads


def trained(strategy: Strategy, opt: Any, params: Sequence[Variable], steps: Sequence[int]) -> None:
    """Take steps with the slots shared out."""
    rank = strategy.ranks.rank
    for step in steps:
        pairs = list(zip(drawn(step, rank, params), params, strict=True))
        strategy.run(opt.apply_gradients, (pairs,))


def alone(opt: Any, params: Sequence[Variable], steps: Sequence[int], count: int) -> None:
    """Take the steps of all ranks in one process."""
    for step in steps:
        opt.apply_gradients(list(zip(total(step, count, params), params, strict=True)))


def bits(tensors: Sequence[Tensor]) -> list[bytes]:
    return [
        tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        for tensor in tensors
    ]


def slots_of(state: dict[str, Any]) -> list[bytes]:
    return [
        part
        for name in sorted(state["slots"])
        for part in bits([slot for _, slot in sorted(state["slots"][name].items())])
    ]


def product(var: Any, grad: Any, m: Any) -> Any:
    return var * grad + m


def per_variable(*, gradient_squares: Any, variable_squares: Any, product: Any, seen: Any) -> Any:
    rate = 1 / (1 + gradient_squares + variable_squares + product * product)
    return {"rate": rate, "seen": seen + 1}


def update(var: Any, grad: Any, m: Any, *, learning_rate: Any, rate: Any) -> Any:
    m = m * 0.5 + grad * rate
    return var - learning_rate * m, m


STATISTICS_RULE = Rule(
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


OPTIMIZERS: dict[str, Factory] = {
    "adam": lambda: Adam(0.01),
    "global_clipnorm": lambda: Adam(0.01, global_clipnorm=5.0),
    "clipvalue": lambda: SGD(0.01, momentum=0.5, clipvalue=0.5),
    "measured": lambda: RuleOptimizer(STATISTICS_RULE, clipnorm=5.0),
    "whole": lambda: RuleOptimizer(NOVOGRAD, 0.01, global_clipnorm=5.0),
    "in common": lambda: RuleOptimizer(PRODIGY, d0=1e-3, clipnorm=5.0),
    "clipped": lambda: RuleOptimizer(MARS, 0.01),
    "wrapped": lambda: RuleOptimizer(sphere(ADAM), 0.01, clipnorm=5.0),
    "transformed": lambda: SGD(0.01, momentum=0.5, gradient_transformers=[doubled]),
}
UNSHARDED = (
    "whole",
    "wrapped",
    "transformed",
)  # by torch, in its own order


@case
def shared_out(s: Strategy) -> Any:
    """Compare variables and slots with those of one process, and count the bytes of each rank."""
    count, report = s.num_replicas_in_sync, dict[str, Any]()
    for name, make in OPTIMIZERS.items():
        sharing = Strategy(shard_slots=True, bucket_size=2**19)
        sharded, opt = variables(), make()
        trained(sharing, opt, sharded, range(3))
        expected_vars, reference = variables(), make()
        if name in UNSHARDED:
            trained(Strategy(bucket_size=2**19), reference, expected_vars, range(3))
        else:
            alone(reference, expected_vars, range(3), count)
        state = opt.state_dict()
        memory = {
            slot.untyped_storage().data_ptr(): slot.untyped_storage().nbytes()
            for *_, slot in opt._slots.triples()
        }
        slot_kinds = len({slot for _, slot, _ in opt._slots.triples()})
        report[name] = {
            "variables": bits(sharded) == bits(expected_vars),
            "slots": slots_of(state) == slots_of(reference.state_dict()),
            "kinds of slot": slot_kinds,
            "bytes": sum(memory.values()),
            "weights": [
                list(weight.shape) == list(two.shape) and bool((weight == two).all())
                for weight, two in zip(opt.get_weights(), reference.get_weights(), strict=True)
            ],
        }
    return report


def folder() -> Path:
    """Return a folder that all ranks of this run share."""
    return Path(sys.argv[2]).parent


@case
def saved_and_restored(s: Strategy) -> Any:
    count, path = s.num_replicas_in_sync, folder() / "shared.safetensors"
    sharing = Strategy(shard_slots=True)
    sharded, opt = variables(), Adam(0.01)
    trained(sharing, opt, sharded, range(2))
    checkpoint.save(path, optimizer=opt, variables=sharded)
    expected_vars, reference = variables(), Adam(0.01)
    alone(reference, expected_vars, range(4), count)
    report: dict[str, Any] = {}

    restored_vars = variables()
    fresh = checkpoint.restore(path, variables=restored_vars).optimizer
    trained(sharing, fresh, restored_vars, (2, 3))
    report["by a new one"] = bits(restored_vars) == bits(expected_vars)

    trained(sharing, opt, sharded, (2, 3))
    checkpoint.restore(path, optimizer=opt, variables=sharded)
    trained(sharing, opt, sharded, (2, 3))
    report["by the same"] = bits(sharded) == bits(expected_vars)

    single = variables()
    unshared = checkpoint.restore(path, variables=single).optimizer
    alone(unshared, single, (2, 3), count)
    report["by one process"] = bits(single) == bits(expected_vars)

    state = opt.state_dict()
    trained(sharing, opt, sharded, (4,))
    opt.load_state_dict(state)
    report["by a state"] = slots_of(opt.state_dict()) == slots_of(state)
    opt.set_weights([weight * 0 for weight in opt.get_weights()])
    report["weights"] = [bool((weight == 0).all()) for weight in opt.get_weights()]
    report["slot"] = list(opt.get_slot(sharded[0], "m").shape)

    manager = checkpoint.CheckpointManager(folder() / "kept", keep=1, asynchronous=True)
    for step in range(2):
        manager.save(step, optimizer=opt, variables=sharded)
    manager.wait()
    s.ranks.gather_texts("there")
    report["manager"] = [entry.step for entry in manager.checkpoints()]
    return report


@case
def sent_while_others_are_computed(s: Strategy) -> Any:
    """Share out slots that exist already; a gradient changes its kind."""
    sharing, count = Strategy(shard_slots=True, bucket_size=2**12), s.num_replicas_in_sync

    def made() -> list[Any]:
        table = Variable(torch.ones(50, 301), name="table")
        return [Variable(torch.ones(2, 700), name="a"), Variable(torch.ones(5), name="b"), table]

    def loss(params: Sequence[Any], step: int, rank: int) -> Tensor:
        a, b, table = params
        rows = torch.tensor([rank, 3, step])
        picked = thalweg.embedding_lookup(table, rows) if step % 2 else table[rows]
        return (a * (rank + 1)).sum() + (b * b).sum() * step + (picked * picked).sum()

    sizes: list[int] = []
    real = Scatter.send

    def send(self: Scatter, ranks: Ranks, ordered: bool) -> None:
        sizes.append(len(self.indices))
        real(self, ranks, ordered)

    sharded, opt = made(), Adam(0.01)
    expected_vars, reference = made(), Adam(0.01)
    opt.minimize(lambda: loss(sharded, 0, 0), sharded)
    reference.minimize(lambda: loss(expected_vars, 0, 0), expected_vars)
    Scatter.send = send
    try:
        for step in range(1, 6):
            sharing.run(opt.minimize, (partial(loss, sharded, step, s.ranks.rank), sharded))
    finally:
        Scatter.send = real
    for step in range(1, 6):
        parts = []
        for rank in range(count):
            with thalweg.GradientTape() as tape:
                value = loss(expected_vars, step, rank)
            parts.append(tape.gradient(value, expected_vars))
        dense = [tree_sum([part[k] for part in parts]) for k in range(2)]
        rows = [part[2] for part in parts]
        if step % 2:
            values = torch.cat([row.values for row in rows])
            row_gradient: Any = IndexedSlices(values, torch.cat([row.indices for row in rows]))
        else:
            row_gradient = tree_sum(rows)
        reference.apply_gradients(list(zip([*dense, row_gradient], expected_vars, strict=True)))
    return {"bits": bits(sharded) == bits(expected_vars), "sent": len(sizes)}


@case
def alone_with_gaps(s: Strategy) -> Any:
    """Send a variable alone whose elements do not lie side by side."""
    sharing, count = Strategy(shard_slots=True), s.num_replicas_in_sync
    sharded, expected_vars = ([Variable(torch.zeros(9, 2), name="apart")] for _ in range(2))
    for (var,) in (sharded, expected_vars):
        var.data = torch.ones(9, 4)[:, ::2]
    trained(sharing, Adam(0.01), sharded, range(2))
    alone(Adam(0.01), expected_vars, range(2), count)
    return bits(sharded) == bits(expected_vars)


@case
def kept_from_step_to_step(s: Strategy) -> Any:
    """Alternate between two sets of variables of equal shapes; compare with one process."""
    sharing, count = Strategy(shard_slots=True), s.num_replicas_in_sync
    sets = [[Variable(torch.zeros(2, LEAF)), Variable(torch.zeros(9))] for _ in range(4)]
    sharded, expected_vars, opt, reference = sets[:2], sets[2:], Adam(0.01), Adam(0.01)
    for step in range(4):
        trained(sharing, opt, sharded[step % 2], (step,))
        alone(reference, expected_vars[step % 2], (step,), count)

    def gone_on(optimizer: Any, params: Sequence[Variable], rank: int) -> None:
        numbers = drawn(step, rank, params)
        optimizer.minimize(
            lambda: sum((a * b).sum() for a, b in zip(params, numbers, strict=True)), params
        )

    for step in range(4, 8):
        sharing.run(gone_on, (opt, sharded[1], s.ranks.rank))
        alone(reference, expected_vars[1], (step,), count)
    return [bits(group) for group in sharded] == [bits(group) for group in expected_vars]


@case
def in_tf_train(s: Strategy) -> Any:
    """Share out slots of TensorFlow 1's optimizers, and use gradients that are sums already."""
    count, rank, sharing = s.num_replicas_in_sync, s.ranks.rank, Strategy(shard_slots=True)
    makers: dict[str, Factory] = {
        "adam": lambda: train.AdamOptimizer(0.01),
        "lars": lambda: LARSOptimizer(0.1),
        "keras": lambda: Adam(0.01, clipnorm=1.0),
    }
    report: dict[str, Any] = {}
    for name, make in makers.items():
        sharded, opt = variables(), make()
        expected_vars, reference = variables(), make()
        is_keras = name == "keras"
        for step in range(3):
            sums = list(zip(total(step, count, sharded), sharded, strict=True))
            local_pairs = list(zip(drawn(step, rank, sharded), sharded, strict=True))
            if is_keras:
                sharing.run(opt.apply_gradients, (sums, None, False))
            else:
                sharing.run(opt.apply_gradients, (local_pairs,))
        alone(reference, expected_vars, range(3), count)
        args = [] if is_keras else [sharded]
        state, expected = (opt.state_dict(*args), reference.state_dict(*(args and [expected_vars])))
        if is_keras:
            is_equal = slots_of(state) == slots_of(expected)
        else:
            is_equal = all(torch.equal(state[key], expected[key]) for key in expected)
            opt.load_state_dict(expected, sharded)
            final = opt.state_dict(sharded)
            is_equal = is_equal and all(torch.equal(final[key], expected[key]) for key in expected)
            kind = opt.get_slot_names()[0]
            is_equal = is_equal and opt.get_slot(sharded[0], kind).shape == sharded[0].shape
        report[name] = [bits(sharded) == bits(expected_vars), is_equal]
    return report


def tensors_of(state: dict[str, Any]) -> list[Tensor]:
    """Return the slots in a state of either API."""
    tensors = [part for slots in state.get("slots", {}).values() for part in slots.values()]
    return tensors or list(state.values())


def far(ones: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest difference, in units of the largest number of each tensor."""
    pairs = zip(ones, expected, strict=True)
    return max(float(((a - b).abs().max() / b.abs().max()).detach()) for a, b in pairs)


@case
def of_a_mesh(s: Strategy) -> Any:
    """Train local parts of DTensors: uneven, empty, cut along either dimension, beside others."""
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
    makers: dict[str, Factory] = {
        "adam": lambda: Adam(0.01),
        "clipnorm": lambda: Adam(0.01, clipnorm=1.0),
        "global_clipnorm": lambda: SGD(0.01, momentum=0.9, global_clipnorm=1.0),
        "lars": lambda: LARSOptimizer(0.1),
    }
    report: dict[str, Any] = {}
    for name, make in makers.items():
        sharded = {
            key: torch.nn.Parameter(placed(value.clone(), kinds[key][1]))
            for key, value in values.items()
        }
        thalweg.named_variables(list(sharded.items()))
        copies = {key: Variable(value.clone(), name=key) for key, value in values.items()}
        opt, reference = make(), make()
        for step in range(3):
            noise = torch.Generator().manual_seed(step)
            grads = {key: torch.randn(var.shape, generator=noise) for key, var in copies.items()}
            pairs = [(placed(grads[key], kinds[key][1]), var) for key, var in sharded.items()]
            opt.apply_gradients(pairs)
            reference.apply_gradients([(grads[key], var) for key, var in copies.items()])
        full = [v.full_tensor() if isinstance(v, DTensor) else v for v in sharded.values()]
        is_v1 = name == "lars"
        state = opt.state_dict(list(sharded.values())) if is_v1 else opt.state_dict()
        expected = reference.state_dict(list(copies.values())) if is_v1 else reference.state_dict()
        report[name] = {
            "variables": far(full, list(copies.values())),
            "slots": far(tensors_of(state), tensors_of(expected)),
        }
        restored_vars = {
            key: torch.nn.Parameter(placed(torch.zeros_like(value), kinds[key][1]))
            for key, value in values.items()
        }
        thalweg.named_variables(list(restored_vars.items()))
        if not is_v1:
            path = folder() / f"mesh-{name}.safetensors"
            checkpoint.save(path, optimizer=opt, variables=sharded)
            fresh = checkpoint.restore(path, variables=restored_vars).optimizer
            restored_state = fresh.state_dict()
            report[name]["restored"] = slots_of(restored_state) == slots_of(state) and bits(
                [v.full_tensor() if isinstance(v, DTensor) else v for v in restored_vars.values()]
            ) == bits(full)
        with thalweg.engine(check_numerics=True):
            grads["uneven"][6, 0] = float("nan")  # the last rank alone has it
            pairs[0] = placed(grads["uneven"], Shard(0)), pairs[0][1]
            report[name]["numerics"] = refused(lambda: opt.apply_gradients(pairs))
        rows = IndexedSlices(torch.ones(1, 300), torch.tensor([0]))
        report[name]["rows"] = refused(lambda: opt.apply_gradients([(rows, sharded["uneven"])]))
        report[name]["summed"] = refused(lambda: s.run(opt.apply_gradients, (pairs,)))
    return report


@case
def of_fully_shard(s: Strategy) -> Any:
    """Train the parameters of FSDP2 with the gradients that it sums."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    count, rank = s.num_replicas_in_sync, s.ranks.rank

    def made() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 1))

    model, single = made(), made()
    fully_shard(model, mesh=init_device_mesh("cpu", (count,)))
    opt, reference = Adam(0.01, global_clipnorm=0.1), Adam(0.01, global_clipnorm=0.1)
    for step in range(3):
        examples = torch.randn(count, 4, 5, generator=torch.Generator().manual_seed(step))
        for module in (model, single):
            module.zero_grad()
        model(examples[rank]).square().mean().backward()
        single(examples.flatten(0, 1)).square().mean().backward()
        opt.apply_gradients([(var.grad, var) for var in model.parameters()])
        reference.apply_gradients([(var.grad, var) for var in single.parameters()])
    full: list[Any] = [var.full_tensor() for var in model.parameters()]  # pyright: ignore
    return max(
        float((a - b).abs().detach().max()) for a, b in zip(full, single.parameters(), strict=True)
    )


@case
def same_bits_on_any_number(s: Strategy) -> Any:
    if s.num_replicas_in_sync == 3:
        return None
    strategy = Strategy(reduction="ordered", shard_slots=True)
    w = Variable(torch.zeros(2, LEAF), name="w")
    v, opt, reference = Variable(torch.zeros(2, LEAF), name="w"), Adam(0.01, clipnorm=1.0), None
    reference = Adam(0.01, clipnorm=1.0)

    def loss(number: int, var: Tensor) -> Tensor:
        noise = torch.Generator().manual_seed(number)
        return (var * torch.randn(var.shape, generator=noise)).sum()

    single = Strategy.alone()
    for _ in range(3):
        pairs = strategy.gradients(lambda number: loss(number, w), [w], 8)
        strategy.run(opt.apply_gradients, (pairs,))
        reference.apply_gradients(single.gradients(lambda number: loss(number, v), [v], 8))
    return bits([w]) == bits([v])


@case
def ranks_in_trouble(s: Strategy) -> Any:
    """Raise in a step on one rank; report each rank's error and that nothing has changed."""
    rank, sharing = s.ranks.rank, Strategy(shard_slots=True)
    sharded, opt = variables(), Adam(0.01, clipnorm=1.0)
    trained(sharing, opt, sharded, (0,))
    initial = bits(sharded), slots_of(opt.state_dict())
    report: dict[str, Any] = {}

    def step(optimizer: Any, pairs: Any) -> str:
        return refused(lambda: sharing.run(optimizer.apply_gradients, (pairs,)))

    def grads() -> list[Any]:
        return list(zip(drawn(1, rank, sharded), sharded, strict=True))

    report["shape"] = step(opt, [(torch.ones(8 if rank else 7), sharded[1])])

    def rate() -> float:
        if rank == 1:
            raise KeyError("no rate")
        return 0.01

    late = Adam(rate)
    report["schedule"] = step(late, grads())
    report["schedule without"] = len(late.state_dict()["slots"])
    with thalweg.engine(check_numerics=True):
        pairs = grads()
        if rank == 1:
            pairs[0][0][0, 5] = float("nan")
        report["numerics"] = step(opt, pairs)
    report["twice"] = step(opt, [(torch.ones(7), sharded[1])] * 2)
    rows = grads()[2]
    sharded[2].constraint = halved if rank == 1 else None
    report["constraint"] = step(opt, [rows])
    sharded[2].constraint = None
    report["state"] = refused(opt.state_dict) if rank == 1 else step(opt, grads())
    cut = sharded[0].data
    sharded[0].data = cut.t().contiguous().t()
    report["moved"] = step(opt, grads())
    sharded[0].data = cut[:2] if rank == 1 else cut
    report["resized"] = step(opt, [(torch.ones_like(sharded[0]), sharded[0])])
    sharded[0].data = cut
    report["unchanged"] = (bits(sharded), slots_of(opt.state_dict())) == initial
    report["elsewhere"] = refused(lambda: opt.apply_gradients(grads()))

    class Own(Adam):
        def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> None:
            var.sub_(grad)

    report["by a hook"] = step(Own(0.01), grads())
    report["copied"] = refused(lambda: __import__("copy").deepcopy(opt))
    trained(sharing, opt, sharded, (1,))
    expected_vars, reference = variables(), Adam(0.01, clipnorm=1.0)
    alone(reference, expected_vars, (0, 1), s.num_replicas_in_sync)
    report["after"] = bits(sharded) == bits(expected_vars)
    return report
