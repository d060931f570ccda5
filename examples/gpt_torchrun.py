"""Pretrain a small GPT on several ranks, with checkpoints that any number of ranks resumes.

FSDP2, Muon with 8-bit AdamW for the other weights, a schedule with a stable phase, weight
averages, torch's distributed checkpoints, and a page of diagnostics.

Run: torchrun --nproc-per-node 2 examples/gpt_torchrun.py FOLDER
Resume after a stop, on any number of ranks that divides 8: the same command.
Diagnostics: thalweg report FOLDER/run.jsonl
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from thalweg import optim
from thalweg.optim import schedules
from thalweg.optim.diagnostics import Diagnostics, JsonLines

TEXT = torch.tensor(list(Path(__file__).read_bytes()))
WIDTH, HEADS, LAYERS, CONTEXT = 128, 4, 2, 64
SEQUENCES = 8  # of all ranks together in each step


class Block(nn.Module):
    """Attention and a feed-forward network, both after a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.expand, self.contract = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        queries, keys, values = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).flatten(2))
        return x + self.contract(F.gelu(self.expand(self.norm2(x))))


class GPT(nn.Module):
    """Decoder over bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batch_of(step: int) -> Tensor:
    """Return this rank's part of the sequences of a step, the same for any number of ranks."""
    draw = torch.Generator().manual_seed(step)
    starts = torch.randint(len(TEXT) - CONTEXT - 1, (SEQUENCES,), generator=draw)
    sequences = torch.stack([TEXT[start : start + CONTEXT + 1] for start in starts])
    return sequences.chunk(dist.get_world_size())[dist.get_rank()]


def loss_of(model: nn.Module, sequences: Tensor) -> Tensor:
    logits = model(sequences[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), sequences[:, 1:].flatten())


def mean_of_ranks(loss: Tensor) -> float:
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


class Training:
    """Sharded model, optimizer, schedule and step count; saved and resumed together."""

    def __init__(self, folder: Path, steps: int) -> None:
        torch.manual_seed(0)
        self.model, self.folder, self.step = GPT(), folder, 0
        for block in self.model.blocks:
            fully_shard(block)
        fully_shard(self.model)
        is_first = dist.get_rank() == 0
        sinks = [JsonLines(folder / "run.jsonl")] if is_first else []
        self.recorder = Diagnostics(every=5, sinks=sinks)
        self.optimizer = optim.Muon.for_model(
            self.model,
            lr=0.02,
            weight_decay=0.01,
            adamw={"lr": 3e-3, "betas": (0.9, 0.95)},
            state_storage="8bit",
            clip_grad_norm=1.0,
            ema_decay=0.9,
            diagnostics=self.recorder,
        )
        factor = schedules.WarmupStableDecay(steps, warmup=5, decay=steps // 3, shape="1-sqrt")
        self.schedule = schedules.Schedule(self.optimizer, factor)

    def train_step(self) -> float:
        loss = loss_of(self.model, batch_of(self.step))
        loss.backward()
        mean_loss = mean_of_ranks(loss)
        self.recorder.log_loss(mean_loss)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        self.step += 1
        return mean_loss

    def state_dict(self) -> dict[str, object]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        schedule = self.schedule.state_dict()
        return {"model": model, "optim": optimizer, "schedule": schedule, "step": self.step}

    def load_state_dict(self, state: dict) -> None:
        states = {"model_state_dict": state["model"], "optim_state_dict": state["optim"]}
        set_state_dict(self.model, self.optimizer, **states)
        self.schedule.load_state_dict(state["schedule"])
        self.step = state["step"]

    def save(self) -> None:
        dcp.save({"training": self}, checkpoint_id=self.folder / f"step-{self.step:06d}")

    def resume(self) -> None:
        if checkpoints := sorted(self.folder.glob("step-*/.metadata")):
            dcp.load({"training": self}, checkpoint_id=checkpoints[-1].parent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save-every", type=int, default=10)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    dist.init_process_group("gloo")
    training = Training(options.folder, options.steps)
    training.resume()
    while training.step < options.steps:
        loss = training.train_step()
        if dist.get_rank() == 0:
            print(f"step {training.step} loss {loss:.9g}", flush=True)
        if training.step % options.save_every == 0:
            training.save()
    with training.optimizer.swapped(), torch.no_grad():  # evaluate the averages
        averaged = mean_of_ranks(loss_of(training.model, batch_of(-1)))
    if dist.get_rank() == 0:
        print(f"averaged weights: loss {averaged:.9g}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
