"""Settings of the documentation site: `make docs` builds it with Sphinx into `build/docs/`.

The pages are Markdown, so that they can also be read in the repository. Only the pages in
`reference/` that describe commands, Python and events are generated, from the code itself.
"""

from __future__ import annotations

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
# A block is "python file=my_model.py" where its file has a name.
myst_fence_as_directive: list[str] = []
suppress_warnings = ["misc.highlighting_failure"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
add_module_names = False
copybutton_prompt_text = "$ "

html_theme = "furo"
html_title = "ElasticDL"
html_show_sphinx = False
html_copy_source = False
