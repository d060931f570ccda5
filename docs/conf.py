"""How the documentation is built: `sphinx-build docs docs/_build`."""

import sys
from pathlib import Path

import thalweg

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

import repository_links

project = "Thalweg"
copyright = "the authors of Thalweg"
version = release = thalweg.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.linkcode",
    "class_pages",
    "docstrings",
    "repository_links",
]
exclude_patterns = ["_build", "extensions"]

html_theme = "furo"  # light or dark as the reader's system asks
html_title = "Thalweg"
html_favicon = "static/thalweg.svg"
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_copy_source = False

napoleon_custom_sections = ["Differs from"]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
default_role = "py:obj"  # a name of the library in a docstring is a link
linkcode_resolve = repository_links.resolve
myst_heading_anchors = 4

# Rooms whose classes stand in signatures and are of no use by themselves.
INNER = (
    "_graph", "_base", "_formats", "v1.train", "openseq2seq.optimizers", "distribute",
    "checkpoint.tensorflow", "checkpoint.save_restore", "variable", "autodiff",
    "optim.fused_optimizer", "optim.param_state", "diagnostics.sinks", "diagnostics.recorder",
    "diagnostics.table",
)  # fmt: skip
# Every reference to a name of the library's own is checked; those of others have no inventory here.
nitpicky = True
nitpick_ignore_regex = [
    ("py:obj", "(?s:.*)"),
    ("py:.*", r"(?!thalweg).*"),
    ("py:class", rf"thalweg\.({'|'.join(INNER)})\..*"),
]
