"""Guards a repository: whether costs, training or speed changed between two states of the code.

What belongs here compares two states of the same code: an exact tier (:mod:`regression`), the speed of a step
(:mod:`speed`, by :mod:`votes`) for ``check``, repetitions of records (:mod:`agreement`), and the report on kernels
(:mod:`kernel_report`). What two records of one state say of a technique belongs to ``suite.judge``.

It may import ``suite.measure`` and what lies below it; ``suite.show`` and ``suite.cli`` import it. It hands on
:class:`findings.Finding` for each thing that was compared.
"""
