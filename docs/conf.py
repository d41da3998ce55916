"""Sphinx configuration: Markdown pages, no network."""

project = "multihead"
author = "The multihead authors"
extensions = ["myst_parser"]
html_theme = "furo"
exclude_patterns = ["results/*"]
myst_heading_anchors = 3
