"""`thalweg inspect`, `verify`, `diff` and `convert`: checkpoints."""

from __future__ import annotations

import glob
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from inspect import signature
from typing import Any, cast

import click
from rich import box
from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from thalweg._cli.console import make_console
from thalweg._cli.log_progress import ProgressLines
from thalweg._cli.registry import named, spelled
from thalweg._cli.terminal_escape import escape_text
from thalweg._formats.json_text import as_object
from thalweg._formats.path_resolution import locate_checkpoint
from thalweg.checkpoint.inspection import (
    Listing,
    differences,
    format_arguments,
    format_groups,
    has_checksums,
    in_words,
    list_file,
    list_verified,
)
from thalweg.checkpoint.optimizer_files import is_package_file
from thalweg.checkpoint.package_conversion import convert_file
from thalweg.checkpoint.tensorflow import convert as convert_checkpoint
from thalweg.checkpoint.tensorflow.convert import convert_with_reasons
from thalweg.errors import ThalwegError

Progress = Callable[[int, int], None]
# Bytes above which progress is shown: a slow disk takes seconds to read them.
LARGE = 1 << 28
DIFFER = 1
# Parameters of the functions that are not hyperparameters, so that --set refuses their names.
_NOT_HYPERS = {*signature(convert_checkpoint).parameters, *signature(convert_file).parameters}
_READERS = {"thalweg": "checkpoint.restore", "tf": "tf.train.Checkpoint", "tf1": "tf.train.Saver"}
_OF_GROUP = re.compile(r" of group [0-9]+\Z|\Athe number of groups\Z")


@click.command(name="inspect")
@click.argument("path", type=click.Path())
@click.option("--tree", is_flag=True, help="Show the names as a tree.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def inspect_(path: str, tree: bool, as_json: bool) -> None:
    """List the tensors and hyperparameters of the checkpoint PATH.

    PATH is a file of thalweg, Keras or torch.save, a folder of DeepSpeed, or the prefix of a
    TensorFlow checkpoint: run7/model.ckpt-5. No code in a file is executed.

    \b
    Examples:
      thalweg inspect run7/checkpoint-12.safetensors
      thalweg inspect --tree model.ckpt-5
      thalweg inspect --json weights.h5
    """
    with _watch_progress(path) as progress:
        listing = list_file(path, progress)
    if as_json:
        click.echo(_as_json(listing))
        return
    console = make_console()
    for line in _print_summary(listing):
        console.print(escape_text(line), markup=False, highlight=False, soft_wrap=True)
    console.print(_print_tree(listing) if tree else _print_table(listing))


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def verify(paths: tuple[str, ...], as_json: bool) -> None:
    """Read each checkpoint of PATHS and compare every tensor with its checksum.

    HDF5 files (.h5) have no checksums; the command only reads them. The exit status is 1 if a
    file is damaged.

    \b
    Examples:
      thalweg verify run7/checkpoint-12.safetensors
      thalweg verify run7/*.safetensors
      thalweg verify --json run7/checkpoint-12.safetensors
    """
    reports: list[dict[str, object]] = []
    for path in paths:
        try:
            with _watch_progress(path) as progress:
                listing = list_verified(path, progress)
        except ThalwegError as error:
            if len(paths) == 1 and not as_json:
                raise
            message = " ".join(str(error).split())
            reports.append({"path": path, "state": "failed", "error": message})
            if not as_json:
                click.echo(escape_text(message), err=True)
        else:
            state = "verified" if has_checksums(path) else "readable"
            size = {"tensors": len(listing.tensors), "bytes": listing.bytes}
            reports.append({"path": path, "state": state, **size})
            description = state if state == "verified" else f"{state}; HDF5 holds no checksums"
            if as_json:
                continue
            click.echo(
                f"{escape_text(path)}: {len(listing.tensors)} tensors,"
                f" {_format_size(listing.bytes)}, {description}"
            )
    if as_json:
        click.echo(json.dumps(reports, indent=2))
    sys.exit(int(any(report["state"] == "failed" for report in reports)))


@click.command()
@click.argument("first_path", metavar="ONE", type=click.Path())
@click.argument("second_path", metavar="OTHER", type=click.Path())
@click.option("--rules", metavar="FILE", help="The mapping rules given to `thalweg convert`.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def diff(first_path: str, second_path: str, rules: str | None, as_json: bool) -> None:
    """Compare the tensors of ONE and OTHER to the bit; the formats of the files may differ.

    A file of thalweg is compared with one of TensorFlow or Keras as `thalweg convert` maps them;
    a converted file records the mapping rules it was given. The exit status is 1 if they differ.

    \b
    Examples:
      thalweg diff run7/checkpoint-11.safetensors run7/checkpoint-12.safetensors
      thalweg diff model.ckpt-5 converted.safetensors
    """
    with ExitStack() as stack:
        lines = differences(
            first_path,
            second_path,
            rules,
            lambda path: stack.enter_context(_watch_progress(os.fspath(path))),
        )
    if as_json:
        click.echo(
            json.dumps({"one": first_path, "other": second_path, "differences": lines}, indent=2)
        )
    elif not lines:
        click.echo("All tensors are equal, to the bit.")
    for line in [] if as_json else lines:
        click.echo(escape_text(line))
    sys.exit(DIFFER if lines else 0)


@click.command()
@click.argument("path", type=click.Path())
@click.argument("out", type=click.Path())
@click.option(
    "--to", type=click.Choice(["thalweg", "tf", "tf1"]), default="thalweg",
    help="The reader of OUT: tf.train.Checkpoint or tf.train.Saver.",
)  # fmt: skip
@click.option("--rules", metavar="FILE", help="Lines `pattern -> name [axes]`, one per variable.")
@click.option(
    "--optimizer", metavar="NAME", help="The class of the optimizer, if the file does not name it."
)
@click.option(
    "--which", type=int, metavar="NUMBER", help="The number of the optimizer, if it is not alone."
)
@click.option(
    "--set", "hypers", multiple=True, metavar="NAME=VALUE",
    help="A hyperparameter that the file does not contain, such as learning_rate=0.01.",
)  # fmt: skip
@click.option(
    "--allow-loss", is_flag=True, help="Leave out parts of other packages that thalweg lacks."
)
@click.option("--force", is_flag=True, help="Overwrite OUT if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
def convert(
    path: str, out: str, to: str, rules: str | None, optimizer: str | None, which: int | None,
    hypers: tuple[str, ...], allow_loss: bool, force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Convert the checkpoint PATH and write it to OUT.

    PATH is a checkpoint of TensorFlow or Keras, and `thalweg.checkpoint.restore` continues from
    OUT; with --to, PATH is a file of thalweg. `thalweg rules` lists the names for --optimizer.

    PATH may also be the state dict of an optimizer of bitsandbytes, torchao, schedulefree,
    prodigyopt, timm or others in a file of torch.save, or a folder of DeepSpeed. Then
    `thalweg.checkpoint.read_state` reads OUT, and the command prints what is exact, rounded or
    lost. If nothing can be converted, no file is written, and the exit status is 1.

    \b
    Examples:
      thalweg convert model.ckpt-5 model.safetensors --set learning_rate=0.01
      thalweg convert model.ckpt-5 new.safetensors --rules names.txt \\
          --optimizer v1:AdamOptimizer --set learning_rate=0.01
      thalweg convert --to tf run7/checkpoint-12.safetensors back.ckpt
      thalweg convert optimizer.pt optimizer.safetensors
    """
    existing = [file for file in (out, f"{out}.index") if os.path.lexists(file)]
    if existing and not force:
        raise click.ClickException(f"{existing[0]} is there: give another OUT, or --force.")
    arguments: dict[str, Any] = dict(map(_parse_number, hypers))
    reasons: dict[str, str] = {}
    reader = _READERS[to]
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        try:
            if is_package_file(path):
                if (to, rules, which) != ("thalweg", None, None):
                    raise click.ClickException(
                        f"{path} is a file of torch.save or DeepSpeed, to which --to, --rules and"
                        " --which do not apply: TensorFlow has no torch-style optimizers."
                    )
                name = None if optimizer is None else optimizer.removeprefix("optim:")
                report = convert_file(path, out, name, allow_loss, **arguments)
                reader = "checkpoint.read_state"
            else:
                cls = None if optimizer is None else named(spelled(optimizer, "optimizer")).cls
                arguments |= {"optimizer": cls, "which": which}
                with _watch_progress(path) as progress:
                    reasons = convert_with_reasons(path, out, rules, to, progress, **arguments)
                thalweg_file = out if to == "thalweg" else path
                report = [_describe_converted(list_file(thalweg_file).document, reasons)]
        except ThalwegError as error:
            raise click.ClickException(_with_options(str(error))) from error
    report += [f"note: {note.message}" for note in notes]
    # A bundle by its index, because OUT may name another file, too.
    listing = list_file(out if to == "thalweg" else f"{out}.index")
    _print_converted(listing, reader, report, reasons, as_json)


def _print_converted(
    listing: Listing, reader: str, report: list[str], reasons: Mapping[str, str], as_json: bool
) -> None:
    """Print the converted file, its reader, the report and omitted names, as text or as JSON."""
    if as_json:
        outcome = {"left_out": list(reasons), "reasons": reasons, "report": report}
        click.echo(_as_json(listing, **outcome))
        return
    size = f"{len(listing.tensors)} tensors, {_format_size(listing.bytes)}"
    files = " (.index, .data-00000-of-00001)" if listing.kind == "tensorflow" else ""
    lines = [*report, f"wrote {listing.path}{files} for {reader}: {size}"]
    lines += [f"left out: {name!r}: {_with_options(why)}" for name, why in reasons.items()]
    click.echo("\n".join(map(escape_text, lines)))


def _describe_converted(document: Mapping[str, Any], reasons: Mapping[str, str]) -> str:
    """Describe the converted part of a thalweg file: the number of variables and the optimizer."""
    optimizer = as_object(document.get("optimizer")).get("class")
    count = len(as_object(document.get("variables")))
    end = f"optimizer {optimizer}" if optimizer and "optimizer" not in reasons else "no optimizer"
    return f"converted: {count} variable{'s' * (count != 1)}, {end}"


def _with_options(message: str) -> str:
    """Replace Python arguments in an error message by options of this command."""

    def options(match: re.Match[str]) -> str:
        names: list[str] = re.findall(r"(\w+)=", match[1])
        return " ".join("--optimizer NAME" if n == "optimizer" else f"--set {n}=..." for n in names)

    message = message.replace("allow_loss=True", "--allow-loss")
    message = re.sub(r'to="(\w+)"', r"--to \1", message)
    message = re.sub(r"restore\(\.\.\., (\w+=[^()]*)\)", options, message)
    return message.replace("Give which=...:", "Give --which NUMBER:")


def _parse_number(text: str) -> tuple[str, float | bool]:
    name, equals, number = text.partition("=")
    if name in _NOT_HYPERS:
        raise click.UsageError(f"--set is for hyperparameters, and '{name}' is not one.")
    flags = {"true": True, "false": False}
    if name and number.lower() in flags:
        return name, flags[number.lower()]
    try:
        if not (name and equals):
            raise ValueError
        return name, float(number)
    except ValueError:
        raise click.UsageError(
            f"--set takes NAME=VALUE, such as learning_rate=0.01 or centered=true; not '{text}'."
        ) from None


@contextmanager
def _watch_progress(path: str) -> Generator[Progress | None]:
    """Yield `progress(bytes_read, total)`, which shows a bar; yield None for small files."""
    if _bytes_of(path) < LARGE:
        yield None
        return
    console, name = make_console(stderr=True), escape_text(os.path.basename(path))
    if not console.is_terminal:
        lines = ProgressLines()
        yield lambda done, total: lines.show(
            done / max(total, 1), lambda: f"{name}: {_format_size(done)} of {_format_size(total)}"
        )
        return

    label = TextColumn("{task.description}", markup=False)
    columns: tuple[Any, ...] = (label, BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        # The name alone, because a long path would leave no space for the bar.
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _bytes_of(path: str) -> int:
    """Return the total size of the files of a checkpoint."""
    base = locate_checkpoint(path).path
    files = [base, *glob.glob(f"{glob.escape(base)}.data-*")]
    return sum(os.path.getsize(file) for file in files if os.path.isfile(file))


def _as_json(listing: Listing, **outcome: object) -> str:
    document = {
        "path": listing.path,
        "kind": listing.kind,
        "bytes": listing.bytes,
        "optimizer": listing.document.get("optimizer"),
        "param_groups": listing.document.get("param_groups"),
        "step": listing.document.get("step"),
        "metrics": listing.document.get("metrics", {}),
        "tensors": [asdict(tensor) for tensor in listing.tensors],
        **outcome,
    }
    # Options of groups may be tensors or other objects.
    return json.dumps(document, indent=2, default=lambda x: getattr(x, "tolist", x.__str__)())


def _print_summary(listing: Listing) -> Iterator[str]:
    kinds = {"thalweg": "thalweg", "tensorflow": "TensorFlow", "keras": "Keras", "torch": "torch"}
    count = len(listing.tensors)
    yield f"{listing.path}: {kinds[listing.kind]}, {count} tensors, {_format_size(listing.bytes)}"
    yield from listing.optimizers
    optimizer = None if listing.optimizers else listing.document.get("optimizer")
    if isinstance(optimizer, dict):
        facts = cast("dict[str, Any]", optimizer)
        arguments = as_object(facts.get("arguments")).items()
        # Options of groups are in the lines of the groups.
        hypers = format_arguments({name: x for name, x in arguments if not _OF_GROUP.search(name)})
        yield f"optimizer: {facts.get('class')}" + (f" ({hypers})" if hypers else "")
    yield from format_groups(listing.document.get("param_groups", []))
    if listing.document.get("step") is not None and not listing.optimizers:
        yield f"step: {listing.document['step']}"
    for name, value in as_object(listing.document.get("metrics")).items():
        yield f"{name}: {in_words(value)}"


def _print_table(listing: Listing) -> Any:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("tensor", overflow="fold")
    table.add_column("dtype")
    table.add_column("shape")
    table.add_column("size", justify="right")
    for tensor in listing.tensors:
        shape = " x ".join(map(str, tensor.shape)) or "()"
        name, dtype = (Text(escape_text(text)) for text in (tensor.name, tensor.dtype))
        table.add_row(name, dtype, shape, _format_size(tensor.bytes))
    return table


def _print_tree(listing: Listing) -> object:
    root = Tree(Text(escape_text(listing.path)))
    branches: dict[tuple[str, ...], Tree] = {(): root}
    for tensor in listing.tensors:
        pieces = tuple(tensor.name.split("/"))
        for depth in range(1, len(pieces)):
            if pieces[:depth] not in branches:
                parent = branches[pieces[: depth - 1]]
                branches[pieces[:depth]] = parent.add(Text(escape_text(pieces[depth - 1])))
        shape = " x ".join(map(str, tensor.shape)) or "()"
        branches[pieces[:-1]].add(Text(escape_text(f"{pieces[-1]}  {tensor.dtype} {shape}")))
    return root


def _format_size(count: int) -> str:
    size, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} B" if unit == "B" else f"{size:.3g} {unit}"
