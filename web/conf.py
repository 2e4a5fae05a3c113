"""What Sphinx is told: Markdown in, our own theme around it, nothing from other hosts. `web/build.py` runs it."""

project = "Inference Lab"
extensions = ["myst_parser", "web.extension"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
highlight_language = "none"  # blocks that say nothing are drawings or transcripts
html_theme = "theme"
html_theme_path = ["."]
html_copy_source = False
html_show_sourcelink = False
html_use_index = False
smartquotes = False
