"""Each line of evidence ends with the SHA-256 of what stands before it, so that no byte of it changes unseen.

It shows damage and says no more: who measured a line is said by a signature alone
(:mod:`suite.topics.publish.signing`).

``{...}`` is written as ``{...,"sha256":"<64 digits>"}``. ``python -m suite.record.seal FILE...`` adds it to the lines
of a file that have none, e.g. of an older version: it vouches for them as they stand, so look at them first.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from suite.record.files import open_plain, replacing
from suite.record.schema import parse

MARK = b',"sha256":"'
LENGTH = len(MARK) + 64 + len(b'"}')


class NoChecksum(ValueError):
    """Is raised where a line has no checksum."""


def sealed(content: bytes) -> bytes:
    """Returns ``content``, a JSON object with members and without spaces around it, with its checksum as the last
    one."""
    return content[:-1] + MARK + hashlib.sha256(content).hexdigest().encode() + b'"}'


def opened(line: bytes) -> bytes:
    """Returns the JSON object without its checksum. Raises NoChecksum, ValueError where it is another line's."""
    content = line[:-LENGTH] + b"}"
    if not line[-LENGTH:].startswith(MARK):
        raise NoChecksum("it has no checksum")
    if sealed(content) != line:
        raise ValueError("it was changed: its checksum is of other content")
    return content


def seal_file(path: Path) -> int:
    """Adds checksums to the lines that have none, the file whole or not at all; returns their number.

    Raises ValueError for a line that is no evidence, OSError.
    """
    with open_plain(path) as file:
        lines = file.read().split(b"\n")
    added = 0
    for number, line in enumerate(lines):
        if line.strip() and not line[-LENGTH:].startswith(MARK):
            try:
                parse(line)
            except ValueError as error:
                raise ValueError(f"{path}:{number + 1}: {error}; the file is left as it was") from None
            lines[number] = sealed(line.strip())
            added += 1
    with replacing(path) as partial:
        partial.write_bytes(b"\n".join(lines))
    return added


if __name__ == "__main__":
    try:
        for name in sys.argv[1:]:
            print(f"{name}: {seal_file(Path(name))} lines got a checksum, which shows damage, not who measured")
    except (OSError, ValueError) as error:
        sys.exit(str(error))
