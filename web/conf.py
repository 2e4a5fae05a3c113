"""What Sphinx is told: Markdown in, our own theme around it, nothing from other hosts. `web/build.py` runs it."""

project = "Inference Lab"
extensions = ["myst_parser", "web.extension"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]  # $...$ and $$...$$, as code hosts read them
myst_dmath_allow_digits = False  # "$2.90" is money
myst_dmath_allow_space = False
myst_dmath_double_inline = True
html_math_renderer = "mathml"
highlight_language = "none"  # blocks that say nothing are drawings or transcripts
html_theme = "theme"
html_theme_path = ["."]
html_copy_source = False
html_show_sourcelink = False
html_use_index = False
smartquotes = False
