"""Reads TensorBoard's event files and W&B's offline files: records in a frame, each a message of Protocol Buffers.

Neither package need be installed. Of TensorBoard's ``Event`` are read: wall_time = 1, step = 2, summary = 5 {value = 1
{tag = 1, simple_value = 2, tensor = 8 {dtype = 1, tensor_content = 4, float_val = 5, double_val = 6}}}; of W&B's
``Record``: history = 2 {item = 1, step = 2 {num = 1}}, config = 5 {update = 1}, run = 17 {config = 4}, where an item is
{key = 1, nested_key = 2, value_json = 16}. A record that was cut at the end of a file, as a run that is killed leaves
it, ends the reading.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from suite.record.files import read_plain
from suite.topics.foreign_runs.log_table import LogTable, flat, from_rows

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
BLOCK, HEAD = 32768, 7
FIRST_OR_WHOLE, LAST_OR_WHOLE = (1, 2), (1, 4)
W_AND_B = b":W&B"
FLOAT, DOUBLE = 1, 2


def read_events(path: Path) -> list[LogTable]:
    """Reads a TensorBoard event file: a row for each step, and what it says of time."""
    by_step: dict[int, dict[str, Any]] = {}
    times: list[float] = []
    for event in _framed(read_plain(path)):
        fields = dict(_fields(event))
        step = fields.get(2, 0)
        time = struct.unpack("<d", fields[1])[0] if 1 in fields else 0.0
        times.append(time)
        for number, value in _fields(fields.get(5, b"")):
            if number == 1 and (scalar := _scalar(value)):
                by_step.setdefault(step, {"step": step, "wall_time": time})[scalar[0]] = scalar[1]
    if not by_step:
        raise ValueError(f"{path} holds no scalars; name another event file, or leave it out")
    for fields_of_step in by_step.values():
        fields_of_step["seconds"] = fields_of_step.pop("wall_time") - min(times)
    return [from_rows(str(path), enumerate(by_step.values(), 1), counted_in="step number")]


def _scalar(message: bytes) -> tuple[str, float] | None:
    """Returns the tag and the value of a summary's value; None of an image, a histogram, a text."""
    fields = dict(_fields(message))
    if 1 not in fields:
        return None
    tag = fields[1].decode("utf-8", "replace")
    if 2 in fields:
        return tag, struct.unpack("<f", fields[2])[0]
    if 8 not in fields:
        return None
    tensor = dict(_fields(fields[8]))
    kind = {FLOAT: ("<f", 4, 5), DOUBLE: ("<d", 8, 6)}.get(tensor.get(1, 0))
    if kind is None:
        return None
    form, size, typed = kind
    content = tensor.get(4) or tensor.get(typed)
    return (tag, struct.unpack(form, content)[0]) if content and len(content) == size else None


def read_offline(path: Path) -> list[LogTable]:
    """Reads the ``.wandb`` file of a W&B run: its history and its configuration."""
    rows: list[tuple[int, dict[str, Any]]] = []
    facts: dict[str, str] = {}
    for message in _logged(read_plain(path), path):
        for number, value in _fields(message):
            if number == 2:
                rows.append((len(rows) + 1, _history(value)))
            elif number == 5:
                facts |= _items(value, 1)
            elif number == 17:
                facts |= {
                    name: text for part, own in _fields(value) if part == 4 for name, text in _items(own, 1).items()
                }
    if not rows:
        raise ValueError(f"{path} holds no history; leave it out, or wait until its run has logged something")
    return [from_rows(str(path), rows, facts={name: str(text) for name, text in facts.items()}, counted_in="row")]


def _history(message: bytes) -> dict[str, Any]:
    row = _items(message, 1)
    for number, value in _fields(message):
        if number == 2:
            row.setdefault("_step", dict(_fields(value)).get(1, 0))
    return row


def _items(message: bytes, at: int) -> dict[str, Any]:
    """Returns the named JSON values of a record, flat."""
    found: dict[str, Any] = {}
    for number, item in _fields(message):
        if number != at:
            continue
        parts = list(_fields(item))
        names = [value.decode() for part, value in parts if part in (1, 2)]
        for text in (value for part, value in parts if part == 16):
            value = json.loads(text)
            found |= flat({"/".join(names): value})
    return found


def _framed(content: bytes) -> Iterator[bytes]:
    """Yields the records of TensorFlow's frame: length, its checksum, data, its checksum."""
    at = 0
    while at + 12 <= len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        if at + 16 + length > len(content):
            return
        yield content[at + 12 : at + 12 + length]
        at += 16 + length


def _logged(content: bytes, path: Path) -> Iterator[bytes]:
    """Yields the records of LevelDB's log, in blocks of 32 KiB: checksum, length, kind, data; long ones in pieces."""
    if not content.startswith(W_AND_B):
        raise ValueError(f"{path} is no file of a W&B run; name another file")
    at, pieces = HEAD, b""
    while at + HEAD <= len(content):
        if BLOCK - at % BLOCK < HEAD:  # the rest of a block is padding
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        if at + HEAD + length > len(content) or kind == 0:
            return
        data = content[at + HEAD : at + HEAD + length]
        pieces = data if kind in FIRST_OR_WHOLE else pieces + data
        if kind in LAST_OR_WHOLE:
            yield pieces
        at += HEAD + length


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yields the (number, value) of each field of a message: whole numbers, or bytes. Raises ValueError for what is
    none."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == BYTES:
            size, at = _varint(message, at)
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
        else:
            raise ValueError("it is damaged, or of another format; name another file")
        yield number, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message):
            raise ValueError("it is damaged, or of another format; name another file")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
