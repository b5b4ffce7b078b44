"""Packs what the page shows folded: most of it is never opened, and text of this kind is a sixth as long compressed.

A part is taken out of the page and stands in one compressed list at its end; in its place stands a sentence, which the
page's script replaces with the part when its reader opens it, follows a link into it, or prints the page with it open.
What a browser without the script shows is what stands unfolded: the matrix, its sentences, and every title.

Compression sees 32 KB at once, and what is alike stands farther apart: the same table of two techniques. So text is cut
into pieces, and each distinct one stands once, in alphabetical order, where its likes are its neighbours.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from typing import Any

from markupsafe import Markup

PLACE = Markup(
    '<p class="packed" data-part="{}">This part is packed: a browser that runs this page\'s script unpacks it here.</p>'
)
CUTS = re.compile(r'(?=<(?:tr|svg|p|li|table|h\d|details|article|section)\b|[,{]"[a-z_]+":\{)')
"""Before elements of a page, and before objects of JSON."""


class Pack:
    """Holds the parts of one page, in the order in which they were folded."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def fold(self, markup: Markup) -> Markup:
        """Returns an element whose content is packed behind its first summary, as far as the last ``</details>``."""
        head, summary, rest = markup.partition("</summary>")
        content, details, tail = rest.rpartition("</details>")
        if not details:
            return markup
        self._parts.append(content)
        return head + summary + PLACE.format(len(self._parts) - 1) + details + tail

    @property
    def packed(self) -> str:
        """Returns all parts, for an element of the page."""
        return packed(self._parts)


def packed(value: Any) -> str:
    """Writes a JSON value, compressed, in letters that cannot end a script element: its text's distinct pieces, and
    which of them follow each other."""
    words = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    pieces = CUTS.split(words)
    distinct = sorted(set(pieces))
    places = {piece: place for place, piece in enumerate(distinct)}
    content = json.dumps([distinct, [places[piece] for piece in pieces]], ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(content.encode("utf-8", "surrogatepass"), mtime=0)).decode()
