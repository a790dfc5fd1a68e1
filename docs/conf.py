"""Sphinx configuration: pages in Markdown, the API from docstrings."""

import fsresearch

project = "fsresearch"
author = "fsresearch developers"
copyright = f"2026, {author}"
version = release = fsresearch.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "kernel_speed.md"]

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_use_ivar = True
default_role = "code"

html_theme = "furo"
html_title = f"fsresearch {version}"


def setup(app):
    """Leave out the fields of NamedTuples, which their classes' docstrings describe."""
    app.connect("autodoc-skip-member", lambda *args: args[4] or is_field(args[3]))


def is_field(member):
    return type(member).__name__ == "_tuplegetter"
