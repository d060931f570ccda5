"""A training that goes on when a rank is killed: it is started again from its last checkpoint.

Run: torchrun --nproc-per-node 2 --max-restarts 3 examples/elastic.py FOLDER
"""

import sys
from functools import partial

import torch

from thalweg.checkpoint import CheckpointManager
from thalweg.distribute import Strategy
from thalweg.keras.optimizers import Adam

STEPS, EVERY, EXAMPLES = 20, 4, 32

# The same bits on any number of ranks, so that it may go on with fewer of them.
strategy = Strategy(reduction="ordered", timeout=60)
torch.manual_seed(0)
model, optimizer = torch.nn.Linear(8, 1), Adam(0.05)
variables, target = list(model.parameters()), torch.randn(8)
manager = CheckpointManager(sys.argv[1], keep=2)
manager.restore_or_initialize(optimizer=optimizer, module=model)  # on all ranks
begin = int(optimizer.iterations)


def loss(step: int, part: int) -> torch.Tensor:
    """Return the part of a fourth of the step's examples in the mean over all of them."""
    inputs = torch.randn(EXAMPLES, 8, generator=torch.Generator().manual_seed(step))
    own_examples = inputs[part::4]
    return (model(own_examples).squeeze(1) - own_examples @ target).square().sum() / EXAMPLES


for step in range(begin, STEPS):
    pairs = strategy.gradients(partial(loss, step), variables, micro_batches=4)
    strategy.run(optimizer.apply_gradients, (pairs,))
    if strategy.ranks.rank == 0 and (step + 1) % EVERY == 0:  # one rank saves
        manager.save(step, optimizer=optimizer, module=model)

if strategy.ranks.rank == 0:
    total = sum(loss(STEPS, part).item() for part in range(4))
    print(f"{strategy.num_replicas_in_sync} ranks, steps {begin} to {STEPS - 1}: loss {total:.6f}")
