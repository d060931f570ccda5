"""Optimizers inside of the Trainer of Hugging Face's transformers; resumed from its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attribute_access import assert_known, touching, watched
from thalweg import optim, rules
from thalweg.optim import schedules
from training import OPTIMIZERS, assert_same_training, data, loss_of, model, schedule, trained

# What transformers 5.23 asks an optimizer for, itself or through Accelerate 1.15.
ATTRIBUTES = """
    _is_accelerate_prepared load_state_dict optimizer param_groups state_dict step train zero_grad
"""


class Wrapped(nn.Module):
    """Model with the signature that the Trainer calls."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = model()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": loss_of(self.inner, (x, labels))}

    def get_output_embeddings(self) -> nn.Module:
        return self.inner.get_submodule("2")


def trainer(
    folder: Path, module: nn.Module, settings: Mapping[str, Any] | None = None, **options: Any
) -> Any:
    """Return a Trainer with arguments for tests; `settings` are further `TrainingArguments`."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="Accelerate is not installed")

    class InOrder(transformers.Trainer):
        """Trainer that does not shuffle."""

        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    arguments = transformers.TrainingArguments(
        str(folder),
        max_steps=8,
        per_device_train_batch_size=4,
        save_steps=4,
        logging_steps=2,
        max_grad_norm=1.0,
        lr_scheduler_type="constant",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **(settings or {}),
    )
    rows = [{"x": x, "labels": y} for batch in data() for x, y in zip(*batch, strict=True)]
    return InOrder(module, arguments, train_dataset=rows, **options)


def trained_by(folder: Path, make: Any, checkpoint: str | None = None) -> Any:
    module = Wrapped()
    optimizer = make(module.parameters())
    hf_trainer = trainer(folder, module, optimizers=(optimizer, schedule(optimizer)))
    hf_trainer.train(resume_from_checkpoint=checkpoint)
    return module.inner, optimizer


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_transformers_training_equals_the_plain_loop(name: str, tmp_path: Path) -> None:
    make = OPTIMIZERS[name]
    expected = trained(make, data(), clip=1.0)
    assert_same_training(trained_by(tmp_path, make), expected)
    assert_same_training(trained_by(tmp_path, make, str(tmp_path / "checkpoint-4")), expected)


@pytest.mark.parametrize(
    ("cls", "arguments"),
    [
        (optim.AdamW, {"lr": 0.05, "clip_grad_norm": 1.0}),
        (optim.tensorflow.Ftrl, {"lr": 0.05, "l1": 0.01}),
        (optim.RuleOptimizer, {"rule": rules.ADAM, "lr": 0.05}),
    ],
    ids=["AdamW", "tensorflow.Ftrl", "RuleOptimizer"],
)
def test_trainer_takes_optimizer_class_and_arguments(
    cls: Any, arguments: dict[str, Any], tmp_path: Path
) -> None:
    """Let the Trainer create the optimizer, of its groups with decay and without."""
    hf_trainer = trainer(tmp_path, Wrapped(), optimizer_cls_and_kwargs=(cls, arguments))
    initial = [param.detach().clone() for param in hf_trainer.model.parameters()]
    hf_trainer.train()
    assert type(hf_trainer.optimizer.optimizer) is cls
    assert len(hf_trainer.optimizer.param_groups) == 2
    assert hf_trainer.optimizer.optimizer.last_step.count == 8
    for param, old in zip(hf_trainer.model.parameters(), initial, strict=True):
        assert not torch.equal(param, old)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.parametrize(
    "options", [{}, {"state_storage": "8bit"}, {"weights": "split", "ema_decay": 0.9}], ids=str
)
def test_distributed_checkpoint_of_transformers_resumes_to_the_bit(
    options: dict[str, Any], tmp_path: Path
) -> None:
    """Transformers saves flat state dicts."""
    checkpoints = pytest.importorskip("transformers.distributed.checkpoint")
    trainings: list[tuple[nn.Module, Any]] = []
    for _ in range(2):
        torch.manual_seed(0)
        module = nn.Linear(80, 64).bfloat16()
        trainings.append((module, optim.AdamW(module.parameters(), lr=0.05, **options)))

    def step(module: nn.Module, optimizer: Any) -> None:
        module(torch.linspace(-1, 1, 80, dtype=torch.bfloat16)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step(*trainings[0])
    checkpoints.save_optimizer_distributed(*trainings[0], str(tmp_path))
    trainings[1][0].load_state_dict(trainings[0][0].state_dict())
    checkpoints.load_optimizer_distributed(*trainings[1], str(tmp_path))
    for training in trainings:
        step(*training)
    assert_same_training(trainings[1], trainings[0])


def test_transformers_uses_only_available_attributes(tmp_path: Path) -> None:
    with touching("transformers", "accelerate") as accessed:
        cls = watched(optim.AdamW)
        trained_by(tmp_path, lambda params: cls(params, lr=0.05))
        trained_by(tmp_path, lambda params: cls(params, lr=0.05), str(tmp_path / "checkpoint-4"))
        trainer(tmp_path, Wrapped(), optimizer_cls_and_kwargs=(cls, {"lr": 0.05})).train()
    assert_known(accessed, ATTRIBUTES)


def test_diagnostics_are_logged_by_transformers(tmp_path: Path) -> None:
    module = Wrapped()
    optimizer = optim.AdamW(module.named_parameters(), lr=0.05, diagnostics=3)
    hf_trainer = trainer(tmp_path, module, optimizers=(optimizer, schedule(optimizer)))
    from thalweg.integrations.transformers import LogDiagnostics

    hf_trainer.add_callback(LogDiagnostics(hf_trainer, ["ratio"]))
    hf_trainer.train()
    rows = [row for row in hf_trainer.state.log_history if any("ratio/" in name for name in row)]
    assert [row["step"] for row in rows] == [3, 6]
    numbers = optimizer.diagnostics.scalars(["ratio"])
    assert len(numbers) == len(list(module.parameters()))
    assert numbers.items() <= rows[-1].items()
    with pytest.raises(TypeError, match="trainer must be a Trainer"):
        LogDiagnostics(print)


@pytest.mark.parametrize("shape", ["linear", "cosine", "1-sqrt"])
def test_factors_have_the_numbers_of_transformers(shape: str) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    wsd = schedules.WarmupStableDecay(40, warmup=7, decay=12, shape=shape, floor=0.1, begin=0.1)
    expected_wsd = partial(
        transformers.get_wsd_schedule, num_warmup_steps=7, num_decay_steps=12,
        num_training_steps=40, decay_type=shape, min_lr_ratio=0.1,
    )  # fmt: skip
    cosine = partial(transformers.get_cosine_schedule_with_warmup, num_warmup_steps=7,
                     num_training_steps=40)  # fmt: skip
    inverse = partial(transformers.get_inverse_sqrt_schedule, num_warmup_steps=7)
    for factor, make in (
        (wsd, expected_wsd),
        (schedules.WarmupCosine(40, warmup=7), cosine),
        (schedules.InverseSquareRoot(warmup=7), inverse),
    ):
        ours, theirs = (optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3) for _ in range(2))
        pair = schedules.Schedule(ours, factor), make(theirs)
        for step in range(41):  # Later, the cosine of transformers rises again.
            rates = [scheduler.get_last_lr()[0] for scheduler in pair]
            assert rates[0] == pytest.approx(rates[1], rel=1e-15, abs=1e-300), (factor, step)
            for scheduler in pair:
                scheduler.optimizer.step()
                scheduler.step()


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "optim_args", "cls", "entries"),
    [
        ("thalweg_adamw", "ema_decay=0.9", optim.AdamW, {"weight_decay": 0.1}),
        ("thalweg_adamw_8bit", None, optim.AdamW, {"lr": 0.02, "betas": (0.8, 0.999)}),
        ("thalweg_lion", None, optim.Lion, {"lr": 0.02, "weight_decay": 0.1}),
        ("thalweg_sgd", "momentum=0.5,nesterov=true", optim.SGD, {"momentum": 0.5}),
        ("thalweg_muon", "ns_steps=3", optim.Mixed, {"rule": "Muon", "ns_steps": 3}),
        (
            "thalweg_muon",
            "adamw={'eps': 1e-6},ns_steps=3",
            optim.Mixed,
            {"rule": "AdamW", "lr": 0.02, "eps": 1e-6, "betas": (0.8, 0.999), "weight_decay": 0.1},
        ),
    ],
)
def test_registered_names_choose_classes(
    name: str, optim_args: str | None, cls: Any, entries: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    from thalweg.integrations.transformers import register

    assert name in register()
    assert register() == register()
    settings = {"optim": name, "optim_args": optim_args, "learning_rate": 0.02,
                "adam_beta1": 0.8, "weight_decay": 0.1}  # fmt: skip
    hf_trainer = trainer(tmp_path, Wrapped(), settings)
    hf_trainer.train()
    optimizer = hf_trainer.optimizer.optimizer
    assert type(optimizer) is cls
    assert optimizer.last_step.count == 8
    assert any(entries.items() <= group.items() for group in optimizer.param_groups)


def test_names_give_the_arguments_of_a_trainer(tmp_path: Path) -> None:
    """Choose a class by name without a change of transformers."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from thalweg.integrations.transformers import optimizer_cls_and_kwargs

    arguments = transformers.TrainingArguments(
        str(tmp_path), weight_decay=0.1, optim_args="ns_steps=3"
    )
    pair = optimizer_cls_and_kwargs("thalweg_muon_8bit", arguments)
    hf_trainer = trainer(tmp_path, Wrapped(), optimizer_cls_and_kwargs=pair)
    hf_trainer.train()
    optimizer = hf_trainer.optimizer.optimizer
    assert optimizer.last_step.count == 8
    entries = {"rule": "Muon", "ns_steps": 3, "lr": 5e-5, "weight_decay": 0.1}
    assert any(entries.items() <= group.items() for group in optimizer.param_groups)
    assert {group["lr"] for group in optimizer.param_groups} == {5e-5}
    arguments.optim_args = (
        "betas=(0.9, 0.95), adamw={'lr': 1e-4, 'eps': 1e-8},,foo=cpu,key=')',text='a,(b'"
    )
    _, options = optimizer_cls_and_kwargs("thalweg_muon", arguments)
    values = [options[name] for name in ("betas", "foo", "key", "text")]
    assert values == [(0.9, 0.95), "cpu", ")", "a,(b"]
    assert {"lr": 1e-4, "eps": 1e-8, "weight_decay": 0.1}.items() <= options["adamw"].items()
    for name, text, message in (
        ("thalweg_muon", "ns_steps", "has 'ns_steps'; an entry"),
        ("thalweg_muon", "betas=(0.9,lr=1", "brackets that do not match"),
        ("thalweg_muon", "a=1),b=(2", "brackets that do not match"),
        ("thalweg_muon", "a=[1,2},b=3", "brackets that do not match"),
        ("muon", "", "known are"),
    ):
        arguments.optim_args = text
        with pytest.raises(ValueError, match=message):
            optimizer_cls_and_kwargs(name, arguments)


def test_registered_names_are_options_of_the_command_line() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from thalweg.integrations.transformers import register

    register()
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    (arguments,) = parser.parse_args_into_dataclasses(
        ["--optim", "thalweg_adamw_8bit", "--output_dir", "out"]
    )
    assert arguments.optim == "thalweg_adamw_8bit"
    with pytest.raises(ValueError, match="thalweg_adamx"):
        transformers.TrainingArguments("out", optim="thalweg_adamx")
