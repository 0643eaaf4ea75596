"""Settings of the site: `make docs` builds it into build/docs, and fails on a broken link or an undocumented name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

project = "Attention workbench"
copyright = "the authors of the attention workbench"  # noqa: A001
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "docs.extension",
]
exclude_patterns = ["generators"]
default_role = "named"  # docstrings write code in single backticks
nitpicky = True
# Types of signatures that no page describes: those of other packages, and what only the workbench itself makes.
nitpick_ignore_regex = [("py:.*", r"(?!workbench\.\w+$).*")]

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80

html_theme = "pydata_sphinx_theme"
html_title = project
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_theme_options = {
    "navigation_with_keys": False,
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}
