"""Sphinx's settings: Markdown, the course's own theme, and nothing from other hosts. `web/build.py` runs Sphinx."""

from importlib.resources import files

BASIC = files("sphinx") / "themes" / "basic" / "static"  # Sphinx's search, for a theme that inherits none
SEARCH = (
    "documentation_options.js.jinja",
    "language_data.js.jinja",
    "doctools.js",
    "sphinx_highlight.js",
    "searchtools.js",
)

project = "Inference Lab"
extensions = ["myst_parser", "web.extension"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]  # $...$ and $$...$$, as code hosts read them
myst_dmath_allow_digits = False  # "$2.90" is money
myst_dmath_allow_space = False
myst_dmath_double_inline = True
html_math_renderer = "mathml"
highlight_language = "none"  # blocks without a language are drawings or transcripts
html_theme = "theme"
html_theme_path = ["."]
html_copy_source = False
html_show_sourcelink = False
html_use_index = False
smartquotes = False
html_static_path = [str(BASIC / name) for name in SEARCH]
html_additional_pages = {"404": "404.html"}
