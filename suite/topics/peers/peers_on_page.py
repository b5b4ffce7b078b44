"""Shows a technique beside other packages' implementations of it, on its page."""

from __future__ import annotations

from collections.abc import Sequence

from suite.record.job import Spelling
from suite.record.text import in_html
from suite.show.on_board import OnPage
from suite.show.pages import markup
from suite.topics.peers import peers_on_board as peers


def _part(stack: str, known: Sequence[peers.PeerRow]) -> str:
    own = [peer for peer in known if [peer.technique] == list(Spelling(stack).names)]
    if not own:
        return ""
    items = (in_html(": ".join((", ".join(peer.cells[1:4]), f"{peer.cells[4]} ({peer.cells[5]})"))) for peer in own)
    return f"<h4>{peers.TITLE}</h4><p>{in_html(peers.READING)}</p><ul>{markup.items(items)}</ul>"


ON_PAGE = OnPage(90, lambda report: lambda stack, placed: _part(stack, report.peers))
