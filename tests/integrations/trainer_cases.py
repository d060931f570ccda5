"""Trainings of packages around torch, each run in a process of its own: name, folder.

A case returns a report; the comparison is with the plain loop of `training`.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

sys.path[:0] = [str(Path(__file__).parent)]

from thalweg import optim  # noqa: E402
from training import data, loss_of, model  # noqa: E402

CASES: dict[str, Callable[[Path], Any]] = {}


def case(function: Callable[..., Any]) -> Callable[[Path], Any]:
    """Register a case under the name of its function."""
    CASES[function.__name__] = function
    return function


def distance(first: nn.Module, second: nn.Module) -> float:
    """Return the largest difference of the parameters of two models."""
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return max((a.detach() - b.detach()).abs().max().item() for a, b in pairs)


RULES: dict[str, Callable[[Any], Any]] = {
    "torch.AdamW": lambda params: torch.optim.AdamW(params, lr=0.05),
    "AdamW": lambda params: optim.AdamW(params, lr=0.05),
    "torch.SGD": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    "SGD": lambda params: optim.SGD(params, lr=0.05, momentum=0.9),
    "Lion": lambda params: optim.Lion(params, lr=0.05),
    "LAMB": lambda params: optim.LAMB(params),
    "Adafactor": lambda params: optim.Adafactor(params),
    "trust_ratio": lambda params: optim.SGD(params, lr=0.05, trust_ratio=True),
    "Muon": lambda params: optim.Muon([param for param in params if param.dim() == 2]),
    "Prodigy": lambda params: optim.Prodigy(params),
    "clipped": lambda params: optim.AdamW(params, lr=0.05, clip_grad_norm=1.0),
    "accumulated": lambda params: optim.AdamW(params, lr=0.05, accumulate=2),
}


@case
def deepspeed(_: Path) -> Any:
    """Train with each rule as client optimizer in each ZeRO stage; report weights or errors."""
    import deepspeed

    # Else it compiles a communication library of C++, which takes minutes.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_port())}
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", **address)
    deepspeed.init_distributed("gloo", verbose=False)
    report: dict[str, dict[str, Any]] = {}
    for dtype, stage in (*(("fp32", stage) for stage in range(4)), ("bf16", 1), ("bf16", 2)):
        outcomes = report[f"{dtype}, stage {stage}"] = {}
        for name, make in RULES.items():
            try:
                outcomes[name] = trained_by_deepspeed(make, stage, dtype)
            except ValueError as error:
                outcomes[name] = str(error)
    return report


def trained_by_deepspeed(make: Callable[..., Any], stage: int, dtype: str) -> list[float]:
    """Return the weights after a training."""
    import deepspeed

    config = {
        "train_batch_size": 4,
        "zero_optimization": {"stage": stage, "sub_group_size": 10},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": dtype == "bf16"},
        "steps_per_print": 10**9,
    }
    module = model()
    optimizer = make(module.parameters())
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)
    for x, y in data():
        kind = torch.bfloat16 if dtype == "bf16" else torch.float32
        engine.backward(loss_of(engine, (x.to(kind), y.to(kind))))
        engine.step()
    with deepspeed.zero.GatheredParameters(list(module.parameters())):
        weights = [x for param in module.parameters() for x in param.flatten().tolist()]
    engine.destroy()
    return weights


def find_port() -> int:
    """Return a free port of this machine."""
    import socket

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


@case
def peft(_: Path) -> Any:
    """Train adapters alone; report their distance from torch's, and their rules under Muon."""
    from peft import LoraConfig, get_peft_model

    def adapted() -> Any:
        torch.manual_seed(0)
        return get_peft_model(model(), LoraConfig(r=2, target_modules=["0", "2"]))  # type: ignore

    trainings = []
    for cls in (optim.AdamW, torch.optim.AdamW):
        module = adapted()
        optimizer = cls(module.parameters(), lr=0.05)
        for batch in data():
            loss_of(module, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        trainings.append(module)
    module = adapted()
    muon = optim.Muon.for_model(module, lr=0.02, inputs=(torch.ones(2, 4),), output=())
    rules = {name: layout is not None for name, _, layout, _ in muon.layouts or ()}
    loss_of(module, data()[0]).backward()
    muon.step()
    return {"distance": distance(*trainings), "rules": rules, "taken": muon.last_step.taken}


@case
def trl(folder: Path) -> Any:
    """Tune the adapters of a small model by a name; report their distance from torch's."""
    from datasets import Dataset
    from peft import LoraConfig
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    from thalweg.integrations.transformers import register

    register()
    words = ["<pad>", "<eos>", *"abcdefgh"]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="<eos>",
    )
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    trainings = []
    for name in ("thalweg_adamw_8bit", "adamw_torch"):
        torch.manual_seed(0)
        module = LlamaForCausalLM(
            LlamaConfig(vocab_size=len(words), num_attention_heads=2, **sizes)
        )
        arguments = SFTConfig(
            str(folder), optim=name, max_steps=4, learning_rate=0.01, use_cpu=True, report_to=[],
            save_strategy="no", disable_tqdm=True, bf16=False, gradient_checkpointing=False,
        )  # fmt: skip
        trainer = SFTTrainer(
            module, arguments, train_dataset=Dataset.from_dict({"text": [*"abcdefgh"] * 4}),
            processing_class=tokenizer, peft_config=LoraConfig(r=2, target_modules=["v_proj"]),
        )  # fmt: skip
        trainer.train()
        trainings.append(trainer)
    optimizer = trainings[0].optimizer.optimizer
    params = [
        [param.detach() for param in trainer.model.parameters() if param.requires_grad]
        for trainer in trainings
    ]
    return {
        "distance": max((a - b).abs().max().item() for a, b in zip(*params, strict=True)),
        "has_moved": all(param.any().item() for param in params[0]),  # one of each pair began at 0
        "optimizer": f"{type(optimizer).__module__.partition('.')[0]}, {optimizer.last_step.count}",
    }


@case
def torchtitan(folder: Path) -> Any:
    """Train by the container, resume from a flat distributed checkpoint."""
    from torch.distributed import checkpoint as dcp
    from torch.distributed.fsdp import fully_shard
    from torchtitan.components.optimizer import LRSchedulersContainer, ParamGroupConfig

    from thalweg.integrations.torchtitan import MixedOptimizers

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    config = MixedOptimizers.Config(
        param_groups=[
            ParamGroupConfig(pattern="0.weight", optimizer_name="Muon"),
            ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 0.01}),
        ],
        options={"state_storage": "8bit", "ema_decay": 0.9},
    )

    def build() -> tuple[Any, ...]:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 1))
        fully_shard(module)
        optimizers = config.build(model_parts=[module])
        schedule = LRSchedulersContainer.Config(warmup_steps=2)
        return module, optimizers, schedule.build(optimizers=optimizers, training_steps=20)

    def step(module: Any, optimizers: Any, schedules: Any, number: int) -> None:
        torch.manual_seed(number)
        module(torch.randn(16, 64)).square().mean().backward()
        optimizers.step()
        schedules.step()
        optimizers.zero_grad()

    def weights(module: Any) -> list[float]:
        return [x for p in module.parameters() for x in p.full_tensor().flatten().tolist()]

    uninterrupted, resumed = build(), build()
    initial = weights(uninterrupted[0])
    uninterrupted[1].state_dict()
    is_unmoved = weights(uninterrupted[0]) == initial
    for number in range(4):
        step(*uninterrupted, number)
    states = ("model", "optimizer", "lr_scheduler")
    dcp.save(dict(zip(states, uninterrupted, strict=True)), checkpoint_id=folder / "dcp")
    dcp.load(dict(zip(states, resumed, strict=True)), checkpoint_id=folder / "dcp")
    for number in range(4, 8):
        step(*uninterrupted, number)
        step(*resumed, number)
    return {
        "is_unmoved": is_unmoved,
        "has_moved": weights(uninterrupted[0]) != initial,
        "is_resumed": weights(uninterrupted[0]) == weights(resumed[0]),
        "keys": sorted(uninterrupted[1].state_dict())[:3],
        "rates": [
            uninterrupted[2].schedulers[0].get_last_lr(),
            resumed[2].schedulers[0].get_last_lr(),
        ],
    }


@case
def ray(folder: Path) -> Any:
    """Train on two workers; report the weights of each, and those of one process."""
    # Workers would give way to all other processes of the machine.
    os.environ.update(RAY_worker_niceness="0", RAY_AUTH_MODE="disabled")
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    trainer = TorchTrainer(
        _train_worker,
        train_loop_config={"folder": str(folder), "paths": sys.path},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(folder)),
    )
    trainer.fit()
    first, second = (json.loads((folder / f"{rank}.json").read_text()) for rank in range(2))
    module = model()
    optimizer = RULES["AdamW"](module.parameters())
    for batch in data():
        loss_of(module, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    single = [x for param in module.parameters() for x in param.flatten().tolist()]
    return {"is_equal": first == second, "distance": max(abs(a - b) for a, b in zip(first, single))}


def _train_worker(config: dict[str, Any]) -> None:
    sys.path[:] = config["paths"]
    import ray.train as train
    from ray.train.torch import prepare_model

    rank = train.get_context().get_world_rank()
    module = prepare_model(model())
    optimizer = optim.AdamW(module.parameters(), lr=0.05)
    for x, y in data():
        loss_of(module, (x[rank::2], y[rank::2])).backward()
        optimizer.step()
        optimizer.zero_grad()
    weights = [x for param in module.parameters() for x in param.flatten().tolist()]
    Path(config["folder"], f"{rank}.json").write_text(json.dumps(weights))
    train.report({"steps": optimizer.last_step.count})


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcome = CASES[sys.argv[1]](Path(sys.argv[2]))
    print(json.dumps(outcome), flush=True)
