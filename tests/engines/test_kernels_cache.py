"""Formulas become kernels on disk: an edited one is never stale, a forbidden one is refused."""

from __future__ import annotations

import dis
import importlib
import marshal
import os
import stat
import struct
import sys
from contextlib import ExitStack
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path

import numpy as np
import pytest
import torch

import fresh_process
from kernels import forget, made
from rulebook import KEEP, Problem, take, update_case
from thalweg import PerformanceWarning, Rule, RuleError
from thalweg._engines.cpu import codegen, codegen_measure, guard_table, machine_code

HEADER = "from thalweg import Rule, Slot, Hyper, sqrt, where, power\n"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a module into a folder on the path; returns it imported, or imported again."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names = set()

    def writer(name, text):
        (tmp_path / f"{name}.py").write_text(HEADER + text)
        importlib.invalidate_caches()
        names.add(name)
        if name in sys.modules:
            return importlib.reload(sys.modules[name])
        return importlib.import_module(name)

    yield writer
    for name in names:
        sys.modules.pop(name, None)


def step(update, name="cpu", **keywords):
    """Return variable 1 after one step with gradient 2, equal on both engines."""
    results = []
    for engine in ("cpu", "reference"):
        var = torch.ones(3)
        case = update_case(update, **keywords)
        take(case, Problem([var], [[]], [torch.full((3,), 2.0)]), KEEP._replace(name=engine))
        results.append(var[0].item())
    np.testing.assert_equal(*results)
    return results[0]


def formula(expression, prefix=""):
    return f"{prefix}\ndef update(var, grad):\n    return ({expression},)\n"


# Edits

EDITS = {
    "a literal": ("var - grad * 0.5", "var - grad * 0.25", ""),
    "an operator": ("var - grad", "var + grad", ""),
    "a name": ("var * grad", "grad * grad", ""),
    "a function": ("sqrt(grad * grad)", "power(grad, 3)", ""),
}


@pytest.mark.parametrize(("first", "second", "prefix"), EDITS.values(), ids=EDITS)
def test_an_edited_formula_is_run_as_edited(write, first, second, prefix):
    values = {"var": 1.0, "grad": 2.0, "sqrt": np.sqrt, "power": pow}
    for index, expression in enumerate((first, second, first)):
        module = write("edited", formula(expression, prefix + "#" * index))
        assert step(module.update) == eval(expression, dict(values))


def test_an_edited_helper_is_run_as_edited(write):
    helper = "def helper(x):\n    return inner(x) + 1\n"
    for index, factor in enumerate((3.0, 5.0)):
        inner = f"def inner(x):\n    return x * {factor}\n" + "#" * index
        module = write("helped", formula("var + helper(grad)", inner + "\n" + helper))
        assert step(module.update) == 1 + (2 * factor + 1)


def test_an_edited_constant_is_run_as_edited(write):
    for index, code in enumerate((3.0, 5, -0.5)):
        prefix = f"RATE = {code}\n" + "#" * index
        assert step(write("constants", formula("var + grad * RATE", prefix)).update) == (
            1 + 2 * code
        )


def test_a_new_process_sees_the_edit(tmp_path):
    script = tmp_path / "script.py"
    suffix = (
        "import torch\nfrom thalweg import Variable\n"
        "from thalweg.keras.optimizers import RuleOptimizer\n"
        "w = Variable([1.0])\nrule = Rule(name='mine', update=update, hypers=())\n"
        "RuleOptimizer(rule).apply_gradients([([2.0], w)])\nimport sys\n"
        "sys.stdout.write(str(float(w.detach()[0])))\n"
    )
    outputs = []
    for code in (0.25, 0.75):
        script.write_text(HEADER + formula(f"var - grad * {code}") + suffix)
        outputs.append(run_python(script))
    assert outputs == ["0.5", "-0.5"]


def run_python(program, **environment):
    process = fresh_process.run(program, **environment)
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_source_changed_after_the_import_raises(write, tmp_path):
    module = write("moved", formula("var - grad * 0.5"))
    (tmp_path / "moved.py").write_text(HEADER + formula("var - grad * 0.125"))
    with pytest.raises(RuleError, match=r"source of update .*moved\.py:3.* changed after it was"):
        step(module.update)


def test_closure_changed_after_the_import_raises(write, tmp_path):
    text = "def make(k):\n    def update(var, grad):\n        return (var - grad * k * {},)\n"
    text += "    return update\n"
    module = write("closed", text.format(2.0))
    (tmp_path / "closed.py").write_text(HEADER + text.format(4.0))
    with pytest.raises(RuleError, match="changed after it was imported"):
        step(module.make(0.5))


def test_exchanged_parameters_are_a_change(write, tmp_path):
    text = "def update(var, grad, *, a, b):\n    return (var * a - grad * b,)\n"
    module = write("exchanged", text)
    (tmp_path / "exchanged.py").write_text(HEADER + text.replace("*, a, b", "*, b, a"))
    with pytest.raises(RuleError, match="changed after it was imported"):
        step(module.update)


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """A module whose bytecode on disk is of another release: the same text, other instructions."""
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "cached.py"
    path.write_text(HEADER + formula("var - grad * 0.5"))
    module = compile(path.read_text(), str(path), "exec", dont_inherit=True)
    nop = bytes([dis.opmap["NOP"], 0])
    consts = tuple(
        code.replace(co_code=code.co_code + nop) if getattr(code, "co_name", "") == "update"
        else code for code in module.co_consts
    )  # fmt: skip
    assert consts != module.co_consts
    status = path.stat()
    header = MAGIC_NUMBER + struct.pack("<III", 0, int(status.st_mtime), status.st_size)
    bytecode = Path(cache_from_source(str(path)))
    bytecode.parent.mkdir()
    bytecode.write_bytes(header + marshal.dumps(module.replace(co_consts=consts)))
    importlib.invalidate_caches()
    yield path, importlib.import_module("cached")
    del sys.modules["cached"]


def test_bytecode_of_another_release_is_no_change(cached):
    _, module = cached
    assert module.update.__code__.co_code.endswith(bytes([dis.opmap["NOP"], 0]))
    step(module.update)


def test_bytecode_of_another_release_is_checked_by_source(cached):
    path, module = cached
    path.write_text(HEADER + formula("var - grad * 0.125"))
    with pytest.raises(RuleError, match="changed after it was imported"):
        step(module.update)


def test_damaged_bytecode_is_ignored(cached):
    path, module = cached
    bytecode = Path(cache_from_source(str(path)))
    for length in (3, 16, 40):
        bytecode.write_bytes(bytecode.read_bytes()[:length])
        with pytest.raises(RuleError, match="changed after it was imported"):
            step(module.update)


# Formulas that look alike


def closure(code):
    def update(var, grad):
        return (var - grad * code,)

    return update


def test_closures_with_equal_source_are_different_kernels():
    assert [step(closure(code)) for code in (0.5, 2, 0.5, -1.0)] == [0.0, -3.0, 0.0, 3.0]


def test_rules_with_equal_name_are_different_kernels(write):
    first = write("one", formula("var - grad * RATE", "RATE = 0.5"))
    second = write("two", formula("var - grad * RATE", "RATE = 2.0"))
    assert (step(first.update), step(second.update)) == (0.0, -3.0)


def test_helpers_with_equal_name_in_formula_and_stage_differ(write):
    first = write("stage_a", formula("var - helper(grad)", "def helper(x):\n    return x * 3"))
    second = write(
        "stage_b",
        "def helper(x):\n    return x * 5\ndef stage(grad):\n    return helper(grad)\n",
    )
    for engine in ("cpu", "reference"):
        var = torch.zeros(3)
        problem = Problem([var], [[]], [torch.ones(3)])
        take(update_case(first.update), problem, KEEP._replace(name=engine), stages=(second.stage,))
        assert var.tolist() == [-15.0] * 3


def test_nan_and_infinite_constants_compile():
    assert np.isnan(step(closure(float("nan"))))
    assert step(closure(float("inf"))) == -np.inf


def test_unicode_names_compile(write):
    text = "def update(var, grad):\n    β = grad * 0.5\n    return (var - β,)\n"
    assert step(write("greek", text).update) == 0.0


# What a formula may not hold

BAD_CODE = {
    "numpy": ("np.sqrt(grad)", "cannot call `np.sqrt(grad)`"),
    "math": ("math.sqrt(grad)", "cannot call `math.sqrt(grad)`"),
    "torch": ("torch.sign(grad)", "cannot call `torch.sign(grad)`"),
    "a method": ("grad.sqrt()", "cannot call `grad.sqrt()`"),
    "an attribute": ("grad.T", "cannot contain `grad.T`"),
    "an index": ("grad[0]", "cannot contain `grad[0]`"),
    "a branch": ("var if grad > 0 else grad", "cannot contain `var if grad > 0 else grad`"),
    "and": ("where(grad > 0 and var > 0, var, grad)", "cannot contain `grad > 0 and var > 0`"),
    "not": ("where(not grad > 0, var, grad)", "cannot contain"),
    "a chain": ("where(0 < grad < 1, var, grad)", "with single comparisons and `&`"),
    "a lambda": ("(lambda x: x)(grad)", "cannot call"),
    "a list": ("[grad]", "cannot contain `[grad]`"),
    "text": ("'grad'", "cannot contain 'grad'"),
    "truth": ("grad * True", "cannot contain True"),
    "floor division": ("grad // 2", "cannot contain `grad // 2`"),
    "remainder": ("grad % 2", "cannot contain `grad % 2`"),
    "a builtin": ("max(var, grad)", "cannot call `max`"),
    "a type": ("float(grad)", "cannot call `float`"),
    "a global": ("grad * TABLE", "cannot use `TABLE`, a dict"),
    "an array": ("grad * ARRAY", "cannot use `ARRAY`, a ndarray"),
    "an unknown name": ("grad * missing", "`missing` is not defined"),
    "a keyword": ("sqrt(x=grad)", "cannot call `sqrt(x=grad)`"),
    "too few arguments": ("where(grad > 0, var)", "needs 3 arguments"),
    "a comparison as a number": ("var - (grad > 0)", "`grad > 0` is not a number; write where("),
    "a number as a condition": (
        "where(grad, var, 1)",
        "`grad` is not a condition; write `grad != 0`",
    ),
    "a comparison returned": ("grad > 0", "`grad > 0` is not a number"),
    "recursion": ("again(grad)", "calls itself"),
}
PREFIX = (
    "import math\nimport numpy as np\nimport torch\nTABLE = {}\nARRAY = np.zeros(3)\n"
    "def again(x):\n    return again(x)"
)


@pytest.mark.parametrize(("expression", "message_part"), BAD_CODE.values(), ids=BAD_CODE)
def test_unsupported_code_raises_with_name_and_line(write, expression, message_part):
    module = write("refused", formula(expression, PREFIX))
    with pytest.raises(RuleError) as error_info:
        step(module.update)
    text = str(error_info.value)
    assert message_part in text
    assert "refused.py" in text
    assert ":10)" in text or "again" in text


HELPERS = (
    "def pick(c, x):\n    return where(c, x, 2)\n"
    "def twice(x):\n    return x + x\n"
    "def deeper(c, x):\n    return pick(c, twice(x))\n"
    "def less(x, y):\n    return x < y\n"
    "def either(c, d):\n    return c | d\n"
    "def same(x):\n    y = x\n    return y"
)
# calls of them, and what is said; a number where they can be called so
HELPED = {
    "a number as a condition": ("pick(grad, var)", "`grad` is not a condition; write `grad != 0`"),
    "a condition as a number": (
        "var - twice(grad > 0)",
        "`grad > 0` is not a number; write where(",
    ),
    "a condition to choose": ("pick(grad > 0, var > 0)", "`var > 0` is not a number"),
    "a number in between": ("deeper(grad, var)", "`grad` is not a condition"),
    "a condition in between": ("deeper(grad > 0, var > 0)", "`var > 0` is not a number"),
    "compared conditions": ("where(less(grad > 0, var > 0), 1, 2)", "`grad > 0` is not a number"),
    "numbers combined": ("where(either(grad, var), 1, 2)", "`grad` is not a condition"),
    "a condition under another name": ("same(grad > 0) + var", "`grad > 0` is not a number"),
    "as they are": ("deeper(either(less(grad, var), grad > 0), same(grad))", 4.0),
}


@pytest.mark.parametrize(("expression", "outcome"), HELPED.values(), ids=HELPED)
def test_helper_arguments_are_type_checked(write, expression, outcome):
    module = write("helping", formula(expression, HELPERS))
    if isinstance(outcome, float):
        assert step(module.update) == outcome
        return
    with pytest.raises(RuleError) as error_info:
        step(module.update)
    assert outcome in str(error_info.value)


STATEMENTS = {
    "if": "if grad > 0:\n        var = grad\n    return (var,)",
    "for": "for i in (1, 2):\n        var = grad\n    return (var,)",
    "an import": "import math\n    return (var,)",
    "a print": "print(var)\n    return (var,)",
    "two names": "a, b = var, grad\n    return (a,)",
    "an item": "var[0] = grad\n    return (var,)",
    "an early return": "return (var,)\n    return (grad,)",
    "no return": "var = grad",
    "two kinds": "a = grad > 0\n    a = grad\n    return (a,)",
}


@pytest.mark.parametrize("body", STATEMENTS.values(), ids=STATEMENTS)
def test_statements_other_than_assignments_raise(write, body):
    module = write("stated", f"def update(var, grad):\n    {body}\n")
    with pytest.raises(RuleError, match=r"update .*stated\.py"):
        step(module.update)


def test_lambdas_and_callables_raise():
    with pytest.raises(RuleError, match="must be written with def, not as a lambda"):
        step(lambda var, grad: (var - grad,))
    with pytest.raises(RuleError, match="must be a function written with def"):
        step(np.add)


def test_formula_without_a_source_raises():
    names = {}
    exec("def update(var, grad):\n    return (var - grad,)", names)
    with pytest.raises(RuleError, match="Cannot read the source of update"):
        step(names["update"])


def test_formula_of_the_wrong_shape_raises():
    def update(var, grad, slot):
        return var, slot

    with pytest.raises(RuleError, match=r"takes 3 .*returns 2.*; with 0 slots it must take 2"):
        step(update)


# The folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    path = tmp_path / "kernels"
    monkeypatch.setenv("THALWEG_CACHE_DIR", str(tmp_path))
    forget(monkeypatch)
    return path


def test_the_folder_is_private(folder):
    made("k_private", 1.5)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert len(list(folder.iterdir())) == 1


def flip(code, place):
    return code[:place] + bytes([code[place] ^ 1]) + code[place + 1 :]


DAMAGES = {
    "empty": lambda code: b"",
    "truncated": lambda code: code[:-1],
    "longer": lambda code: code + b"\0",
    "no code": lambda code: code[:64],
    "a bit of the seal": lambda code: flip(code, 3),
    "a bit of the code": lambda code: flip(code, len(code) // 2),
    "garbage": lambda code: b"garbage",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_machine_code_is_rebuilt(folder, monkeypatch, damage):
    assert made("k_damaged", 3.5) == 3.5
    (file,) = folder.glob("k_damaged.*.o")
    damaged = damage(file.read_bytes())
    file.write_bytes(damaged)
    forget(monkeypatch)
    linked = []
    monkeypatch.setattr(
        machine_code, "link_kernel", lambda name, code, link=machine_code.link_kernel: (
            linked.append(code), link(name, code))[1],
    )  # fmt: skip
    assert made("k_damaged", 3.5) == 3.5
    assert linked == [b"", file.read_bytes()[64:]]
    assert file.read_bytes() != damaged


def test_machine_code_under_another_name_is_rebuilt(folder, monkeypatch):
    assert made("k_one", 1.5) == 1.5
    assert made("k_two", 2.5) == 2.5
    first_file, second = (next(folder.glob(f"k_{name}.*.o")) for name in ("one", "two"))
    second.write_bytes(first_file.read_bytes())
    forget(monkeypatch)
    assert made("k_two", 2.5) == 2.5


def test_another_processor_or_llvm_is_another_file(folder, monkeypatch):
    made("k_target", 1.5)
    monkeypatch.setattr(machine_code, "target_digest", lambda: "x86_64\nznver9\n+avx1024")
    forget(monkeypatch)
    made("k_target", 1.5)
    assert len(list(folder.glob("k_target.*.o"))) == 2


def test_the_target_names_processor_features_and_llvm():
    from llvmlite import binding

    words = machine_code.target_digest()
    assert binding.get_host_cpu_name() in words
    assert binding.get_process_triple() in words
    assert repr(binding.llvm_version_info) in words


def test_another_version_of_llvmlite_is_another_kernel(monkeypatch):
    name_before = codegen_measure.generate_peak(4).name
    monkeypatch.setattr(codegen, "version", lambda package: "0.0")
    codegen.compiler_digest.cache_clear()
    try:
        assert codegen_measure.generate_peak(4).name != name_before
    finally:
        codegen.compiler_digest.cache_clear()


def test_code_that_llvm_cannot_load_is_compiled_again(folder, monkeypatch):
    monkeypatch.setattr(machine_code, "link_kernel", lambda name, code: 0)
    for _ in range(2):
        assert made("k_unloadable", 1.5) == 1.5
        forget(monkeypatch)
    assert not list(folder.iterdir())


def test_temporary_files_are_removed(folder):
    made("k_clean", 1.5)
    assert not list(folder.glob("*.tmp"))


def test_an_unwritable_folder_warns_once_and_works(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("THALWEG_CACHE_DIR", str(tmp_path / "file" / "kernels"))
    forget(monkeypatch)
    with pytest.warns(PerformanceWarning, match="Set THALWEG_CACHE_DIR to a folder") as warned:
        values = [made("k_memory", 4.5), made("k_memory_too", 5.5)]
    assert values == [4.5, 5.5]
    assert len(warned) == 1
    assert step(closure(1.25)) == -1.5


DENSE = (
    "import thalweg, sys; from thalweg.keras.optimizers import Adam\n"
    "w = thalweg.Variable([1.0]); Adam(0.1).apply_gradients([([2.0], w)])\n"
    "sys.stdout.write(w.detach().numpy().tobytes().hex())"
)
SPARSE = (
    "import thalweg, sys, torch; from thalweg.keras.optimizers import {optimizer}\n"
    "w = thalweg.Variable(torch.arange(24.0).reshape(8, 3))\n"
    "rows, values = torch.tensor([5, 2, 5, 0]), torch.arange(12.0).reshape(4, 3)\n"
    "g = thalweg.IndexedSlices(values, rows, (8, 3))\n"
    "{optimizer}(0.1).apply_gradients([(g, w)])\n"
    "sys.stdout.write(w.detach().numpy().tobytes().hex())"
)
POWER = (
    "import thalweg, sys; from thalweg.keras.optimizers import Ftrl\n"
    "w = thalweg.Variable([1.0]); o = Ftrl(0.1, learning_rate_power=-0.6)\n"
    "o.apply_gradients([([2.0], w)])\n"
    "sys.stdout.write(w.detach().numpy().tobytes().hex())"
)
STEPS = {
    "dense": DENSE,
    "the C library's pow": POWER,
    "sums": SPARSE.format(optimizer="Adagrad"),
    "successive": SPARSE.format(optimizer="SGD"),
    "untouched rows": SPARSE.format(optimizer="Adam"),
}
NO_COMPILER = "\nsys.exit('thalweg._engines.cpu.compiler' in sys.modules)"


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(program, id=name, marks=[] if name in ("dense", "sums") else pytest.mark.slow)
        for name, program in STEPS.items()
    ],
)
def test_a_second_process_takes_the_same_step_without_a_compiler(folder, script):
    first = run_python(script)
    assert first
    files = {path: path.stat().st_mtime_ns for path in folder.glob("**/*") if path.is_file()}
    assert files
    assert run_python(script + NO_COMPILER) == first
    mtimes = {path: path.stat().st_mtime_ns for path in folder.glob("**/*") if path.is_file()}
    assert mtimes == files


STEADY = """
import sys, torch
from thalweg import optim
p = torch.nn.Parameter(torch.ones(3))
p.grad = torch.ones(3)
optimizer = optim.Adam([p])
for _ in range(int(sys.argv[1])):
    optimizer.step()
sys.stdout.write(p.detach().numpy().tobytes().hex())
"""


@pytest.mark.skipif(bool(guard_table.find_obstacle()), reason="no step is taken in one call")
def test_the_replay_kernel_is_compiled_by_the_third_step(folder):
    def run(steps, program=STEADY):
        process = fresh_process.run(program, str(steps))
        assert process.returncode == 0, process.stderr
        return process.stdout, [path.name for path in folder.glob("l_*.o")]

    assert run(2)[1] == []
    first, files_kept = run(3)
    assert len(files_kept) == 1
    assert run(3, STEADY + NO_COMPILER) == (first, files_kept)


SETTINGS = {
    "NUMBA_CPU_NAME": "generic",
    "NUMBA_CPU_FEATURES": "",
    "NUMBA_ENABLE_AVX": "0",
    "NUMBA_OPT": "1",
}


@pytest.mark.parametrize(
    ("name", "value"),
    [pytest.param(*setting, id=setting[0], marks=pytest.mark.slow) for setting in SETTINGS.items()],
)
def test_settings_have_separate_cached_machine_code(folder, name, value):
    output = run_python(DENSE)
    contents = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert run_python(DENSE, **{name: value}) == output
    (new_name,) = {path.name for path in folder.iterdir()} - set(contents)
    if "+avx" in machine_code.target_digest():  # elsewhere it may be the same code
        assert (folder / new_name).read_bytes() not in contents.values()
    assert run_python(DENSE + NO_COMPILER, **{name: value}) == output


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_loaded_machine_code_runs_in_a_forked_child(folder):
    run_python(DENSE)
    fork = (
        "\nimport os\nchild = os.fork()\nv = thalweg.Variable([1.0] * 3)\n"
        "thalweg.keras.optimizers.SGD(0.5).apply_gradients([([2.0] * 3, v)])\n"
        "Adam(0.1).apply_gradients([([2.0], w)])\n"
        "os._exit(v.tolist() != [0.0] * 3) if not child else None\n"
        "sys.exit(os.waitpid(child, 0)[1])"
    )
    run_python(DENSE + fork)


@pytest.mark.slow
def test_processes_may_compile_one_kernel_at_once(folder):
    with ExitStack() as stack:
        processes = [stack.enter_context(fresh_process.Fresh(DENSE)) for _ in range(4)]
        outputs = {process.done().stdout for process in processes}
    assert len(outputs) == 1
    assert outputs != {""}


def test_importing_thalweg_does_not_import_llvm():
    run_python("import thalweg, thalweg.keras.optimizers, sys; sys.exit('llvmlite' in sys.modules)")


def test_the_reference_engine_does_not_import_llvm():
    run_python(
        "import thalweg, sys; from thalweg.keras.optimizers import Adam\n"
        "with thalweg.engine('reference'):\n"
        "    Adam().apply_gradients([([2.0], thalweg.Variable([1.0]))])\n"
        "sys.exit('llvmlite' in sys.modules)",
    )


def test_rules_compare_by_identity():
    def update(var, grad):
        return (var - grad,)

    assert Rule(name="a", update=update) != Rule(name="a", update=update)
