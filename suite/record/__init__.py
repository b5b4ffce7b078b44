"""Says what is run and what was seen of it: jobs, records, their store, the machine, files of our own.

Here belongs what must be readable without training anything: nothing in this folder imports torch, and nothing
imports another folder of the suite. It hands on :class:`~suite.record.job.Setting` and :class:`~suite.record.job.Job`,
:class:`~suite.record.schema.Record`, :class:`~suite.record.store.Store` and the machine's fingerprint.
"""
