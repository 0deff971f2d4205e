"""Settings of the documentation site: `make docs` builds it with Sphinx into `build/docs/`.

The pages are Markdown, so that they can also be read in the repository. Only the pages in
`reference/` that describe commands, Python and events are generated, from the code itself.
"""

from __future__ import annotations

import re
from typing import Any

import elasticdl

project = "ElasticDL"
author = "The ElasticDL authors"
copyright = author  # noqa: A001 - Sphinx's name
version = release = elasticdl.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
]
exclude_patterns = ["build"]

# Links to sections are those of the Markdown files themselves.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

# Docstrings are Markdown in this respect: `name` is code.
default_role = "literal"
# `--` begins an option.
smartquotes = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
copybutton_prompt_text = "$ "

html_theme = "furo"
html_title = "ElasticDL"
html_show_sphinx = False
html_copy_source = False


def _escape(app: Any, ctx: Any, lines: list[str]) -> None:
    """Keep `*` and `name_` in the help of a command from being read as markup."""
    del app, ctx
    lines[:] = [re.sub(r"\*|(?<=\w)_(?!\w)", r"\\\g<0>", line) for line in lines]


def setup(app: Any) -> None:
    """Connect what is above; Sphinx calls it."""
    for part in ("description", "options", "arguments", "epilog"):
        app.connect(f"sphinx-click-process-{part}", _escape)
