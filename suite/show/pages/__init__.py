"""Pages: the board's sections, in HTML and in Markdown."""
