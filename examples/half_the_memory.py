"""Fine-tune a small transformers model in half the memory; stop, and resume on other ranks.

Run: torchrun --nproc-per-node 2 examples/half_the_memory.py FOLDER STEPS
"""

import hashlib
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

from thalweg import optim

folder, steps = Path(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo")
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
)
# Your training: LlamaForCausalLM.from_pretrained(name, dtype=torch.bfloat16)
model = LlamaForCausalLM(config).to(torch.bfloat16)
for layer in model.model.layers:
    fully_shard(layer)
fully_shard(model)
# All ranks have the same batch, so that gradients have the same bits on any number of ranks.
tokens = torch.arange(64).view(2, 32) % 37
optimizer = optim.Muon.for_model(
    model,
    lr=0.01,
    adamw={"lr": 1e-3},
    inputs={"input_ids": tokens},
    weights="split",
    state_storage="8bit",
)
start = 0
if (folder / "step").exists():
    start = int((folder / "step").read_text())
    weights, state = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=folder / str(start))
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
elif dist.get_rank() == 0:
    print(optim.memory(optimizer))
loss = torch.zeros(())
for _ in range(start, steps):
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
weights, state = get_state_dict(model, optimizer)
dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder / str(steps))
digest = hashlib.sha256()
for param in model.parameters():
    for tensor in (param.detach(), *optimizer.state[param].values()):
        full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        digest.update(full.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
if dist.get_rank() == 0:
    (folder / "step").write_text(str(steps))
    print(f"steps {start} to {steps}: loss {loss.item():.4f}, bits {digest.hexdigest()[:16]}")
dist.destroy_process_group()
