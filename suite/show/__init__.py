"""Shows results: boards, pages, figures and tables, for people and for other tools.

Everything here is drawn from a :class:`suite.topics.board.report.Report` or from rows, and computes no statistics:
titles, columns, directions and exactness come from the registry, ``suite.judge.metrics``. It may import every package
below ``suite.cli``, and loads torch and matplotlib only where a study or a figure is drawn. It hands text, markup and
bytes to ``suite.cli``, which writes them.
"""
