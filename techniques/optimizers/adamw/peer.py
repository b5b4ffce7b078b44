"""AdamW's kernel is Adam's with decoupled decay, and is checked and timed as that is."""

from __future__ import annotations

from techniques.optimizers.adam import peer

BENCHES = peer.benches(decoupled=True)
