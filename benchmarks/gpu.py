"""Steps on a GPU beside torch's fused, foreach and compiled ones, and other packages', in one run.

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
Makers = dict[str, Callable[[], Step]]  # each makes its state when it is measured
RATE, WARM, ROUNDS, SCALE = 1e-4, 5, 30, 1024.0
ROWS, WIDTH, ENTRIES = 1_000_000, 64, 100_000
TORCHS = {"torch fused": {"fused": True}, "torch foreach": {"foreach": True}}
OWN, FUSED, DEEPSPEED = "thalweg", "torch fused", "DeepSpeedCPUAdam"


class Measured(NamedTuple):
    """What a step takes.

    Attributes:
        milliseconds: Until the GPU is done, which had nothing to do before.
        busy: Milliseconds in which kernels run; what is left is waiting for the host, which in a
            training is ahead. -1 where the profiler does not tell.
        host: Microseconds in which the host starts it.
        launches: Kernels that it starts; -1 where the profiler does not tell.
        waits: How often the host waits for the device.
    """

    milliseconds: float
    busy: float
    host: float
    launches: int
    waits: int


class Table(NamedTuple):
    """What is measured side by side.

    Attributes:
        title: Its heading.
        makers: By name, what makes a step.
        moved: Bytes that a step has to read and write; 0 where that depends on the step.
        target: The time in which the GPU is busy with `OWN`, in units of `beside`, at most; 0 for
            none.
        beside: The name of a step.
    """

    title: str
    makers: Makers
    moved: int
    target: float = 0.0
    beside: str = FUSED


def llama_1b() -> shapes.ShapeSet:
    """Llama 3.2 of 1 B: 146 tensors, 1.24 G parameters, the embedding tied to the output layer."""
    width, inner, keys = 2048, 8192, 512
    block: list[shapes.Shape] = [
        (width,), (width, width), (keys, width), (keys, width), (width, width),
        (width,), (inner, width), (inner, width), (width, inner),
    ]  # fmt: skip
    return shapes.of("llama-1B", [(128_256, width), *block * 16, (width,)])


def variables(
    made: shapes.ShapeSet, device: str, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Variables on a device, with gradients."""
    torch.manual_seed(0)
    found: list[Tensor] = []
    for shape in made.shapes:
        var = torch.randn(shape, device=device).mul_(0.02).to(dtype).requires_grad_()
        var.grad = torch.randn(shape, device=device).mul_(1e-3).to(dtype)
        found.append(var)
    return found


def compiled(step: Step) -> Step:
    """A step under torch.compile."""
    return torch.compile(step, fullgraph=False)


def captured(step: Step) -> Step:
    """A step as a CUDA graph."""
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
    """A step with `math="fast"`."""

    def taken() -> None:
        with thalweg.engine(math="fast"):
            step()

    return taken


def others(own: list[Tensor]) -> Makers:
    """Adam of packages that are installed."""
    found: Makers = {}
    if importlib.util.find_spec("apex"):
        found["apex FusedAdam"] = lambda: (
            (
                importlib.import_module("apex.optimizers").FusedAdam(
                    own, lr=RATE, adam_w_mode=False
                )
            ).step
        )
    if importlib.util.find_spec("bitsandbytes"):
        found["bitsandbytes Adam"] = lambda: (
            (importlib.import_module("bitsandbytes").optim.Adam(own, lr=RATE, optim_bits=32)).step
        )
    return found


def adam(made: shapes.ShapeSet, device: str) -> Makers:
    """Adam through thalweg's public call, through torch's and those of other packages."""
    own = variables(made, device)
    makers: Makers = {
        OWN: lambda: optim.Adam(own, lr=RATE).step,
        "thalweg, math='fast'": lambda: fast(optim.Adam(own, lr=RATE).step),
    }
    for name, how in TORCHS.items():
        makers[name] = lambda how=how: torch.optim.Adam(own, lr=RATE, **how).step
    makers["torch.compile"] = lambda: compiled(torch.optim.Adam(own, lr=RATE, foreach=True).step)
    if device != "cpu":
        both = {"thalweg in a graph": optim.Adam, "torch in a graph": torch.optim.Adam}
        for name, kind in both.items():
            makers[name] = lambda kind=kind: captured(
                kind(own, lr=RATE, capturable=True, fused=kind is torch.optim.Adam).step
            )
    return makers | others(own)


def pipeline(made: shapes.ShapeSet, device: str) -> Makers:
    """Unscaling, the look for overflows, clipping by the norm of all gradients, and AdamW."""
    own = variables(made, device)

    def with_scaler(optimizer: torch.optim.Optimizer, clips: bool) -> Step:
        scaler = torch.amp.GradScaler(torch.device(device).type, init_scale=SCALE)
        scaler.scale(torch.ones((), device=device))

        def step() -> None:
            if clips:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(own, 1.0)
            scaler.step(optimizer)
            scaler.update()

        return step

    makers: Makers = {
        OWN: lambda: with_scaler(
            optim.AdamW(own, lr=RATE, clip_grad_norm=1.0, fused_unscale=True), clips=False
        )
    }
    for name, how in TORCHS.items():
        makers[name] = lambda how=how: with_scaler(
            torch.optim.AdamW(own, lr=RATE, **how), clips=True
        )
    return makers


def masters(made: shapes.ShapeSet, device: str) -> Makers:
    """Adam over bfloat16 with float32 masters; torch's steps copy them themselves."""
    own = variables(made, device, torch.bfloat16)

    def with_torch(**how: bool) -> Step:
        wide = [var.detach().float().requires_grad_() for var in own]
        optimizer = torch.optim.Adam(wide, lr=RATE, **how)

        def step() -> None:
            for each, var in zip(wide, own, strict=True):
                each.grad = var.grad.float()
            optimizer.step()
            with torch.no_grad():
                torch._foreach_copy_(own, wide)

        return step

    makers: Makers = {OWN: lambda: optim.Adam(own, lr=RATE, masters=True).step}
    for name, how in TORCHS.items():
        makers[name] = lambda how=how: with_torch(**how)
    makers["torch.compile"] = lambda: compiled(with_torch(foreach=True))
    return makers


def narrow(made: shapes.ShapeSet, device: str) -> Makers:
    """AdamW over bfloat16: what random bits, slots in 8 bits and split weights take."""
    own = variables(made, device, torch.bfloat16)
    ways: dict[str, dict[str, Any]] = {
        OWN: {},
        "stochastic": {"round": "stochastic"},
        "8bit": {"state_storage": "8bit"},
        "linear8": {"state_storage": "linear8"},
        "dynamic8": {"state_storage": "dynamic8"},
        "split": {"weights": "split"},
        "split, 8bit": {"weights": "split", "state_storage": "8bit"},
    }
    makers: Makers = {
        name: lambda how=how: optim.AdamW(own, lr=RATE, **how).step for name, how in ways.items()
    }
    for name, how in TORCHS.items():
        makers[name] = lambda how=how: torch.optim.AdamW(own, lr=RATE, **how).step
    if importlib.util.find_spec("bitsandbytes"):
        makers["bitsandbytes AdamW8bit"] = lambda: (
            importlib.import_module("bitsandbytes").optim.AdamW8bit(own, lr=RATE).step
        )
    return makers


def measuring(made: shapes.ShapeSet, device: str) -> Makers:
    """Rules that measure rows, columns or variables before an update, beside torch's Adafactor."""
    own = variables(made, device)
    return {
        OWN: lambda: optim.Adafactor(own, lr=RATE).step,
        "thalweg SM3": lambda: optim.SM3(own, lr=RATE).step,
        "thalweg LAMB": lambda: optim.LAMB(own, lr=RATE).step,
        "thalweg Prodigy": lambda: optim.Prodigy(own).step,
        "torch Adafactor": lambda: torch.optim.Adafactor(own, lr=RATE, foreach=True).step,
    }


def state_on_the_cpu(made: shapes.ShapeSet, device: str) -> Makers:
    """Adam over bfloat16, masters and slots on the CPU, beside DeepSpeed's."""
    own = variables(made, device, torch.bfloat16)

    def with_deepspeed() -> Step:
        kind = importlib.import_module("deepspeed.ops.adam").DeepSpeedCPUAdam
        wide = [var.detach().float().cpu().pin_memory().requires_grad_() for var in own]
        optimizer = kind(wide, lr=RATE, adamw_mode=False)

        def step() -> None:
            for each, var in zip(wide, own, strict=True):
                each.grad = var.grad.cpu().float()
            optimizer.step()
            with torch.no_grad():
                for each, var in zip(wide, own, strict=True):
                    var.copy_(each, non_blocking=True)

        return step

    makers: Makers = {OWN: lambda: optim.Adam(own, lr=RATE, masters=True, state_device="cpu").step}
    if importlib.util.find_spec("deepspeed"):
        makers[DEEPSPEED] = with_deepspeed
    return makers


def rows(device: str, height: int = ROWS, entries: int = ENTRIES) -> Makers:
    """A sparse gradient of 100,000 of a million rows: lazy Adam, beside torch's SparseAdam."""
    own = torch.randn(height, WIDTH, device=device, requires_grad=True)
    indices = torch.randint(height, (entries,), device=device)
    values = torch.randn(entries, WIDTH, device=device)
    own.grad = torch.sparse_coo_tensor(indices[None], values, own.shape, check_invariants=False)
    slices = thalweg.IndexedSlices(values, indices, (height, WIDTH))
    keras = Adam(RATE)
    return {
        OWN: lambda: optim.SparseAdam([own], lr=RATE).step,
        "thalweg.keras, all rows": lambda: lambda: keras.apply_gradients([(slices, own)]),
        "torch SparseAdam": lambda: torch.optim.SparseAdam([own], lr=RATE).step,
    }


def hidden(device: str) -> list[Tensor]:
    """The hidden matrices of GPT-2 small, with gradients."""
    sizes = [(2304, 768), (768, 768), (3072, 768), (768, 3072)] * 12
    return variables(shapes.of("hidden matrices", sizes), device)


def muon(device: str) -> Makers:
    """Muon of the hidden matrices, beside torch's and beside the products alone."""
    own = hidden(device)

    def products() -> Step:
        found: dict[tuple[int, int], int] = {}
        for each in own:
            size = (min(each.shape), max(each.shape))
            found[size] = found.get(size, 0) + 1
        made = [
            torch.randn(count, *size, device=device, dtype=torch.bfloat16) / size[1]
            for size, count in found.items()
        ]

        def multiply() -> None:
            for each in made:
                for _ in range(5):
                    square = each @ each.mT
                    mixed = torch.baddbmm(square, square, square, beta=-4.775, alpha=2.0315)
                    torch.baddbmm(each, mixed, each, beta=3.4445)

        return multiply

    return {
        OWN: lambda: optim.Muon(own, lr=RATE).step,
        "torch Muon": lambda: torch.optim.Muon(own, lr=RATE).step,
        "products alone": products,
    }


def tables(device: str) -> list[Callable[[], Table]]:
    """All that is measured; each is made when its turn comes."""

    def of_adam(made: shapes.ShapeSet, target: float) -> Table:
        # Adam reads variable, gradient and two slots, and writes all but the gradient.
        return Table(f"Adam, {made.name}", adam(made, device), 7 * made.bytes, target)

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
    """Milliseconds of a step on the GPU, and microseconds in which the host starts one."""
    for _ in range(WARM):
        step()
    own, host = [], []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began = perf_counter()
        begin.record()
        step()
        end.record()
        host.append(1e6 * (perf_counter() - began))
        end.synchronize()
        own.append(begin.elapsed_time(end))
    return median(own), median(host)


def counted(step: Step) -> tuple[float, int, int]:
    """Milliseconds of a step's kernels, how many they are, and how often the host waits in it."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        step()
    events = seen.events() or []
    launches = [
        each
        for each in events
        if each.device_type == torch.autograd.DeviceType.CUDA
        and not each.name.startswith("Optimizer.step#")  # a record of torch's, around the kernels
    ]
    waits = [each for each in events if each.name in ("cudaStreamSynchronize", "cudaMemcpy",
                                                      "cudaEventSynchronize")]  # fmt: skip
    busy = sum(each.self_device_time_total for each in launches) / 1e3
    return (busy, len(launches), len(waits)) if launches else (-1.0, -1, len(waits))


def measured(step: Step) -> Measured:
    """All that is measured of a step."""
    (milliseconds, host), (busy, launches, waits) = times(step), counted(step)
    return Measured(milliseconds, busy, host, launches, waits)


def bandwidth() -> float:
    """Bytes a second that a copy of 1 GiB reads and writes."""
    source = torch.empty(2**28, device="cuda")
    target = torch.empty_like(source)
    milliseconds, _ = times(lambda: target.copy_(source))
    return 2 * source.nbytes / (milliseconds / 1e3)


def lines(table: Table, found: dict[str, Measured], copied: float) -> list[str]:
    """What is printed of a table.

    Args:
        table: The table.
        found: What its steps took, by name.
        copied: Bytes a second that a copy reaches.
    """
    said = [table.title]
    for name, each in found.items():
        share = table.moved / (each.busy / 1e3) / copied
        note = f"{share:5.0%} of a copy's bandwidth" if table.moved else ""
        said.append(
            f"  {name:24} {each.milliseconds:9.3f} ms  busy {each.busy:8.3f}"
            f"  host {each.host:8.0f} us"
            f"  {each.launches:5} launches  {each.waits:3} waits  {note}".rstrip()
        )
    if table.target and OWN in found and table.beside in found:
        own, other = found[OWN], found[table.beside]
        ratio, whole = own.busy / other.busy, own.milliseconds / other.milliseconds
        verdict = "met" if ratio <= table.target else "MISSED"
        said.append(
            f"  busy {ratio:.2f} of {table.beside}, target at most {table.target}: {verdict};"
            f" from an idle start {whole:.2f}"
        )
    return said


def main(arguments: list[str] | None = None) -> int:
    """Measure what is asked for; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="tables whose titles contain this")
    parser.add_argument("--without", action="append", default=[], help="the name of a step")
    asked = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("benchmarks/gpu.py needs a GPU, and torch sees none.", file=sys.stderr)
        return 2
    # NVIDIA has a package of this file's name, which others import.
    own = str(Path(__file__).parent)
    sys.path = [each for each in sys.path if each != own]
    copied = bandwidth()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, thalweg"
          f" {thalweg.__version__}; a copy moves {copied / 1e9:.0f} GB/s")  # fmt: skip
    print("Target: 0.9 of a copy's bandwidth on big tensors.")
    for make in tables("cuda"):
        table, found = make(), {}
        if asked.only not in table.title:
            continue
        for name in [each for each in table.makers if each not in asked.without]:
            try:
                found[name] = measured(table.makers[name]())
            except Exception as error:
                print(f"  {name}: {type(error).__name__}: {error}")
            torch.cuda.empty_cache()
        print("\n" + "\n".join(lines(table, found, copied)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
