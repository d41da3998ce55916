"""The page of a checkup, made from its record alone: one offline HTML file."""

from multihead.report.render import render_page

__all__ = ["render_page"]
