"""Imports every technique with what reads its steps, for the process that crews are forked from: each of them would
take seconds for it. What cannot be imported is left to its own trial to say."""

from __future__ import annotations

import importlib
from contextlib import suppress

from suite.entries.catalogue import catalogue
from suite.entries.installed import baselines
from suite.reading.recording import instruments

for _name, _entry in catalogue().items():
    with suppress(BaseException):
        importlib.import_module(_entry.module)
        instruments([_name])
baselines()
