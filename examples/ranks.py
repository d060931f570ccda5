"""Train one model on several ranks. Run: torchrun --nproc-per-node 2 examples/ranks.py"""

import torch

from thalweg.distribute import Strategy
from thalweg.keras.optimizers import Adam

strategy = Strategy()  # joins the ranks that torchrun has started
count, rank = strategy.num_replicas_in_sync, strategy.ranks.rank
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
strategy.broadcast(model)
optimizer = Adam(0.01)
inputs, target = torch.randn(256, 16), torch.randn(16)
own_inputs = inputs[rank::count]  # this rank's part of the batch


def loss() -> torch.Tensor:
    error = model(own_inputs).squeeze(1) - own_inputs @ target
    return error.square().sum() / len(inputs)  # sums of all ranks are the mean over the batch


for _ in range(200):
    strategy.run(lambda: optimizer.minimize(loss, list(model.parameters())))

total = strategy.reduce("sum", loss().detach()).item()
if rank == 0:
    print(f"{count} ranks: loss {total:.4f} after {int(optimizer.iterations)} steps")
