"""Rules that map TensorFlow's variables to parameters, and errors of rules that do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import thalweg
from tensorflow_files import RULES, Network, prefix_of
from thalweg import CheckpointMismatchError, InvalidConfigError, MissingFileError
from thalweg._formats.stored_tensor import of_tensor
from thalweg.checkpoint import tensorflow
from thalweg.checkpoint.tensorflow.detection.saver_names import sorted_names
from thalweg.checkpoint.tensorflow.mapping.mapped_tensors import TargetTensors
from thalweg.checkpoint.tensorflow.mapping.mapping_rules import AXES, Place, Rules, parse
from thalweg.v1 import train

ADAM = "ckpt_v1/adam"
TEXT = """
# TensorFlow's name     parameter         axes
layer*/kernel        -> layer*.weight     dense    # with a remark
conv*/kernel         -> conv*.weight      conv2d
block/**/scale       -> block.**.scale
deep/*/**/bias       -> net.*.**.bias
odd                  -> even              transpose 2 0 1
old_head/**          -> -
"""


@pytest.mark.parametrize(
    ("name", "target", "axes"),
    [
        ("layer1/kernel", "layer1.weight", (1, 0)),
        ("conv_12/kernel", "conv_12.weight", (3, 2, 0, 1)),
        ("block/a/b/c/scale", "block.a.b.c.scale", None),
        ("deep/one/two/three/bias", "net.one.two.three.bias", None),
        ("odd", "even", (2, 0, 1)),
    ],
)
def test_rules_map_in_both_directions(name: str, target: str, axes: tuple[int, ...] | None) -> None:
    rules = parse(TEXT)
    assert rules.place(name) == Place(target, axes)
    assert rules.name(target) == (name, axes)


def test_names_without_a_rule_are_unmapped() -> None:
    rules = parse(TEXT)
    assert rules.place("old_head/w/x") == Place(None)
    for name in (
        "layer1/bias",
        "a/layer1/kernel",
        "layer/kernel",
        "layer1/kernel/Adam",
        "old_head",
    ):
        assert rules.place(name) is None, name
    assert rules.name("layer1.bias") is None
    assert rules.name("-") is None


def test_first_matching_rule_is_used() -> None:
    rules = parse("a/b -> x\na/* -> y.*\n*/b -> z.*")
    assert [rules.place(name) for name in ("a/b", "a/c", "c/b")] == [
        Place("x"),
        Place("y.c"),
        Place("z.c"),
    ]
    # Backwards, too: y.b would be a/b, which is x.
    assert rules.name("y.b") is None
    assert rules.name("y.c") == ("a/c", None)


def test_names_are_not_patterns() -> None:
    rules = parse("a.b/(c)+ -> d[e]")
    assert rules.place("a.b/(c)+") == Place("d[e]")
    assert rules.place("axb/(c)+") is None
    assert rules.place("a.b/cc") is None


def test_targets_with_slashes_keep_them() -> None:
    rules = parse("net/**/w -> **/w")
    assert rules.place("net/a/b/w") == Place("a/b/w")
    assert rules.name("a/b/w") == ("net/a/b/w", None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("layer1/kernel layer1.weight", "has no '->'"),
        ("layer1/kernel ->", "'name -> parameter'"),
        ("-> layer1.weight", "'name -> parameter'"),
        ("layer*/kernel -> layer1.weight", "not the same '\\*'"),
        ("a/**/b -> a.*.b", "not the same '\\*'"),
        ("a -> b dens", "none of dense, conv1d, .* Did you mean 'dense'"),
        ("a -> b dense conv2d", "'dense conv2d' is none of"),
        ("a -> b transpose 0 2", "does not name each axis once"),
        ("a -> b transpose", "does not name each axis once"),
        ("a -> b transpose 1 1", "does not name each axis once"),
        ("a -> b transpose 1 -0", "none of"),
    ],
)
def test_invalid_rule_lines_raise(line: str, message: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"model.rules, line 2: .*{message}"):
        parse(f"# rules\n{line}\n", "model.rules")


def test_rules_come_from_files_dictionaries_and_functions(tmp_path: Path) -> None:
    path = tmp_path / "model.rules"
    path.write_text(TEXT)
    for source in (path, str(path)):
        rules = Rules.of(source)
        assert rules is not None
        assert rules.place("odd") == Place("even", (2, 0, 1))
    assert Rules.of({"odd": "even transpose 2 0 1"}).place("odd") == Place("even", (2, 0, 1))
    assert Rules.of(None) is None
    with pytest.raises(MissingFileError, match="no such rules file"):
        Rules.of(tmp_path / "none.rules")
    (tmp_path / "bad.rules").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidConfigError, match="UTF-8"):
        Rules.of(tmp_path / "bad.rules")
    with pytest.raises(InvalidConfigError, match="not int"):
        Rules.of(3)


def test_rule_function_returns_name_and_axes() -> None:
    def rule(name: str) -> Any:
        if name.endswith("kernel"):
            return name.replace("/kernel", ".weight"), "dense"
        return None if "old" in name else name.replace("/", ".")

    rules = Rules.of(rule)
    assert rules is not None
    assert rules.place("a/kernel") == Place("a.weight", (1, 0))
    assert rules.place("a/bias") == Place("a.bias")
    assert rules.place("old/bias") == Place(None)
    with pytest.raises(InvalidConfigError, match="in a file or a dictionary"):
        rules.name("a.bias")
    for value in (3, ("a", 1), ("a",), ("a", "sideways")):
        with pytest.raises(InvalidConfigError):
            Rules.of(lambda name, value=value: value).place("w")


@pytest.mark.parametrize("word", AXES)
def test_axis_orders_are_parsed(word: str) -> None:
    rank = len(AXES[word])
    layer = {2: torch.nn.Linear, 3: torch.nn.Conv1d, 4: torch.nn.Conv2d, 5: torch.nn.Conv3d}[rank]
    model = layer(2, 3, **({} if rank == 2 else {"kernel_size": tuple(range(4, 2 + rank))}))
    space = model.weight.shape[2:]
    kernel = torch.randn(*space, 2, 3)
    tensors = {"kernel": of_tensor(kernel), "bias": of_tensor(torch.ones(3))}
    file = sorted_names("m", {**tensors, "kernel/Momentum": of_tensor(kernel + 1)})
    rules = {"kernel": f"weight {word}", "bias": "bias"}
    opt = tensorflow.restore(file, model, rules, learning_rate=0.1, momentum=0.9)
    assert torch.equal(model.weight.detach().movedim((0, 1), (-1, -2)), kernel)
    assert torch.equal(opt.get_slot(model.weight, "momentum").movedim((0, 1), (-1, -2)), kernel + 1)


def _file(**shapes: tuple[int, ...]) -> tensorflow.TensorFlowCheckpoint:
    tensors = {name.replace("__", "/"): torch.ones(shape) for name, shape in shapes.items()}
    return sorted_names("m", {name: of_tensor(tensor) for name, tensor in tensors.items()})


def _filled(variables: Any) -> list[str]:
    targets = TargetTensors.of(variables).tensors
    return [name for name, tensor in targets.items() if tensor.detach().min() == 1]


def _zeros(**shapes: tuple[int, ...]) -> dict[str, thalweg.Variable]:
    return {
        name.replace("__", "/"): thalweg.Variable(torch.zeros(shape), name.replace("__", "/"))
        for name, shape in shapes.items()
    }


def test_variables_of_the_same_names_need_no_rules() -> None:
    targets = _zeros(net__kernel=(2, 3), net__bias=(3,))
    tensorflow.restore(_file(net__kernel=(2, 3), net__bias=(3,)), list(targets.values()))
    assert _filled(targets) == ["net/kernel", "net/bias"]


def test_names_that_end_alike_need_no_rules() -> None:
    targets = _zeros(bias=(3,), other__scale=(2,))
    tensorflow.restore(_file(net__bias=(3,), scale=(2,)), targets)
    assert _filled(targets) == ["bias", "other/scale"]


def test_torch_synonyms_match_names_with_equal_axes() -> None:
    model = torch.nn.Sequential()
    model.add_module("bn", torch.nn.BatchNorm1d(3))
    model.add_module("emb", torch.nn.Embedding(5, 2))
    file = _file(
        bn__gamma=(3,),
        bn__beta=(3,),
        bn__moving_mean=(3,),
        bn__moving_variance=(3,),
        emb__embeddings=(5, 2),
    )
    assert tensorflow.restore(file, model) is None
    assert set(_filled(model)) == {
        "bn.weight",
        "bn.bias",
        "bn.running_mean",
        "bn.running_var",
        "emb.weight",
    }


def _differences(*arguments: Any, **options: Any) -> str:
    with pytest.raises(CheckpointMismatchError) as error:
        tensorflow.restore(*arguments, **options)
    assert str(error.value).endswith("Nothing was loaded.")
    return str(error.value)


def test_square_kernel_needs_an_explicit_rule() -> None:
    model = torch.nn.Linear(3, 3)
    initial = model.weight.detach().clone()
    message = _differences(_file(kernel=(3, 3), bias=(3,)), model)
    assert "if it is 'weight', a rule has to say so: its axes are in another order" in message
    assert torch.equal(model.weight, initial)
    assert not (model.bias == 1).all()


def test_ambiguous_names_raise() -> None:
    message = _differences(_file(bias=(3,)), _zeros(a__bias=(3,), b__bias=(3,)))
    assert "'bias' belongs to nothing here" in message
    assert "'a/bias' is given nothing; the nearest is 'bias'" in message


def test_rule_with_transposed_axes_raises_with_them() -> None:
    rules = {"*/kernel": "*.weight", "*/bias": "*.bias"}
    message = _differences(prefix_of(ADAM), Network(), rules, learning_rate=0.1)
    assert (
        "'layer1/kernel' is float32 of shape (4, 6), and 'layer1.weight' is float32 of shape"
        " (6, 4) (the rule 'layer1/kernel -> layer1.weight dense' turns its axes)" in message
    )


MISTAKES: list[tuple[dict[str, str], list[str]]] = [
    (
        {"*/kernel": "*.wieght dense", "*/bias": "*.bias"},
        ["there is no 'layer1.wieght' for 'layer1/kernel'; the nearest is 'layer1.weight'"],
    ),
    (
        {"*/kernel": "*.weight dense", "*/bais": "*.bias"},
        [
            "'layer1/bias' belongs to nothing here; the nearest is 'layer1.bias'",
            "'layer1.bias' is given nothing; the nearest is 'layer1/bias'",
            "the rule '*/bais -> *.bias' is for nothing",
        ],
    ),
    (
        {"*/kernel": "*.weight conv2d", "*/bias": "*.bias"},
        ["'layer1/kernel' has 2 axes, not those of transpose 3 2 0 1"],
    ),
    (
        {"*/kernel": "*.weight dense", "layer1/bias": "layer1.bias", "layer2/bias": "layer1.bias"},
        ["'layer1.bias' is given 2 variables", "'layer2.bias' is given nothing"],
    ),
    (
        {"*/kernel": "*.weight dense", "layer1/bias": "layer1.bias", "layer2/*": "-"},
        ["'layer2.bias' is given nothing"],
    ),
]


@pytest.mark.parametrize(("rules", "messages"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes_in_rules_are_listed_and_nothing_changes(
    rules: dict[str, str], messages: list[str]
) -> None:
    model, step = Network(), thalweg.Variable(torch.tensor(7), "step", trainable=False)
    opt = train.AdamOptimizer(0.1, 0.8, 0.99)
    initial = {name: param.detach().clone() for name, param in model.named_parameters()}
    message = _differences(prefix_of(ADAM), model, rules, optimizer=opt, global_step=step)
    for part in messages:
        assert part in message
    assert all(torch.equal(initial[name], param) for name, param in model.named_parameters())
    assert step.item() == 7
    assert opt.variables() == []


@pytest.mark.parametrize("rules", [{"dec/**": "-"}, {"other/**": "-", "dec/**": "-"}], ids=len)
def test_equal_names_without_a_rule_raise_if_rules_are_given(rules: dict[str, str]) -> None:
    file, targets = _file(w=(2,), v=(3,), **{"dec/w": (4,)}), _zeros(w=(2,), v=(3,))
    message = _differences(file, targets, rules)
    assert message.startswith("m: no rule is for 'w': give 'w -> w', too; no rule is for 'v'")
    assert "nearest" not in message
    assert message.count("'w'") == 1
    tensorflow.restore(file, targets, {**rules, "w": "w", "v": "v"})
    assert all(bool((var.detach() == 1).all()) for var in targets.values())


def test_ten_differences_are_listed() -> None:
    shapes = {f"v{index}": (1,) for index in range(30)}
    message = _differences(_file(**shapes), _zeros(other=(1,)))
    assert message.count("belongs to nothing here") == 10
    assert "and 21 more" in message


def test_dtypes_have_to_be_the_same() -> None:
    message = _differences(_file(w=(2,)), {"w": thalweg.Variable(torch.zeros(2).double(), "w")})
    assert "'w' is float32 of shape (2,), and 'w' is float64 of shape (2,)" in message


def test_excluded_variables_stay_out_with_their_slots() -> None:
    rules = {"layer2/*": "-", **RULES}
    model = torch.nn.ModuleDict({"layer1": torch.nn.Linear(4, 6)})
    opt = tensorflow.restore(prefix_of(ADAM), model, rules, learning_rate=0.1)
    assert len(opt.variables()) == 4 + 2


def test_a_module_gives_its_parameters_their_names() -> None:
    model = Network()
    tensorflow.restore(prefix_of(ADAM), model, RULES, learning_rate=0.1)
    assert thalweg.name_of(model.layer1.weight) == "layer1.weight:0"
    network = Network()
    thalweg.named_variables([("mine", network.layer1.weight)])
    tensorflow.restore(prefix_of(ADAM), network, RULES, learning_rate=0.1)
    assert thalweg.name_of(network.layer1.weight) == "mine:0"


def test_unnamed_variables_raise() -> None:
    targets = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    with pytest.raises(thalweg.InvalidArgumentError, match="2 variables are called 'Variable'"):
        tensorflow.restore(_file(a=(2,), b=(2,)), targets)
    tensorflow.restore(_file(a=(2,), b=(2,)), dict(zip("ab", targets, strict=True)))
    assert all((var == 1).all() for var in targets)


def test_object_checkpoints_are_found_by_path_and_by_name() -> None:
    prefix = prefix_of("ckpt_v2/adam")
    by_path = {
        "model/layer_with_weights-0/kernel": "layer1.weight dense",
        "model/layer_with_weights-1/kernel": "layer2.weight dense",
        "model/layer_with_weights-0/bias": "layer1.bias",
        "model/layer_with_weights-1/bias": "layer2.bias",
    }
    first, second = Network(), Network()
    tensorflow.restore(prefix, first, by_path)
    tensorflow.restore(prefix, second, RULES)
    for first_param, second_param in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(first_param, second_param)


def test_invalid_arguments_of_restore_raise() -> None:
    with pytest.raises(thalweg.InvalidTypeError, match="optimizer must be an optimizer"):
        tensorflow.restore(prefix_of(ADAM), Network(), RULES, optimizer=3)
    optimizer = train.AdamOptimizer(0.1, 0.8, 0.99)
    with pytest.raises(thalweg.InvalidArgumentError, match="one was given"):
        tensorflow.restore(prefix_of(ADAM), Network(), RULES, optimizer, learning_rate=0.2)
    with pytest.raises(thalweg.errors.OptionError, match=r"no 'learning_rat'\. Did you mean"):
        tensorflow.restore(prefix_of(ADAM), Network(), RULES, learning_rat=0.2)
    step = thalweg.Variable(torch.tensor(7), "step", trainable=False)
    with pytest.raises(CheckpointMismatchError, match="no count of steps"):
        tensorflow.restore(_file(w=(2,)), _zeros(w=(2,)), global_step=step)


def test_steps_count_in_the_dtype_of_their_variable() -> None:
    step = thalweg.Variable(torch.tensor(7, dtype=torch.int32), "step", trainable=False)
    tensorflow.restore(prefix_of(ADAM), Network(), RULES, global_step=step, learning_rate=0.1)
    assert step.item() == 5
    steps = thalweg.Variable(torch.tensor(7), "step", trainable=False)
    tensorflow.restore(prefix_of("ckpt_v2/adam"), Network(), RULES, global_step=steps)
    assert steps.item() == 5
