"""Steps on a GPU in units of torch's fused, foreach and compiled steps, and other packages'.

    python benchmarks/gpu.py
    python benchmarks/gpu.py --only gpt2
    python benchmarks/gpu.py --without torch.compile  # which takes minutes for thousands of tensors

Prints a table for each model or recipe, and what each target came to; without a GPU it says so and
ends with status 2. No figure of `figures.json` comes from here.

Its name is not `cuda.py`: torch would import that in place of NVIDIA's package `cuda`.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

import thalweg
from thalweg import optim
from thalweg._cli.bench import shapes
from thalweg.keras.optimizers import Adam

Step = Callable[[], object]
# Functions that build a step with its state when it is measured.
Makers = dict[str, Callable[[], Step]]
RATE, WARM, ROUNDS, SCALE = 1e-4, 5, 30, 1024.0
ROWS, WIDTH, ENTRIES = 1_000_000, 64, 100_000
TORCHS = {"torch fused": {"fused": True}, "torch foreach": {"foreach": True}}
OWN_NAME, FUSED, DEEPSPEED = "thalweg", "torch fused", "DeepSpeedCPUAdam"


class Measured(NamedTuple):
    """Costs of a step.

    Attributes:
        milliseconds: The time until an initially idle GPU has finished.
        busy: Milliseconds in which kernels run; the remainder is waiting for the host, which is
            ahead in a training. -1 if the profiler has no data.
        host: Microseconds of the host's calls.
        launches: The number of kernels; -1 if the profiler has no data.
        waits: The number of times the host waits for the device.
    """

    milliseconds: float
    busy: float
    host: float
    launches: int
    waits: int


class Table(NamedTuple):
    """Steps that are measured side by side.

    Attributes:
        title: The heading.
        makers: Functions that build a step, by name.
        traffic: Bytes that a step must read and write; 0 if that depends on the step.
        target: Maximum busy time of thalweg's step in units of `baseline`; 0 for none.
        baseline: The name of a step.
    """

    title: str
    makers: Makers
    traffic: int
    target: float = 0.0
    baseline: str = FUSED


def llama_1b() -> shapes.ShapeSet:
    """Return the shapes of Llama 3.2 1B: 146 tensors, 1.24 G parameters, tied embeddings."""
    width, inner, keys = 2048, 8192, 512
    block: list[shapes.Shape] = [
        (width,), (width, width), (keys, width), (keys, width), (width, width),
        (width,), (inner, width), (inner, width), (width, inner),
    ]  # fmt: skip
    return shapes.of("llama-1B", [(128_256, width), *block * 16, (width,)])


def variables(
    shape_set: shapes.ShapeSet, device: str, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Return variables with gradients on a device."""
    torch.manual_seed(0)
    params: list[Tensor] = []
    for shape in shape_set.shapes:
        var = torch.randn(shape, device=device).mul_(0.02).to(dtype).requires_grad_()
        var.grad = torch.randn(shape, device=device).mul_(1e-3).to(dtype)
        params.append(var)
    return params


def compiled(step: Step) -> Step:
    """Compile a step with torch.compile."""
    return torch.compile(step, fullgraph=False)


def captured(step: Step) -> Step:
    """Capture a step as a CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def fast(step: Step) -> Step:
    """Return a step with `math="fast"`."""

    def taken() -> None:
        with thalweg.engine(math="fast"):
            step()

    return taken


def of_torch(make: Callable[..., Step]) -> Makers:
    """Return steps of torch's forms; `make(**options)` builds the step of a form."""
    return {name: partial(make, **options) for name, options in TORCHS.items()}


def of_package(name: str, module: str, make: Callable[[Any], Step]) -> Makers:
    """Return a step of another package; {} if the package is not installed.

    Args:
        name: The name of the step.
        module: The module to import when the step is built.
        make: Builds the step, from the module.
    """
    if not importlib.util.find_spec(module.partition(".")[0]):
        return {}
    return {name: lambda: make(importlib.import_module(module))}


def adam(shape_set: shapes.ShapeSet, device: str) -> Makers:
    """Return Adam of thalweg, of torch and of other packages."""
    params = variables(shape_set, device)
    makers: Makers = {
        OWN_NAME: lambda: optim.Adam(params, lr=RATE).step,
        "thalweg, math='fast'": lambda: fast(optim.Adam(params, lr=RATE).step),
    }
    makers |= of_torch(lambda **options: torch.optim.Adam(params, lr=RATE, **options).step)
    makers["torch.compile"] = lambda: compiled(torch.optim.Adam(params, lr=RATE, foreach=True).step)
    if device != "cpu":
        classes = {"thalweg in a graph": optim.Adam, "torch in a graph": torch.optim.Adam}
        for name, kind in classes.items():
            makers[name] = lambda kind=kind: captured(
                kind(params, lr=RATE, capturable=True, fused=kind is torch.optim.Adam).step
            )
    return (
        makers
        | of_package(
            "apex FusedAdam", "apex.optimizers",
            lambda apex: apex.FusedAdam(params, lr=RATE, adam_w_mode=False).step,
        )
        | of_package(
            "bitsandbytes Adam", "bitsandbytes",
            lambda package: package.optim.Adam(params, lr=RATE, optim_bits=32).step,
        )
    )  # fmt: skip


def pipeline(shape_set: shapes.ShapeSet, device: str) -> Makers:
    """Return steps with unscaling, overflow check, clipping by the global norm, and AdamW."""
    params = variables(shape_set, device)

    def with_scaler(optimizer: torch.optim.Optimizer, clips: bool) -> Step:
        scaler = torch.amp.GradScaler(torch.device(device).type, init_scale=SCALE)
        scaler.scale(torch.ones((), device=device))

        def step() -> None:
            if clips:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(params, 1.0)
            scaler.step(optimizer)
            scaler.update()

        return step

    makers: Makers = {
        OWN_NAME: lambda: with_scaler(
            optim.AdamW(params, lr=RATE, clip_grad_norm=1.0, fused_unscale=True), clips=False
        )
    }
    return makers | of_torch(
        lambda **options: with_scaler(torch.optim.AdamW(params, lr=RATE, **options), clips=True)
    )


def masters(shape_set: shapes.ShapeSet, device: str) -> Makers:
    """Return steps of Adam on bfloat16 with float32 masters, which torch's steps copy."""
    params = variables(shape_set, device, torch.bfloat16)

    def with_torch(**options: bool) -> Step:
        wide = [var.detach().float().requires_grad_() for var in params]
        optimizer = torch.optim.Adam(wide, lr=RATE, **options)

        def step() -> None:
            for master, var in zip(wide, params, strict=True):
                master.grad = var.grad.float()
            optimizer.step()
            with torch.no_grad():
                torch._foreach_copy_(params, wide)

        return step

    makers: Makers = {OWN_NAME: lambda: optim.Adam(params, lr=RATE, masters=True).step}
    makers |= of_torch(with_torch)
    makers["torch.compile"] = lambda: compiled(with_torch(foreach=True))
    return makers


def narrow(shape_set: shapes.ShapeSet, device: str) -> Makers:
    """Return steps of AdamW on bfloat16 with random rounding, 8-bit slots and split weights."""
    params = variables(shape_set, device, torch.bfloat16)
    options_by_name: dict[str, dict[str, Any]] = {
        OWN_NAME: {},
        "stochastic": {"round": "stochastic"},
        "8bit": {"state_storage": "8bit"},
        "linear8": {"state_storage": "linear8"},
        "dynamic8": {"state_storage": "dynamic8"},
        "split": {"weights": "split"},
        "split, 8bit": {"weights": "split", "state_storage": "8bit"},
    }
    makers: Makers = {
        name: lambda how=options: optim.AdamW(params, lr=RATE, **how).step
        for name, options in options_by_name.items()
    }
    makers |= of_torch(lambda **options: torch.optim.AdamW(params, lr=RATE, **options).step)
    return makers | of_package(
        "bitsandbytes AdamW8bit", "bitsandbytes",
        lambda package: package.optim.AdamW8bit(params, lr=RATE).step,
    )  # fmt: skip


def measuring(shape_set: shapes.ShapeSet, device: str) -> Makers:
    """Return steps of rules with reductions before the update, and torch's Adafactor."""
    params = variables(shape_set, device)
    return {
        OWN_NAME: lambda: optim.Adafactor(params, lr=RATE).step,
        "thalweg SM3": lambda: optim.SM3(params, lr=RATE).step,
        "thalweg LAMB": lambda: optim.LAMB(params, lr=RATE).step,
        "thalweg Prodigy": lambda: optim.Prodigy(params).step,
        "torch Adafactor": lambda: torch.optim.Adafactor(params, lr=RATE, foreach=True).step,
    }


def state_on_the_cpu(shape_set: shapes.ShapeSet, device: str) -> Makers:
    """Return Adam on bfloat16 with masters and slots on the CPU, and DeepSpeed's."""
    params = variables(shape_set, device, torch.bfloat16)

    def with_deepspeed(module: Any) -> Step:
        wide = [var.detach().float().cpu().pin_memory().requires_grad_() for var in params]
        optimizer = module.DeepSpeedCPUAdam(wide, lr=RATE, adamw_mode=False)

        def step() -> None:
            for master, var in zip(wide, params, strict=True):
                master.grad = var.grad.cpu().float()
            optimizer.step()
            with torch.no_grad():
                for master, var in zip(wide, params, strict=True):
                    var.copy_(master, non_blocking=True)

        return step

    makers: Makers = {
        OWN_NAME: lambda: optim.Adam(params, lr=RATE, masters=True, state_device="cpu").step
    }
    return makers | of_package(DEEPSPEED, "deepspeed.ops.adam", with_deepspeed)


def rows(device: str, height: int = ROWS, entries: int = ENTRIES) -> Makers:
    """Return lazy Adam on a sparse gradient of 100,000 of a million rows, and torch's."""
    table = torch.randn(height, WIDTH, device=device, requires_grad=True)
    indices = torch.randint(height, (entries,), device=device)
    values = torch.randn(entries, WIDTH, device=device)
    table.grad = torch.sparse_coo_tensor(indices[None], values, table.shape, check_invariants=False)
    slices = thalweg.IndexedSlices(values, indices, (height, WIDTH))
    keras = Adam(RATE)
    return {
        OWN_NAME: lambda: optim.SparseAdam([table], lr=RATE).step,
        "thalweg.keras, all rows": lambda: lambda: keras.apply_gradients([(slices, table)]),
        "torch SparseAdam": lambda: torch.optim.SparseAdam([table], lr=RATE).step,
    }


def hidden(device: str) -> list[Tensor]:
    """Return the hidden matrices of GPT-2 small, with gradients."""
    sizes = [(2304, 768), (768, 768), (3072, 768), (768, 3072)] * 12
    return variables(shapes.of("hidden matrices", sizes), device)


def muon(device: str) -> Makers:
    """Return Muon on the hidden matrices, torch's, and its matrix products alone."""
    params = hidden(device)

    def products() -> Step:
        counts: dict[tuple[int, int], int] = {}
        for param in params:
            size = (min(param.shape), max(param.shape))
            counts[size] = counts.get(size, 0) + 1
        batches = [
            torch.randn(count, *size, device=device, dtype=torch.bfloat16) / size[1]
            for size, count in counts.items()
        ]

        def multiply() -> None:
            for batch in batches:
                for _ in range(5):
                    square = batch @ batch.mT
                    mixed = torch.baddbmm(square, square, square, beta=-4.775, alpha=2.0315)
                    torch.baddbmm(batch, mixed, batch, beta=3.4445)

        return multiply

    return {
        OWN_NAME: lambda: optim.Muon(params, lr=RATE).step,
        "torch Muon": lambda: torch.optim.Muon(params, lr=RATE).step,
        "products alone": products,
    }


def tables(device: str) -> list[Callable[[], Table]]:
    """Return functions that build the tables to measure."""

    def of_adam(shape_set: shapes.ShapeSet, target: float) -> Table:
        # Adam reads variable, gradient and two slots, and writes all but the gradient.
        return Table(
            f"Adam, {shape_set.name}", adam(shape_set, device), 7 * shape_set.bytes, target
        )

    gpt2 = shapes.gpt2()
    halves = 5 * 2 * gpt2.bytes // 4 + 5 * gpt2.bytes
    return [
        lambda: of_adam(gpt2, 1.0),
        lambda: of_adam(llama_1b(), 1.0),
        lambda: of_adam(shapes.resnet50(), 1.0),
        lambda: of_adam(shapes.of("2,000 x 1,000", [(1000,)] * 2000), 0.3),
        # The norm, and the look for overflows, read the gradients once more each.
        lambda: Table("AdamW pipeline, gpt2", pipeline(gpt2, device), 9 * gpt2.bytes, 0.55),
        lambda: Table("Adam with masters, gpt2", masters(gpt2, device), halves, 1.0),
        lambda: Table("AdamW over bfloat16, gpt2", narrow(gpt2, device), 0, 1.0),
        lambda: Table(
            "Adafactor and others, gpt2", measuring(gpt2, device), 0, 1.0, "torch Adafactor"
        ),
        lambda: Table(
            "Adafactor and others, resnet50", measuring(shapes.resnet50(), device), 0, 1.0,
            "torch Adafactor",
        ),
        lambda: Table(
            "Adam, state on the CPU, gpt2", state_on_the_cpu(gpt2, device), 0, 1.0, DEEPSPEED
        ),
        lambda: Table("Muon, GPT-2's hidden matrices", muon(device), 0, 1.0, "torch Muon"),
        lambda: Table(
            f"Sparse rows, {ENTRIES:,} of {ROWS:,} x {WIDTH}", rows(device), 0, 1.0,
            "torch SparseAdam",
        ),
    ]  # fmt: skip


def times(step: Step) -> tuple[float, float]:
    """Return the milliseconds of a step on the GPU, and the microseconds of the host's calls."""
    for _ in range(WARM):
        step()
    gpu_times, host = [], []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began = perf_counter()
        begin.record()
        step()
        end.record()
        host.append(1e6 * (perf_counter() - began))
        end.synchronize()
        gpu_times.append(begin.elapsed_time(end))
    return median(gpu_times), median(host)


def counted(step: Step) -> tuple[float, int, int]:
    """Return the milliseconds and number of a step's kernels, and the number of host waits."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        step()
    events = profiler.events() or []
    launches = [
        event
        for event in events
        if event.device_type == torch.autograd.DeviceType.CUDA
        and not event.name.startswith("Optimizer.step#")  # a record of torch's, around the kernels
    ]
    waits = [event for event in events if event.name in ("cudaStreamSynchronize", "cudaMemcpy",
                                                      "cudaEventSynchronize")]  # fmt: skip
    busy = sum(event.self_device_time_total for event in launches) / 1e3
    return (busy, len(launches), len(waits)) if launches else (-1.0, -1, len(waits))


def measured(step: Step) -> Measured:
    """Return all measurements of a step."""
    (milliseconds, host), (busy, launches, waits) = times(step), counted(step)
    return Measured(milliseconds, busy, host, launches, waits)


def bandwidth() -> float:
    """Return the bytes per second that a copy of 1 GiB reads and writes."""
    source = torch.empty(2**28, device="cuda")
    target = torch.empty_like(source)
    milliseconds, _ = times(lambda: target.copy_(source))
    return 2 * source.nbytes / (milliseconds / 1e3)


def lines(table: Table, measurements: dict[str, Measured], copy_bandwidth: float) -> list[str]:
    """Format a table as lines.

    Args:
        table: The table.
        measurements: The measurements of its steps, by name.
        copy_bandwidth: Bytes per second of a copy.
    """
    lines_ = [table.title]
    for name, step in measurements.items():
        share = table.traffic / (step.busy / 1e3) / copy_bandwidth
        note = f"{share:5.0%} of a copy's bandwidth" if table.traffic else ""
        lines_.append(
            f"  {name:24} {step.milliseconds:9.3f} ms  busy {step.busy:8.3f}"
            f"  host {step.host:8.0f} us"
            f"  {step.launches:5} launches  {step.waits:3} waits  {note}".rstrip()
        )
    if table.target and OWN_NAME in measurements and table.baseline in measurements:
        own_step, baseline = measurements[OWN_NAME], measurements[table.baseline]
        ratio, idle_ratio = (
            own_step.busy / baseline.busy,
            own_step.milliseconds / baseline.milliseconds,
        )
        verdict = "met" if ratio <= table.target else "MISSED"
        lines_.append(
            f"  busy {ratio:.2f} of {table.baseline}, target at most {table.target}: {verdict};"
            f" from an idle start {idle_ratio:.2f}"
        )
    return lines_


def main(arguments: list[str] | None = None) -> int:
    """Measure the selected tables; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="tables whose titles contain this")
    parser.add_argument("--without", action="append", default=[], help="the name of a step")
    arguments_ = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("benchmarks/gpu.py needs a GPU, and torch sees none.", file=sys.stderr)
        return 2
    # NVIDIA has a package of this file's name, which others import.
    folder = str(Path(__file__).parent)
    sys.path = [entry for entry in sys.path if entry != folder]
    copy_bandwidth = bandwidth()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, thalweg"
          f" {thalweg.__version__}; a copy moves {copy_bandwidth / 1e9:.0f} GB/s")  # fmt: skip
    print("Target: 0.9 of a copy's bandwidth on big tensors.")
    for make in tables("cuda"):
        table, measurements = make(), {}
        if arguments_.only not in table.title:
            continue
        for name in [name for name in table.makers if name not in arguments_.without]:
            try:
                measurements[name] = measured(table.makers[name]())
            except Exception as error:
                print(f"  {name}: {type(error).__name__}: {error}")
            torch.cuda.empty_cache()
        print("\n" + "\n".join(lines(table, measurements, copy_bandwidth)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
