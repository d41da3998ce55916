"""The page of a checkup or of two, made from records alone: one offline HTML file."""

from multihead.report.comparison import render_comparison
from multihead.report.render import render_page

__all__ = ["render_comparison", "render_page"]
