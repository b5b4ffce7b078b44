"""Tells what the evidence says: a pure view of records, and no measuring.

Here belong the statistics, the reference's scaling curve (``ruler``), what is known of a pair (``known``), the registry
of metrics, rows, and what is concluded from rows: verdicts on the papers' claims, interactions of stacks, changes over
time. It imports ``suite.record`` and, for the cards' claims and the hashes of the installed code, ``suite.entries``;
never torch. It hands rows, values and judgements to ``suite.guard`` and ``suite.show``; whoever counts a claim exactly
(``suite.measure.exact``) asks it for the verdict.
"""
