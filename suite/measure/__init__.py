"""Makes evidence: counts, learned runs, timings in lock-step; plans and campaigns; counts at any size; studies.

Here belongs whatever trains or counts. It imports ``contract``, ``meters``, ``judge`` (studies and exact claims read
what they measured) and ``record``. It hands on evidence: :func:`~suite.measure.campaign.measure` fills a results folder
with what :func:`~suite.measure.counting.count`, :func:`~suite.measure.learning.learn` and
:func:`~suite.measure.timing.time_together` make.
"""
