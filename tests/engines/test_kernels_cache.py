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
from rulebook import KEEP, Problem, plain_rule, take
from thalweg import PerformanceWarning, Rule, RuleError
from thalweg._engines.cpu import codegen, codegen_measure, guard_table, machine_code
from thalweg._engines.cpu.compiled_loops import Loop

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
    """What one step makes of variable 1 and gradient 2, on both engines."""
    results = []
    for engine in ("cpu", "reference"):
        var = torch.ones(3)
        case = plain_rule(update, **keywords)
        take(case, Problem([var], [[]], [torch.full((3,), 2.0)]), KEEP._replace(name=engine))
        results.append(var[0].item())
    np.testing.assert_equal(*results)
    return results[0]


def formula(expression, before=""):
    return f"{before}\ndef update(var, grad):\n    return ({expression},)\n"


# Edits

EDITS = {
    "a literal": ("var - grad * 0.5", "var - grad * 0.25", ""),
    "an operator": ("var - grad", "var + grad", ""),
    "a name": ("var * grad", "grad * grad", ""),
    "a function": ("sqrt(grad * grad)", "power(grad, 3)", ""),
}


@pytest.mark.parametrize(("first", "second", "before"), EDITS.values(), ids=EDITS)
def test_an_edited_formula_is_run_as_edited(write, first, second, before):
    values = {"var": 1.0, "grad": 2.0, "sqrt": np.sqrt, "power": pow}
    for index, expression in enumerate((first, second, first)):
        module = write("edited", formula(expression, before + "#" * index))
        assert step(module.update) == eval(expression, dict(values))


def test_an_edited_helper_is_run_as_edited(write):
    helper = "def helper(x):\n    return inner(x) + 1\n"
    for index, factor in enumerate((3.0, 5.0)):
        inner = f"def inner(x):\n    return x * {factor}\n" + "#" * index
        module = write("helped", formula("var + helper(grad)", inner + "\n" + helper))
        assert step(module.update) == 1 + (2 * factor + 1)


def test_an_edited_constant_is_run_as_edited(write):
    for index, constant in enumerate((3.0, 5, -0.5)):
        before = f"RATE = {constant}\n" + "#" * index
        assert step(write("constants", formula("var + grad * RATE", before)).update) == (
            1 + 2 * constant
        )


def test_a_new_process_sees_the_edit(tmp_path):
    script = tmp_path / "script.py"
    rest = (
        "import torch\nfrom thalweg import Variable\n"
        "from thalweg.keras.optimizers import RuleOptimizer\n"
        "w = Variable([1.0])\nrule = Rule(name='mine', update=update, hypers=())\n"
        "RuleOptimizer(rule).apply_gradients([([2.0], w)])\nimport sys\n"
        "sys.stdout.write(str(float(w.detach()[0])))\n"
    )
    found = []
    for constant in (0.25, 0.75):
        script.write_text(HEADER + formula(f"var - grad * {constant}") + rest)
        found.append(run_python(script))
    assert found == ["0.5", "-0.5"]


def run_python(program, **environment):
    done = fresh_process.run(program, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_source_that_changed_after_the_import_is_refused(write, tmp_path):
    module = write("moved", formula("var - grad * 0.5"))
    (tmp_path / "moved.py").write_text(HEADER + formula("var - grad * 0.125"))
    with pytest.raises(RuleError, match=r"source of update .*moved\.py:3.* changed after it was"):
        step(module.update)


def test_a_closure_that_changed_after_the_import_is_refused(write, tmp_path):
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
    never = bytes([dis.opmap["NOP"], 0])
    consts = tuple(
        each.replace(co_code=each.co_code + never) if getattr(each, "co_name", "") == "update"
        else each for each in module.co_consts
    )  # fmt: skip
    assert consts != module.co_consts
    seen = path.stat()
    header = MAGIC_NUMBER + struct.pack("<III", 0, int(seen.st_mtime), seen.st_size)
    kept = Path(cache_from_source(str(path)))
    kept.parent.mkdir()
    kept.write_bytes(header + marshal.dumps(module.replace(co_consts=consts)))
    importlib.invalidate_caches()
    yield path, importlib.import_module("cached")
    del sys.modules["cached"]


def test_bytecode_of_another_release_is_no_change(cached):
    _, module = cached
    assert module.update.__code__.co_code.endswith(bytes([dis.opmap["NOP"], 0]))
    step(module.update)


def test_bytecode_of_another_release_vouches_for_its_own_text_alone(cached):
    path, module = cached
    path.write_text(HEADER + formula("var - grad * 0.125"))
    with pytest.raises(RuleError, match="changed after it was imported"):
        step(module.update)


def test_damaged_bytecode_vouches_for_nothing(cached):
    path, module = cached
    kept = Path(cache_from_source(str(path)))
    for length in (3, 16, 40):
        kept.write_bytes(kept.read_bytes()[:length])
        with pytest.raises(RuleError, match="changed after it was imported"):
            step(module.update)


# Formulas that look alike


def closure(constant):
    def update(var, grad):
        return (var - grad * constant,)

    return update


def test_closures_of_one_text_are_different_kernels():
    assert [step(closure(constant)) for constant in (0.5, 2, 0.5, -1.0)] == [0.0, -3.0, 0.0, 3.0]


def test_rules_of_one_name_are_different_kernels(write):
    one = write("one", formula("var - grad * RATE", "RATE = 0.5"))
    two = write("two", formula("var - grad * RATE", "RATE = 2.0"))
    assert (step(one.update), step(two.update)) == (0.0, -3.0)


def test_helpers_of_one_name_in_formula_and_stage_stay_apart(write):
    one = write("stage_a", formula("var - helper(grad)", "def helper(x):\n    return x * 3"))
    two = write(
        "stage_b",
        "def helper(x):\n    return x * 5\ndef stage(grad):\n    return helper(grad)\n",
    )
    for engine in ("cpu", "reference"):
        var = torch.zeros(3)
        problem = Problem([var], [[]], [torch.ones(3)])
        take(plain_rule(one.update), problem, KEEP._replace(name=engine), stages=(two.stage,))
        assert var.tolist() == [-15.0] * 3


def test_a_constant_that_is_not_a_number():
    assert np.isnan(step(closure(float("nan"))))
    assert step(closure(float("inf"))) == -np.inf


def test_names_of_any_script(write):
    text = "def update(var, grad):\n    β = grad * 0.5\n    return (var - β,)\n"
    assert step(write("greek", text).update) == 0.0


# What a formula may not hold

REFUSED = {
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
    "a comparison as a number": ("var - (grad > 0)", "`grad > 0` is no number; write where("),
    "a number as a condition": ("where(grad, var, 1)", "`grad` is no condition; write `grad != 0`"),
    "a comparison returned": ("grad > 0", "`grad > 0` is no number"),
    "recursion": ("again(grad)", "calls itself"),
}
BEFORE = (
    "import math\nimport numpy as np\nimport torch\nTABLE = {}\nARRAY = np.zeros(3)\n"
    "def again(x):\n    return again(x)"
)


@pytest.mark.parametrize(("expression", "why"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_arithmetic_is_refused_by_name_and_line(write, expression, why):
    module = write("refused", formula(expression, BEFORE))
    with pytest.raises(RuleError) as caught:
        step(module.update)
    text = str(caught.value)
    assert why in text
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
    "a number as a condition": ("pick(grad, var)", "`grad` is no condition; write `grad != 0`"),
    "a condition as a number": ("var - twice(grad > 0)", "`grad > 0` is no number; write where("),
    "a condition to choose": ("pick(grad > 0, var > 0)", "`var > 0` is no number"),
    "a number in between": ("deeper(grad, var)", "`grad` is no condition"),
    "a condition in between": ("deeper(grad > 0, var > 0)", "`var > 0` is no number"),
    "compared conditions": ("where(less(grad > 0, var > 0), 1, 2)", "`grad > 0` is no number"),
    "numbers combined": ("where(either(grad, var), 1, 2)", "`grad` is no condition"),
    "a condition under another name": ("same(grad > 0) + var", "`grad > 0` is no number"),
    "as they are": ("deeper(either(less(grad, var), grad > 0), same(grad))", 4.0),
}


@pytest.mark.parametrize(("expression", "found"), HELPED.values(), ids=HELPED)
def test_helpers_are_given_what_they_use(write, expression, found):
    module = write("helping", formula(expression, HELPERS))
    if isinstance(found, float):
        assert step(module.update) == found
        return
    with pytest.raises(RuleError) as caught:
        step(module.update)
    assert found in str(caught.value)


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
def test_statements_other_than_assignments_are_refused(write, body):
    module = write("stated", f"def update(var, grad):\n    {body}\n")
    with pytest.raises(RuleError, match=r"update .*stated\.py"):
        step(module.update)


def test_lambdas_and_callables_are_refused():
    with pytest.raises(RuleError, match="must be written with def, not as a lambda"):
        step(lambda var, grad: (var - grad,))
    with pytest.raises(RuleError, match="must be a function written with def"):
        step(np.add)


def test_a_formula_without_a_source_is_refused():
    names = {}
    exec("def update(var, grad):\n    return (var - grad,)", names)
    with pytest.raises(RuleError, match="Cannot read the source of update"):
        step(names["update"])


def test_a_formula_of_the_wrong_shape_is_refused():
    def update(var, grad, slot):
        return var, slot

    with pytest.raises(RuleError, match=r"takes 3 .*returns 2.*; with 0 slots it must take 2"):
        step(update)


# The folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty kernel folder, and nothing in memory."""
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
    one, two = (next(folder.glob(f"k_{name}.*.o")) for name in ("one", "two"))
    two.write_bytes(one.read_bytes())
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
    before = codegen_measure.generate_peak(4).name
    monkeypatch.setattr(codegen, "version", lambda package: "0.0")
    codegen.compiler_digest.cache_clear()
    try:
        assert codegen_measure.generate_peak(4).name != before
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
    with pytest.warns(PerformanceWarning, match="Set THALWEG_CACHE_DIR to a folder") as seen:
        values = [made("k_memory", 4.5), made("k_memory_too", 5.5)]
    assert values == [4.5, 5.5]
    assert len(seen) == 1
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
WITHOUT = "\nsys.exit('thalweg._engines.cpu.compiler' in sys.modules)"


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(each, id=name, marks=[] if name in ("dense", "sums") else pytest.mark.slow)
        for name, each in STEPS.items()
    ],
)
def test_a_second_process_takes_the_same_step_without_a_compiler(folder, script):
    first = run_python(script)
    assert first
    files = {path: path.stat().st_mtime_ns for path in folder.glob("**/*") if path.is_file()}
    assert files
    assert run_python(script + WITHOUT) == first
    after = {path: path.stat().st_mtime_ns for path in folder.glob("**/*") if path.is_file()}
    assert after == files


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
def test_the_look_is_made_by_the_third_step_and_kept(folder):
    def run(steps, program=STEADY):
        done = fresh_process.run(program, str(steps))
        assert done.returncode == 0, done.stderr
        return done.stdout, [path.name for path in folder.glob("l_*.o")]

    assert run(2)[1] == []
    first, kept = run(3)
    assert len(kept) == 1
    assert run(3, STEADY + WITHOUT) == (first, kept)


SETTINGS = {
    "NUMBA_CPU_NAME": "generic",
    "NUMBA_CPU_FEATURES": "",
    "NUMBA_ENABLE_AVX": "0",
    "NUMBA_OPT": "1",
}


@pytest.mark.parametrize(
    ("name", "value"),
    [pytest.param(*each, id=each[0], marks=pytest.mark.slow) for each in SETTINGS.items()],
)
def test_settings_make_other_machine_code_that_is_kept(folder, name, value):
    plain = run_python(DENSE)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert run_python(DENSE, **{name: value}) == plain
    (other,) = {path.name for path in folder.iterdir()} - set(before)
    if "+avx" in machine_code.target_digest():  # elsewhere it may be the same code
        assert (folder / other).read_bytes() not in before.values()
    assert run_python(DENSE + WITHOUT, **{name: value}) == plain


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
        started = [stack.enter_context(fresh_process.Fresh(DENSE)) for _ in range(4)]
        outputs = {each.done().stdout for each in started}
    assert len(outputs) == 1
    assert outputs != {""}


# Loops


def scaled(values, factor, wanted):
    count = 0
    for row in range(values.shape[0]):
        for column in range(values.shape[1]):
            values[row, column] = shifted(values[row, column]) * factor
            count += wanted[column]
    return count, values.shape[1]


def shifted(value):
    return value + 1


def last(values):
    return values[len(values) - 1]


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16, np.float32, np.float64])
def test_a_loop_does_what_its_python_does(dtype):
    values, same = (np.arange(6, dtype=dtype).reshape(2, 3) for _ in range(2))
    wanted = np.array([True, False, True])
    assert Loop(scaled, shifted)(values, np.int64(3), wanted) == (4, 3)
    for place in np.ndindex(same.shape):
        same[place] = (same[place] + 1) * 3
    np.testing.assert_array_equal(values, same)


def test_a_loop_returns_one_number():
    assert Loop(last)(np.array([3, -5])) == -5


def test_a_loop_reads_what_may_not_be_written():
    values = np.array([3, -5])
    values.flags.writeable = False
    assert Loop(last)(values) == -5


def test_a_loop_takes_empty_arrays():
    assert Loop(scaled, shifted)(np.ones((0, 3)), 3, np.ones(3, bool)) == (0, 3)


REFUSED_BY_LOOPS = {
    "strided": np.arange(6)[::2],
    "float": 0.5,
    "list": [1],
}


@pytest.mark.parametrize("values", REFUSED_BY_LOOPS.values(), ids=REFUSED_BY_LOOPS)
def test_a_loop_refuses_what_has_no_address(values):
    with pytest.raises(TypeError):
        Loop(last)(values)


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
