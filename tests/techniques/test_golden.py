"""Each entry's weights are those of its golden record, to the bit: what moves one, on purpose or not, is seen here.

A change that means to move them renews the records, in a commit of its own that says why
(``python -m tests.golden ID --renew``).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from suite.entries.catalogue import catalogue
from suite.loop.run import Run
from tests import golden

KEPT = [name for name, entry in catalogue().items() if (entry.folder / golden.FILE).is_file()]


def test_every_entry_has_a_golden_record() -> None:
    lacking = sorted({*catalogue()} - {*KEPT})
    assert lacking == [], f"python -m tests.golden {' '.join(lacking)} --renew"


@pytest.mark.parametrize("name", KEPT)
def test_the_weights_are_those_of_the_golden_record(name: str) -> None:
    entry = catalogue()[name]
    if why := golden.incomparable(entry):
        pytest.skip(why)
    changed = golden.differences(entry, golden.record(entry))
    assert not changed, "\n".join(changed)


def digest_of(**buffers: Tensor) -> str:
    model = nn.Module()
    for name, buffer in buffers.items():
        model.register_buffer(name, buffer)
    return golden.digest(cast(Run, SimpleNamespace(model=model, mesh=None)))


def test_a_hash_is_of_names_dtypes_shapes_and_bytes() -> None:
    own = torch.zeros(2, 3)
    others = (own.int(), own.view(3, 2), own + 2**-149)
    hashes = {digest_of(own=own), digest_of(other=own), *(digest_of(own=each) for each in others)}
    assert len(hashes) == 5
    assert digest_of(own=own) == digest_of(own=torch.zeros(3, 2).T) == digest_of(own=own.clone())
