"""Settings of the site: `make docs` builds it into build/docs, and fails on a broken link or an undocumented name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

project = "Attention workbench"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "docs.extension",
]
exclude_patterns = ["generators"]
highlight_language = "text"  # commands, and what they print
copybutton_prompt_text = "$ "  # of a screen the command is copied, not what it prints
smartquotes = False  # which would make a dash of --seed
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
toc_object_entries = False  # each has its heading

html_theme = "pydata_sphinx_theme"
html_title = project
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_sidebars = {"index": [], "tutorial/*": []}  # nothing stands beside them
html_theme_options = {
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "footer_start": [],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}
