"""Text as packed rows of tokens, from the Python standard library: its source code, and its documentation as prose.

Both are real, English-like, permissively licensed and already there. The byte-level BPE tokenizer (Sennrich et al.,
arXiv 1508.07909; bytes as in GPT-2) is trained on the training documents of the source; prose keeps that tokenizer, as
a checkpoint must fit. Documents are split and ordered by the hash of their name, never by row: no document is in both.
"""

import ast
import hashlib
import os
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from baselines import cache, source
from suite.contract.data import Data, Examples, Transform
from suite.record.job import Size

PAD, MASK, CLS, SEP = range(4)
SPECIAL = ("<|pad|>", "<|mask|>", "<|cls|>", "<|sep|>")
# Small where steps are few: BERT first learns how frequent each token is, and only then what stands around it. With
# 1024 tokens it ends nano's budget still at the frequencies (5.94 nats); with 320 it gets past them.
VOCABULARY: dict[Size, int] = {"pico": 264, "nano": 320, "micro": 512, "base": 16384, "large": 16384}
TEST_ROWS: dict[Size, int] = {"pico": 8, "nano": 64, "micro": 64, "base": 256, "large": 256}
# How much is read of each part: enough for an epoch longer than the step budget, little enough to prepare in seconds.
_LIMIT_BYTES: dict[Size, int] = {
    "pico": 1 << 15,
    "nano": 2 << 20,
    "micro": 4 << 20,
    "base": 1 << 30,
    "large": 1 << 30,
}
_NOT_SOURCE = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "pydoc_data"}
_SOURCE_TEST_SHARE, _PROSE_TEST_SHARE = 1 / 16, 1 / 5  # the documentation is short: 16 times less text

Texts = source.Texts


def text_data(
    size: Size,
    split: Literal["pretrain", "source", "adapt"],
    location: str | None,
    length: int,
    framed: bool,
    transform: Transform,
) -> Data:
    """Rows of ``length`` tokens as ``input_ids`` int16 [rows, length], documents ended by SEP and run together;
    ``framed`` rows begin with CLS and end with SEP (BERT).

    For ``pretrain`` on a ``location`` the tokenizer is trained on that text; ``source`` is always the embedded one.
    """
    own = location if split != "source" else None
    content = _identity(split, own)
    tokenizer_of = own if split == "pretrain" else None
    limit_bytes = _LIMIT_BYTES[size]
    vocabulary = {"tokenizer": _identity("source", tokenizer_of), "size": VOCABULARY[size], "bytes": limit_bytes}

    def tokenizer() -> Tokenizer:
        def build(folder: Path) -> dict[str, str]:
            _trained(_texts("source", tokenizer_of, limit_bytes).train, VOCABULARY[size]).save(
                str(folder / "tokenizer.json"), pretty=False
            )
            return {}

        return _loaded(cache.prepared(vocabulary, build).folder / "tokenizer.json")

    def build(folder: Path) -> dict[str, str]:
        text, encoder = _texts(split, own, limit_bytes), tokenizer()
        rows = {
            part: _packed(encoder, documents, length, framed)
            for part, documents in (("train", text.train), ("test", text.test))
        }
        if not all(map(len, rows.values())):
            raise ValueError(f"{text.name}: too little text: need a row of {length} tokens to train and one to test on")
        test = rows["test"]
        kept = np.linspace(0, len(test) - 1, min(len(test), TEST_ROWS[size])).astype(np.int64)
        np.save(folder / "train.npy", rows["train"])
        np.save(folder / "test.npy", test[kept])
        encoder.save(str(folder / "tokenizer.json"), pretty=False)
        return {"name": text.name}

    shape = {"rows": TEST_ROWS[size], "length": length, "framed": framed}
    prepared = cache.prepared({"text": content, "vocabulary": vocabulary, **shape}, build)
    train, test = (Examples({"input_ids": prepared.array(part)}) for part in ("train", "test"))
    return Data(prepared.facts["name"], prepared.sha256, train, test, test, transform)


def _identity(split: str, location: str | None) -> str:
    if location is not None:
        return source.identity(location)
    return f"{split == 'adapt'} {cache.content_hash(_prose_file() if split == 'adapt' else _source_files())}"


def _texts(split: str, location: str | None, limit_bytes: int) -> Texts:
    if location is not None:
        return source.texts(location, limit_bytes)
    if split == "adapt":
        documents = _topics(_prose_file()["topics.py"].read_text("utf-8"))
        return _divided("Python documentation topics", documents, _PROSE_TEST_SHARE, limit_bytes)
    code = {name: path.read_bytes().decode("utf-8", "replace") for name, path in _source_files().items()}
    return _divided("Python standard library source", code, _SOURCE_TEST_SHARE, limit_bytes)


def _source_files() -> dict[str, Path]:
    """The standard library's modules by relative name; not its tests, nor the build's own record of this machine."""
    library = sysconfig.get_path("stdlib")

    def walk(folder: str, prefix: str) -> Iterator[tuple[str, Path]]:
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            if entry.name.endswith(".py") and not entry.name.startswith("_sysconfigdata"):
                yield prefix + entry.name, Path(entry.path)
            elif entry.name not in _NOT_SOURCE and entry.is_dir():
                yield from walk(entry.path, f"{prefix}{entry.name}/")

    return dict(walk(library, ""))


def _prose_file() -> dict[str, Path]:
    path = Path(sysconfig.get_path("stdlib")) / "pydoc_data" / "topics.py"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: install Python's documentation topics, or give data (--data)")
    return {"topics.py": path}


def _topics(module: str) -> dict[str, str]:
    """The literal ``topics = {name: text}`` of the module's source, without running it."""
    for statement in ast.parse(module).body:
        if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "") == "topics":
            return ast.literal_eval(statement.value)
    raise ValueError("pydoc_data/topics.py defines no topics: give a data set (--data)")


def _divided(name: str, documents: Mapping[str, str], test_share: float, limit_bytes: int) -> Texts:
    """Ordered by the hash of their names, so that any prefix is a fair sample; the first share is for testing."""
    ordered = sorted(documents, key=lambda name: hashlib.sha256(name.encode()).digest())
    texts = [documents[name] for name in ordered if documents[name].strip()]
    held_out = max(1, round(test_share * len(texts)))
    train, test = (_first(part, limit_bytes) for part in (texts[held_out:], texts[:held_out]))
    return Texts(name, train, test)


def _first(texts: list[str], limit_bytes: int) -> list[str]:
    """The texts that begin before the limit."""
    starts = np.cumsum([0] + [len(text) for text in texts])[:-1]
    return texts[: int(np.searchsorted(starts, limit_bytes))]


def _trained(documents: Sequence[str], vocabulary: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def _loaded(path: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True  # a document that spells a special token gets its letters, not the token
    return tokenizer


def _packed(tokenizer: Tokenizer, documents: Sequence[str], length: int, framed: bool) -> np.ndarray:
    """int16 [rows, length]; the remainder that fills no row is dropped."""
    pieces: list[np.ndarray] = []
    for start in range(0, len(documents), 1024):
        for encoding in tokenizer.encode_batch_fast(documents[start : start + 1024], add_special_tokens=False):
            pieces.append(np.array([*encoding.ids, SEP], dtype=np.int16))
    body = length - 2 * framed
    stream = np.concatenate(pieces)
    rows = stream[: len(stream) // body * body].reshape(-1, body)
    if framed:
        rows = np.pad(rows, ((0, 0), (1, 1)), constant_values=((0, 0), (CLS, SEP)))
    return rows
