"""Builds the pages: the board's sections, in HTML and in Markdown."""
