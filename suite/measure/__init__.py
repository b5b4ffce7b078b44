"""Makes evidence: contenders in processes of their own, in lock-step; plans and campaigns; counts at any size; studies.

Here belongs whatever trains or counts. It imports ``contract``, ``meters``, ``judge`` (studies and exact claims read
what they measured) and ``record``. It hands on records: :func:`~suite.measure.campaign.measure` fills a results folder,
:func:`~suite.measure.comparison.train_in_lock_step` makes one record.
"""
