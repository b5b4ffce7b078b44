"""Shows a technique beside other packages' implementations of it, on its page."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from suite.record.job import Spelling
from suite.show.pages.rendered import macros_beside
from suite.topics.on_board import OnPage
from suite.topics.peers import peers_on_board as peers

DRAWN = macros_beside(__file__)


def _part(stack: str, known: Sequence[peers.PeerRow]) -> Markup:
    own = [peer for peer in known if [peer.technique] == list(Spelling(stack).names)]
    said = [": ".join((", ".join(peer.cells[1:4]), f"{peer.cells[4]} ({peer.cells[5]})")) for peer in own]
    return DRAWN.peers(peers.TITLE, peers.READING, said) if own else Markup()


ON_PAGE = OnPage(90, lambda report: lambda stack, placed: _part(stack, report.peers), peers.TITLE)
