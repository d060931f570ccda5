"""How the documentation is built: `sphinx-build docs docs/_build`."""

import thalweg

project = "Thalweg"
version = release = thalweg.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = "Thalweg"
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
myst_heading_anchors = 3
exclude_patterns = ["_build"]
# The pages are read on their own, too: they point at files of the repository.
suppress_warnings = ["myst.xref_missing", "docutils"]
