"""Text as packed rows of tokens, from the Python standard library: its docstrings, its source code, its documentation.

All are real, English-like, permissively licensed and already there. At the CPU sizes the tokens are characters: text is
lower case, and every run of anything but the letters a to z is one space (as in text8, Mahoney 2006, save that digits
are dropped, not spelled). A model of some 100 000 parameters learns words in seconds of such text, and nothing beyond
the plateau of frequencies of a larger alphabet. **A user's text loses its case, digits and punctuation there**, and
the data's name says so. At ``base`` and ``large`` a byte-level BPE tokenizer (Sennrich et al., arXiv 1508.07909; bytes
as in GPT-2) is trained on the training documents of the source code, or of the user's data.

``adapt`` is the documentation's topics, prose, in the tokens of the source, as a checkpoint must fit. The embedded
documents are put into training, validation and test by the hash of their name, never by row: none is in two of them.
"""

import ast
import hashlib
import os
import re
import string
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from baselines import cache, source
from suite.contract.data import Data, Examples, Transform
from suite.record.job import Size

PAD, MASK, CLS, SEP = range(4)
SPECIAL = ("<|pad|>", "<|mask|>", "<|cls|>", "<|sep|>")
ALPHABET = " " + string.ascii_lowercase
CHARACTERS = len(SPECIAL) + len(ALPHABET)
VOCABULARY: dict[Size, int] = {
    "pico": CHARACTERS,
    "nano": CHARACTERS,
    "micro": CHARACTERS,
    "base": 16384,
    "large": 16384,
}
# Validation is asked ten times in a run, the test once, at the end: many rows leave its mean little sampling noise.
VALIDATION_ROWS: dict[Size, int] = {"pico": 8, "nano": 256, "micro": 256, "base": 128, "large": 128}
TEST_ROWS: dict[Size, int] = {"pico": 8, "nano": 2048, "micro": 1024, "base": 256, "large": 256}
# How much is read of each part: enough for an epoch longer than the step budget, little enough to prepare in seconds.
_LIMIT_BYTES: dict[Size, int] = {
    "pico": 1 << 15,
    "nano": 2 << 20,
    "micro": 4 << 20,
    "base": 1 << 30,
    "large": 1 << 30,
}
_NOT_SOURCE = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "pydoc_data"}
# Shares of the names to test and to validate with. The topics are short: a third of the docstrings.
_LIBRARY_SHARES, _TOPICS_SHARES = (1 / 16, 1 / 16), (1 / 5, 1 / 10)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

Texts = source.Texts
Encoder = Callable[[Sequence[str]], Iterable[np.ndarray]]


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

    For ``pretrain`` on a ``location`` a tokenizer is trained on that text; ``source`` is always the embedded one.
    """
    own = location if split != "source" else None
    in_characters = VOCABULARY[size] == CHARACTERS
    limit_bytes = _LIMIT_BYTES[size]
    tokenizer_of = own if split == "pretrain" else None

    def encoder() -> Encoder:
        if in_characters:
            return characters
        vocabulary = {"tokenizer": _identity("source", tokenizer_of), "size": VOCABULARY[size], "bytes": limit_bytes}

        def train(folder: Path) -> dict[str, str]:
            documents = _texts("source", tokenizer_of, limit_bytes, in_characters).train
            _trained(documents, VOCABULARY[size]).save(str(folder / "tokenizer.json"), pretty=False)
            return {}

        return byte_pairs(_loaded(cache.prepared(vocabulary, train).folder / "tokenizer.json"))

    def build(folder: Path) -> dict[str, str]:
        text = _texts(split, own, limit_bytes, in_characters)
        encode = encoder()
        parts = {"train": text.train, "validation": text.validation, "test": text.test}
        rows = {part: _packed(encode(documents), length, framed) for part, documents in parts.items()}
        if not all(map(len, rows.values())):
            raise ValueError(
                f"{text.name}: too little text: need a row of {length} tokens to train, to validate and to test with"
            )
        np.save(folder / "train.npy", rows["train"])
        np.save(folder / "validation.npy", _spread(rows["validation"], VALIDATION_ROWS[size]))
        np.save(folder / "test.npy", _spread(rows["test"], TEST_ROWS[size]))
        return {"name": f"{text.name}, letters only" if in_characters else text.name}

    prepared = cache.prepared(
        {
            "text": _identity(split, own),
            "vocabulary": VOCABULARY[size],
            "tokenizer": None if in_characters else _identity("source", tokenizer_of),
            "bytes": limit_bytes,
            "rows": [VALIDATION_ROWS[size], TEST_ROWS[size]],
            "length": length,
            "framed": framed,
        },
        build,
    )
    train, validation, test = (
        Examples({"input_ids": prepared.array(part)}) for part in ("train", "validation", "test")
    )
    return Data(prepared.facts["name"], prepared.sha256, train, validation, test, transform)


# tokens -------------------------------------------------------------------------------------------------------------


def normalised(document: str) -> str:
    """Lower case, with one space for every run of anything but the letters a to z, and none at the ends."""
    return re.sub("[^a-z]+", " ", document.lower()).strip()


def characters(documents: Sequence[str]) -> Iterator[np.ndarray]:
    """The tokens of each normalised document: the space, then the letters, after the special tokens."""
    for document in documents:
        codes = np.frombuffer(normalised(document).encode("ascii"), dtype=np.uint8)
        yield np.where(codes == ord(" "), 0, codes.astype(np.int16) - ord("a") + 1) + len(SPECIAL)


def spelled(tokens: Tensor) -> str:
    """The text of a row of characters [length], a sign for each: ``_`` for a mask, ``.`` where a text ends."""
    signs = ["~", "_", "^", ".", *ALPHABET]
    return "".join(signs[token] for token in tokens.tolist())


def byte_pairs(tokenizer: Tokenizer) -> Encoder:
    """The tokens of each document by ``tokenizer``."""

    def encode(documents: Sequence[str]) -> Iterator[np.ndarray]:
        for start in range(0, len(documents), 1024):
            for encoding in tokenizer.encode_batch_fast(documents[start : start + 1024], add_special_tokens=False):
                yield np.array(encoding.ids)

    return encode


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


def _packed(documents: Iterable[np.ndarray], length: int, framed: bool) -> np.ndarray:
    """int16 [rows, length]; the remainder that fills no row is dropped."""
    body = length - 2 * framed
    stream = np.concatenate([np.append(document, SEP) for document in documents if len(document)]).astype(np.int16)
    rows = stream[: len(stream) // body * body].reshape(-1, body)
    if framed:
        rows = np.pad(rows, ((0, 0), (1, 1)), constant_values=((0, 0), (CLS, SEP)))
    return rows


def _spread(rows: np.ndarray, limit: int) -> np.ndarray:
    """At most ``limit`` of the rows, evenly spaced."""
    return rows[np.linspace(0, len(rows) - 1, min(len(rows), limit)).astype(np.int64)]


# documents ----------------------------------------------------------------------------------------------------------


def _identity(split: str, location: str | None) -> str:
    if location is not None:
        return source.identity(location)
    return f"{split == 'adapt'} {cache.content_hash(_prose_file() if split == 'adapt' else _source_files())}"


def _texts(split: str, location: str | None, limit_bytes: int, in_characters: bool) -> Texts:
    if location is not None:
        return source.texts(location, limit_bytes)
    if split == "adapt":
        topics = _topics(_prose_file()["topics.py"].read_text("utf-8"))
        return _divided("Python documentation topics", topics, topics.__getitem__, _TOPICS_SHARES, limit_bytes)
    files = _source_files()
    name, read = ("docstrings", docstrings) if in_characters else ("source", str)

    def document(path: str) -> str:
        return read(files[path].read_bytes().decode("utf-8", "replace"))

    return _divided(f"Python standard library {name}", files, document, _LIBRARY_SHARES, limit_bytes)


def docstrings(code: str) -> str:
    """Those of a module, its classes and its functions, one after the other."""
    documented = (node for node in ast.walk(ast.parse(code)) if isinstance(node, _DOCUMENTED))
    return "\n".join(text for node in documented if (text := ast.get_docstring(node)))


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


def _divided(
    name: str, names: Iterable[str], read: Callable[[str], str], shares: tuple[float, float], limit_bytes: int
) -> Texts:
    """Documents in the order of the hashes of their names, so that any prefix is a fair sample: the lowest hashes are
    for testing, the next for validation. Of each part those are read that begin before the limit.
    """
    bounds = {"test": shares[0], "validation": sum(shares), "train": 1.0}
    parts: dict[str, list[str]] = {part: [] for part in bounds}
    sizes = dict.fromkeys(parts, 0)
    for rank, document in sorted((_rank(document), document) for document in names):
        part = next(part for part, bound in bounds.items() if rank < bound)
        if sizes[part] < limit_bytes and (text := read(document)).strip():
            parts[part].append(text)
            sizes[part] += len(text)
    return Texts(name, **parts)


def _rank(name: str) -> float:
    """The hash of a name, as a number in [0, 1)."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big") / 2**48
