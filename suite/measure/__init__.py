"""Makes evidence: counted, learned and timed; the plan of what is missing; campaigns; counts at any size; studies.

Here belongs whatever trains or counts. It imports ``loop``, ``entries``, ``meters``, ``judge`` (plans, studies and
exact claims read what was measured) and ``record``. It hands on records: :func:`~suite.measure.campaign.measure` fills
a results folder, :mod:`~suite.measure.counting`, :mod:`~suite.measure.learning` and :mod:`~suite.measure.timing` make
one each.
"""
