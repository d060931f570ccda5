"""Names of TensorFlow in scripts: detected uses, their verdicts, and the output."""

from __future__ import annotations

import ast
import functools
import json
import re
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import thalweg.tf as tf
from case_batches import many
from thalweg._cli.main import main
from thalweg._cli.scan import table
from thalweg._cli.scan.facade import Reached, reached, verdict
from thalweg._cli.scan.name_usage import CallArguments, Use, uses
from thalweg._cli.scan.script import ScanError, scan
from thalweg.tf.behavior_differences import CHANGED

DOCS = Path(__file__).parents[2] / "docs" / "tensorflow.md"

# A script, and the names that it uses.
NAMES_IN_SCRIPTS = {
    "import tensorflow as tf\ntf.nn.relu(1)": "nn.relu",
    "import tensorflow\ntensorflow.constant(1)": "constant",
    "import tensorflow.compat.v1 as tf\ntf.Session()": "compat.v1 compat.v1.Session",
    "import thalweg.tf as tf\ntf.Variable(1)": "Variable",
    "from thalweg import tf as t\nt.Variable(1)": "Variable",
    "from thalweg.tf import keras": "keras",
    "from tensorflow.keras import metrics as m\nm.Mean()": "keras.metrics keras.metrics.Mean",
    "import tensorflow.keras.layers": "keras.layers",
    "import tensorflow.keras.layers as L\nL.Dense(1)": "keras.layers keras.layers.Dense",
    "from tensorflow.keras.layers import *\nDense(1)": "keras.layers",
    "from . import tensorflow\ntensorflow.no": "",
    "from .tensorflow import no": "",
    "import numpy as tf\ntf.no": "",
    "import tensorflow_probability as tf\ntf.no": "",
    "import tensorflow as tf\nslim = tf.contrib.slim\nslim.conv2d(1)":
        "contrib.slim contrib.slim.conv2d",
    "import tensorflow as tf\na, b = tf.nn, 1\na.relu\nb.no": "nn nn.relu",
    "import tensorflow as tf\n(l := tf.layers).dense": "layers",
    "import tensorflow as tf\nl: type = tf.layers\nl.dense": "layers layers.dense",
    "import tensorflow as tf\ntf = tf.compat.v1\ntf.Session": "compat.v1 compat.v1.Session",
    "import tensorflow as tf\ntf = load()\ntf.no": "",
    "import tensorflow as tf\ndel tf\ntf.no": "",
    "import tensorflow as tf\ntf += 1\ntf.no": "",
    "import tensorflow as tf\nfor tf in x: tf.no": "",
    "import tensorflow as tf\nwith x as (tf, y): tf.no": "",
    "import tensorflow as tf\nclass tf: pass\ntf.no": "",
    "import tensorflow as tf\ndef f(tf): return tf.no": "",
    "import tensorflow as tf\ndef f(tf=tf.yes, *, x: tf.also = 0): return tf.no": "also yes",
    "import tensorflow as tf\ndef f():\n tf.no\n tf = 1": "",
    "import tensorflow as tf\ndef f():\n global tf\n tf.yes": "yes",
    "def f():\n global tf\n import tensorflow as tf\ndef g(): tf.yes": "yes",
    "def f():\n tf = 0\n def g():\n  nonlocal tf\n  import tensorflow as tf\n  tf.yes": "yes",
    "def f(): return tf.yes\nimport tensorflow as tf": "yes",
    "def f():\n import tensorflow as tf\n return lambda x: tf.yes\ntf.no": "yes",
    "import tensorflow as tf\nlambda tf: tf.no": "",
    "import tensorflow as tf\n[tf.no for tf in tf.yes]": "yes",
    "import tensorflow as tf\n{tf.a: tf.b for x in y if tf.c}": "a b c",
    "import tensorflow as tf\nclass A(tf.Module):\n t = tf\n u = t.yes\n def f(self): t.no":
        "Module yes",
    "import tensorflow as tf\n@tf.function\nasync def f():\n async with tf.a: pass": "a function",
    "import tensorflow as tf\ntf.train.Adam(1).minimize(2)": "train.Adam",
    "import tensorflow as tf\nx[tf.a].b = tf.c": "a c",
    "import tensorflow as tf\ntf.flags.x = 3": "flags",
    "import tensorflow as tf\nself.tf = tf\nself.tf.no": "",
    "import tensorflow as tf\nmatch x:\n case {'a': tf}: pass": "",
    "try:\n import tensorflow.compat.v1 as tf\nexcept ImportError:\n import tensorflow as tf\ntf.a":
        "compat.v1 compat.v1.a",
    "try:\n import tensorflow as tf\nexcept ImportError:\n tf = None\ntf.yes": "yes",
    "try:\n import tensorflow as tf\nexcept ImportError:\n tf = Fake()\ntf.yes": "yes",
    "if x:\n import tensorflow as np\nelse:\n import numpy as np\nnp.no": "",
    "if x:\n import tensorflow as tf\ntf.yes": "yes",
    "import tensorflow as tf\ntry: pass\nexcept tf.yes as tf: tf.no": "yes",
    "import tensorflow as tf\nif x:\n l = tf.layers\nelse:\n l = tf.nn\nl.a": "layers layers.a nn",
}  # fmt: skip


@many("script", NAMES_IN_SCRIPTS)
def test_scan_resolves_names_in_scopes(script: str) -> None:
    names = {".".join(use.path) for use in uses(ast.parse(script))}
    assert " ".join(sorted(names)) == NAMES_IN_SCRIPTS[script]


def test_scan_records_lines_calls_and_caught_errors() -> None:
    script = """
    import tensorflow as tf
    try:
        tf.a(1, 2, *x, 3, name="n", **y)
    except (KeyError, AttributeError):
        tf.b
    try:
        from tensorflow.keras import c
    except ImportError:
        pass
    """
    assert uses(ast.parse(textwrap.dedent(script))) == [
        Use(("a",), 4, CallArguments(2, ("name",)), None, True),
        Use(("b",), 6),
        Use(("keras", "c"), 8, None, ("keras",), True),
    ]


# What is done with a name, and what is said of it; the names are of all kinds, and few.
VERDICTS = [
    (Use(("Variable",), 1), "there", ""),
    (Use(("train", "AdamOptimizer", "minimize"), 1), "there", ""),
    (Use(("compat", "v1", "train", "AdamOptimizer"), 1), "there", ""),
    (Use(("float32", "no_such"), 1), "missing", "no_such"),
    (Use(("newaxis", "anything"), 1), "there", ""),
    (Use(("hub", "Module", "load"), 1), "missing", "use torch.hub"),
    (Use(("no_such", "name"), 1), "missing", "call torch"),
    (Use(("no_such",), 1, caught=True), "changed", "which the script catches"),
    (Use(("keras", "optimizers", "Adam"), 1, None, ("keras", "optimizers")), "there", ""),
    (Use(("nn", "relu"), 1, None, ("nn",)), "there", ""),
    (Use(("GraphKeys", "X"), 1), "missing", "X"),
    (Use(("compat", "v1", "Session"), 1, None, ("compat", "v1")), "there", ""),
    (Use(("VariableAggregation", "SUM"), 1, None, ("VariableAggregation",)), "changed",
     "no module to import from: write SUM = tf.VariableAggregation.SUM"),
    (Use(("function",), 1), "changed", "nothing is traced"),
    (Use(("random", "normal"), 1), "changed", "random numbers are torch's"),
    (Use(("compat", "v1", "random_normal"), 1), "changed", "random numbers are torch's"),
    (Use(("cast",), 1), "there", ""),
    (Use(("square",), 1, CallArguments(0, ("x", "name"))), "there", ""),
    (Use(("square",), 1, CallArguments(0, ("x", "nome"))), "missing", "takes no argument 'nome'"),
    (Use(("square",), 1, CallArguments(5, ())), "missing", "takes 2 arguments by position, not 5"),
    (Use(("train", "AdamOptimizer"), 1, CallArguments(1, ("beta1",))), "there", ""),
    (Use(("train", "MonitoredTrainingSession"), 1, CallArguments(0, ("master", "config", "hooks"))),
     "changed", "ignores 'master', 'config'"),
    (Use(("compat", "v1", "nn", "conv2d"), 1, CallArguments(2, ("use_cudnn_on_gpu",))),
     "changed", "ignores 'use_cudnn_on_gpu'"),
    (Use(("compat", "v1", "map_fn"), 1, CallArguments(2, ("dtype", "back_prop"))),
     "changed", "ignores 'dtype', 'back_prop'"),
]  # fmt: skip


@many("use,state,words", VERDICTS, ids=lambda part: str(part)[:60])
def test_names_have_a_verdict(use: Use, state: str, words: str) -> None:
    outcome = verdict(use, version_1=False)
    assert outcome.state == state
    assert words in outcome.words
    assert bool(words) == bool(outcome.words)


def test_a_script_for_tensorflow_1_has_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def newer(x: int) -> None: ...
    @functools.wraps(newer)
    def older(x: int, keep_dims: bool = False) -> None: ...

    monkeypatch.setattr(tf, "of_both", newer, raising=False)
    monkeypatch.setattr(tf.compat.v1, "of_both", older, raising=False)
    use = Use(("of_both",), 1, CallArguments(1, ("keep_dims",)))
    reached.cache_clear()
    try:
        assert verdict(use, False).words == "takes no argument 'keep_dims'"
        assert verdict(use, True) == ("there", ("of_both",), "")
        outcome = verdict(Use(("distribute", "Strategy"), 1, None), True)
        assert outcome == verdict(Use(("distribute", "Strategy"), 1, None), False)
    finally:
        reached.cache_clear()


PRIVATE = """
import tensorflow as tf
from tensorflow.python.ops import math_ops, rnn
from tensorflow.python.training import optimizer
import tensorflow.python.keras.backend as K
math_ops.nothing(1)
optimizer.Optimizer.minimize
math_ops.cast(1, tf.float32)
try:
    from tensorflow.python.client import device_lib
except ImportError:
    pass
"""


def test_private_modules_are_found_as_import_finds_them(tmp_path: Path) -> None:
    path = tmp_path / "private.py"
    path.write_text(PRIVATE)
    states = {entry.name: (entry.state, entry.lines) for entry in scan(path).names}
    assert states == {
        "tf.python": ("changed", (3, 4, 5, 7, 8)),
        "tf.python.ops.rnn": ("missing", (3,)),
        "tf.python.ops.math_ops.nothing": ("missing", (6,)),
        "tf.float32": ("there", (8,)),
        "tf.python.client.device_lib": ("changed", (10,)),
    }
    path.write_text("import tensorflow as tf\ntf.python.ops.math_ops.cast")  # nobody imported it
    assert [(entry.name, entry.state) for entry in scan(path).names] == [("tf.python", "missing")]


def test_changed_names_are_reachable() -> None:
    for name in CHANGED:
        assert not reached(tuple(name.split("."))).missing, name


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("tf.Variable(1)", 2),
        ("tf.placeholder(tf.float32)", 1),
        ("tf.contrib.slim.x", 1),
        ("tf.compat.v1.Session()", 1),
        ("tf.data.Dataset", 2),
        ("tf.device('/gpu:0'), tf.get_logger()", 2),
        ("tf.losses.MeanSquaredError()", 2),
        ("tf.losses.mean_squared_error(1, 2)", 1),
        ("tf.summary.scalar('a', 1, step=2)", 2),
        ("tf.summary.merge_all()", 1),
        ("tf.no_such_name", 2),
    ],
)
def test_version_is_inferred_from_names(text: str, version: int, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(f"import tensorflow as tf\n{text}\n")
    assert scan(tmp_path / "a.py").version == version


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"print 'a'\n", "'{}' is no Python 3: Missing parentheses"),
        (b"x = 1\n  y = 2\n", "'{}' is no Python 3: unexpected indent (line 2)"),
        (b"\x00", "null bytes"),
        (b"# coding: utf-8\n'\xff'\n", "'{}' is no Python 3: "),
        (b"# coding: no-such\n", "'{}' is no Python 3: "),
        (b"x = " + b"-" * 100_000 + b"1\n", "'{}' "),
        (None, "'{}' cannot be read: "),
    ],
    ids=["python 2", "indent", "null", "encoding", "unknown encoding", "deep", "absent"],
)
def test_invalid_scripts_fail(content: bytes | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ScanError) as error:
        scan(path)
    assert words.format(path) in str(error.value)


# The command

SCRIPT = """
import tensorflow as tf
from tensorflow import hub
x = tf.placeholder(tf.float32)
y = tf.hub.Module.load(3)
with tf.Session(config=1) as session:
    z = tf.train.AdamOptimizer(0.1).minimize(x)
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["scan", *arguments], env={"NO_COLOR": "1"})


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lacks.py").write_text(SCRIPT)
    Path("whole.py").write_text("import tensorflow as tf\ntf.Variable(1)\n")
    Path("none.py").write_text("import torch\n")
    Path("old.py").write_text("print 'a'\n")
    Path("book.ipynb").write_text("{}")


def test_scan_prints_findings_of_a_script() -> None:
    result = run("lacks.py")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "lacks.py: TensorFlow 1, 3 there, 1 changed, 1 missing",
        "lacks.py:3: tf.hub (Module.load): missing; use torch.hub (also 5)",
        "lacks.py:6: tf.Session: changed; ignores 'config'",
    ]


def test_scan_prints_json() -> None:
    result = run("--json", "lacks.py", "none.py")
    first, second = json.loads(result.stdout)
    assert (first["path"], first["tensorflow"], second["tensorflow"]) == ("lacks.py", 1, None)
    by_name = {entry["name"]: entry for entry in first["names"]}
    assert by_name["tf.hub"] == {
        "name": "tf.hub", "state": "missing", "words": "use torch.hub", "lines": [3, 5],
        "uses": ["tf.hub.Module.load"],
    }  # fmt: skip
    assert by_name["tf.train.AdamOptimizer"]["state"] == "there"
    assert second["names"] == []


@pytest.mark.parametrize(
    ("arguments", "code", "stdout", "err"),
    [
        (["whole.py"], 0, "whole.py: TensorFlow 2, 1 there\n", ""),
        (["none.py"], 0, "none.py: no names of TensorFlow\n", ""),
        (["whole.py", "lacks.py"], 1, "2 files: 1 changed, 1 missing\n", ""),
        (
            ["old.py", "lacks.py"],
            2,
            "tf.hub (Module.load): missing",
            "Error: 'old.py' is no Python 3",
        ),
        (["book.ipynb"], 2, "", "a notebook: make a script of it"),
        (["absent.py"], 2, "", "'absent.py' cannot be read: No such file"),
        (["."], 2, "3 files: ", "old.py"),
        ([], 2, "", "give either files, or --names. (Help: "),
        (["--names", "whole.py"], 2, "", "give either files, or --names."),
        (["--markdown", "whole.py"], 2, "", "--markdown goes with --names"),
    ],
)
def test_scan_exit_status_depends_on_findings(
    arguments: list[str], code: int, stdout: str, err: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert stdout in result.stdout
    assert err in result.stderr
    assert bool(err) == bool(result.stderr)


def test_names_with_control_characters_are_escaped() -> None:
    Path("a\x1b[2J.py").write_text("import tensorflow as tf\ntf.nothing\n")
    result = run("a\x1b[2J.py")
    assert "\x1b" not in result.output
    assert "a\\x1b[2J.py:2: tf.nothing: missing" in result.output


# The table


def test_table_of_names_is_current() -> None:
    listing = table.names()
    assert {"tf", "tf.nn", "tf.math", "tf.train", "tf.compat.v1"} <= set(listing.there)
    assert {"GradientTape", "Variable", "newaxis", "float32"} <= set(listing.there["tf"])
    assert "Session" in listing.there["tf.compat.v1"]
    assert "AdamOptimizer" in listing.there["tf.train"]
    for module, names in listing.there.items():
        parts = tuple(module.split(".")[1:])
        assert not {"Any", "annotations", "torch", "graph", "attribute_of"} & set(names)
        assert all(reached((*parts, name)).missing == () for name in names)
    assert listing.missing["tf.hub"] == "use torch.hub"
    for name in listing.missing:
        assert reached(tuple(name.split(".")[1:])) != Reached(None, (), "")
    assert json.loads(run("--names", "--json").stdout) == listing._asdict()
    assert "use torch.hub" in run("--names").stdout


def test_the_documentation_has_the_table() -> None:
    (block,) = re.findall(
        r"<!-- names -->\n\n(.*?)\n\n<!-- end of names -->", DOCS.read_text(), re.DOTALL
    )
    assert run("--names", "--markdown").stdout == f"{block}\n", "write it: python tools/names.py"
