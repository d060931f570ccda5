"""TensorFlow's names on torch's classes: added on request, and removed again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fresh_process
import thalweg
import thalweg.v1 as v1
from lending_cases import STEPS, attributes, changed
from thalweg import lend_names, take_back_names
from thalweg.keras.optimizers import SGD

CASES = Path(__file__).parent / "lending_cases.py"


@pytest.fixture(autouse=True)
def as_torch_has_them() -> Iterator[list[dict[str, Any]]]:
    """Yield the attributes of the classes without any of the library's names."""
    with take_back_names():
        initial = attributes()
        yield initial
        take_back_names()
        assert not changed(initial)


def parameter() -> Any:
    param = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    thalweg.named_variables([("w", param)])
    return param


def has_names() -> bool:
    return hasattr(torch.float32, "base_dtype") and hasattr(torch.zeros(1).shape, "as_list")


def test_front_ends_do_not_patch_torch_classes() -> None:
    process = fresh_process.run(CASES, *STEPS)
    assert (process.returncode, process.stdout.strip()) == (0, ""), process.stderr


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "statement",
    [
        "import thalweg.tf",
        "from thalweg.tf.keras import optimizers",
        "import thalweg; thalweg.install_as_tensorflow()",
        "import thalweg; thalweg.lend_names()",
        "from thalweg import v1\nwith v1.Graph().as_default(): pass",
        "from thalweg import v1; v1.disable_eager_execution()",
    ],
)
def test_statements_that_add_names(statement: str) -> None:
    code = f"{statement}\nimport torch; raise SystemExit(not hasattr(torch.float32, 'base_dtype'))"
    process = fresh_process.run(code)
    assert process.returncode == 0, process.stderr


def test_names_are_there_for_a_block(as_torch_has_them: Any) -> None:
    param = parameter()
    assert param.name is None
    assert param.dtype not in {getattr(param.dtype, "base_dtype", None)}
    with lend_names():
        assert (param.name, param.handle is param, param.get_shape().as_list()) == (
            "w:0",
            True,
            [2],
        )
        assert param.dtype.base_dtype is torch.float32
        assert param.assign_sub([1.0, 1.0]).tolist() == [0.0, 1.0]
        assert len(changed(as_torch_has_them)) > 50
    assert param.name is None
    assert not hasattr(param, "handle")
    assert not hasattr(param.shape, "as_list")
    assert param.scatter_add(0, torch.tensor([0]), torch.ones(1)).tolist() == [1.0, 1.0]
    assert not changed(as_torch_has_them)


def test_lending_blocks_can_be_nested(as_torch_has_them: Any) -> None:
    with lend_names():
        with lend_names():
            assert has_names()
        assert has_names()
        with take_back_names():
            assert not changed(as_torch_has_them)
            with lend_names():
                assert has_names()
            assert not has_names()
        assert has_names()
    assert not has_names()


def test_lent_names_stay_until_the_outermost_end() -> None:
    first, second = lend_names(), lend_names()
    first.close()
    assert has_names()
    second.close()
    assert not has_names()
    lend_names()
    take_back_names()
    assert not has_names()


def test_lent_names_are_gone_after_the_end() -> None:
    first = lend_names()
    with take_back_names():
        first.close()
    assert not has_names()


def test_an_error_ends_a_block() -> None:
    with pytest.raises(OSError), lend_names():  # noqa: PT011
        raise OSError
    assert not has_names()


def test_replaced_attributes_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.Parameter, "name", "mine", raising=False)
    monkeypatch.setattr(torch.nn.Parameter, "handle", "theirs", raising=False)
    with lend_names():
        assert parameter().name == "w:0"
        assert parameter().handle == "theirs"
    assert (parameter().name, parameter().handle) == ("mine", "theirs")


def test_replacements_by_others_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with lend_names():
        monkeypatch.setattr(torch.Tensor, "set_shape", "theirs", raising=False)
    assert torch.zeros(1).set_shape == "theirs"  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.undo()
    if "set_shape" in vars(torch.Tensor):
        del torch.Tensor.set_shape  # pyright: ignore[reportAttributeAccessIssue]


def test_threads_lend_and_end(threads_change_often: None) -> None:
    missing: list[Any] = []

    def work() -> None:
        for _ in range(100):
            with lend_names():
                if not has_names() or torch.zeros(2).get_shape() != (2,):  # pyright: ignore
                    missing.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not missing
    assert not has_names()


class Written(SGD):
    """Subclass in the form of TensorFlow's users."""

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
        rate = self._get_hyper("learning_rate", var.dtype.base_dtype)
        return var.assign_sub(rate * grad)


@pytest.mark.parametrize("variable", [parameter, lambda: thalweg.Variable([1.0, 2.0], name="w")])
def test_tensorflow_subclasses_lend_names(variable: Any) -> None:
    opt, w = Written(0.5), variable()
    with pytest.raises(AttributeError, match="base_dtype") as error:
        opt.apply_gradients([([1.0, 1.0], w)])
    assert "thalweg.lend_names() gives" in error.value.__notes__[-1]
    with lend_names():
        opt.apply_gradients([([1.0, 1.0], w)])
    assert w.tolist() == [0.5, 1.5]


def test_variables_have_names_without_lending() -> None:
    var: Any = thalweg.Variable([[1.0], [2.0]], name="w")
    assert (var.name, var.op.name, var.handle is var, var.get_shape()) == ("w:0", "w", True, (2, 1))
    assert {var.ref(): 1}[var.ref()] == 1
    assert var.scatter_sub(thalweg.IndexedSlices([[1.0]], [0])).tolist() == [[0.0], [2.0]]


def test_unused_graph_lends_no_names() -> None:
    graph = v1.Graph()
    assert not has_names()
    with graph.as_default():
        assert has_names()
    assert has_names()
