"""Reads text as packed rows of tokens: docstrings that every installation has (:mod:`baselines.documents`).

They are real, English-like, permissively licensed and already there. At the CPU sizes the tokens are characters: text
is lower case, and every run of anything but the letters a to z is one space (as in text8, Mahoney 2006, save that
digits are dropped, not spelled). A model of some 100 000 parameters learns words in seconds of such text, and nothing
beyond the plateau of frequencies of a larger alphabet. **A user's text loses its case, digits and punctuation there**,
and the data's name says so. At ``base`` and ``large`` a byte-level BPE tokenizer (Sennrich et al., arXiv 1508.07909;
bytes as in GPT-2) is trained on the training documents of the source, or of the user's data.

A document is a module's docstrings. The source is Python's and those of the libraries that the suite needs but one,
Matplotlib's, whose are ``adapt``: another subject in the same letters, and in the tokens of the source, as a checkpoint
must fit. Modules are put into training, validation and test by the hash of their name, never by row: none is in two of
them. All CPU sizes are tested on the same documents, and a larger one trains on all that a smaller one does, and more.
"""

import hashlib
import json
import re
import string
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from baselines import cache, documents, source
from suite.loop.data import Data, Examples, Transform
from suite.record.job import Size

PAD, MASK, CLS, SEP = range(4)
SPECIAL = ("<|pad|>", "<|mask|>", "<|cls|>", "<|sep|>")
ALPHABET = " " + string.ascii_lowercase
CHARACTERS = len(SPECIAL) + len(ALPHABET)
VOCABULARY: dict[Size, int] = {
    "pico": CHARACTERS,
    "nano": CHARACTERS,
    "micro": CHARACTERS,
    "mini": CHARACTERS,
    "base": 16384,
    "large": 16384,
}
# Validation is asked ten times in a run, the test once, at the end: many rows leave its mean little sampling noise.
VALIDATION_ROWS: dict[Size, int] = {"pico": 8, "nano": 1024, "micro": 1024, "mini": 1024, "base": 128, "large": 128}
TEST_ROWS: dict[Size, int] = {"pico": 8, "nano": 2048, "micro": 2048, "mini": 2048, "base": 256, "large": 256}
# How many letters (of a user's text: bytes) are read to train on: at nano enough for an epoch longer than the ruler's
# largest budget, few enough to prepare in seconds; from micro on all. To validate and test with, as many at any size.
_LIMIT: dict[Size, int] = {
    "pico": 1 << 15,
    "nano": 5 << 19,
    "micro": 1 << 30,
    "mini": 1 << 30,
    "base": 1 << 30,
    "large": 1 << 30,
}
_HELD_OUT_LIMIT = 1 << 18
_LIBRARIES = ("numpy", "scipy", "pandas", "networkx", "torch", "sympy", "sklearn")  # of the source, beside Python's own
_ADAPT = "matplotlib"
# Of the modules, to test and to validate with.
_SOURCE_SHARES, _ADAPT_SHARES = (1 / 32, 1 / 64), (1 / 5, 1 / 5)

SHAPED_ROWS = 1 << 14

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
    """Builds rows of ``length`` tokens as ``input_ids`` int16 [rows, length], documents ended by SEP and run together;
    ``framed`` rows begin with CLS and end with SEP (BERT).

    For ``pretrain`` on a ``location`` a tokenizer is trained on that text; ``source`` is always the embedded one.
    """
    own = location if split != "source" else None
    in_characters = VOCABULARY[size] == CHARACTERS
    limit = _LIMIT[size]
    tokenizer_of = own if split == "pretrain" else None

    def encoder() -> Encoder:
        if in_characters:
            return characters
        vocabulary = {"tokenizer": _identity("source", tokenizer_of, limit), "size": VOCABULARY[size], "limit": limit}

        def train(folder: Path) -> dict[str, str]:
            documents = _texts("source", tokenizer_of, limit).train
            _trained(documents, VOCABULARY[size]).save(str(folder / "tokenizer.json"), pretty=False)
            return {}

        return byte_pairs(_loaded(cache.prepared(vocabulary, train).folder / "tokenizer.json"))

    def build(folder: Path) -> dict[str, str]:
        text = _texts(split, own, limit)
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
            "text": _identity(split, own, limit),
            "vocabulary": VOCABULARY[size],
            "tokenizer": None if in_characters else _identity("source", tokenizer_of, limit),
            "limit": limit,
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


def text_shapes(length: int, transform: Transform) -> Data:
    """Builds rows of ``length`` tokens as :func:`text_data` has them, many and without their values: no text is
    read."""
    rows = Examples({"input_ids": torch.empty(SHAPED_ROWS, length, dtype=torch.int16)})
    return Data(f"rows of {length} tokens, without values", "", rows, rows, rows, transform)


# tokens -------------------------------------------------------------------------------------------------------------


def normalised(document: str) -> str:
    """Returns the document in lower case, with one space for every run of anything but the letters a to z, and none at
    the ends."""
    return re.sub("[^a-z]+", " ", document.lower()).strip()


def characters(documents: Sequence[str]) -> Iterator[np.ndarray]:
    """Yields the tokens of each normalised document: the space, then the letters, after the special tokens."""
    for document in documents:
        codes = np.frombuffer(normalised(document).encode("ascii"), dtype=np.uint8)
        yield np.where(codes == ord(" "), 0, codes.astype(np.int16) - ord("a") + 1) + len(SPECIAL)


def spelled(tokens: Tensor) -> str:
    """Returns the text of a row of characters [length], a sign for each: ``_`` for a mask, ``.`` where a text ends."""
    signs = ["~", "_", "^", ".", *ALPHABET]
    return "".join(signs[token] for token in tokens.tolist())


def byte_pairs(tokenizer: Tokenizer) -> Encoder:
    """Returns what encodes each document by ``tokenizer``."""

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
    """Returns int16 [rows, length]; the remainder that fills no row is dropped."""
    body = length - 2 * framed
    stream = np.concatenate([np.append(document, SEP) for document in documents if len(document)]).astype(np.int16)
    rows = stream[: len(stream) // body * body].reshape(-1, body)
    if framed:
        rows = np.pad(rows, ((0, 0), (1, 1)), constant_values=((0, 0), (CLS, SEP)))
    return rows


def _spread(rows: np.ndarray, limit: int) -> np.ndarray:
    """Chooses at most ``limit`` of the rows, evenly spaced."""
    return rows[np.linspace(0, len(rows) - 1, min(len(rows), limit)).astype(np.int64)]


# documents ----------------------------------------------------------------------------------------------------------


def _identity(split: str, location: str | None, limit: int) -> str:
    """Returns what a split's text is keyed by: the content of all files that it is read from, and of the list."""
    if location is not None:
        return source.identity(location)
    modules = [module for part in _chosen(split, limit).values() for module in part]
    files = {file: path for module in modules for file, path in module.here().items()}
    return f"{split == 'adapt'} {cache.content_hash({'list': documents.LIST, **files})}"


def _texts(split: str, location: str | None, limit: int) -> Texts:
    if location is not None:
        return source.texts(location, limit)
    chosen = _chosen(split, limit)
    modules = [module for part in chosen.values() for module in part]
    read = _read(modules)
    whose = "Matplotlib" if split == "adapt" else f"Python and {len(_LIBRARIES)} libraries"
    name = f"docstrings of {whose}, chosen by hash{_missing(read)}"
    parts = {part: [read[module].text for module in modules] for part, modules in chosen.items()}
    return Texts(name, **{part: [text for text in texts if text] for part, texts in parts.items()})


def _read(modules: Sequence[documents.Module]) -> dict[documents.Module, documents.Text]:
    """Reads each module's text; that of a library is kept as soon as it has been read, which takes a minute for all."""
    read: dict[documents.Module, documents.Text] = {}
    for library in dict.fromkeys(module.library for module in modules):
        own = [module for module in modules if module.library == library]
        files = {file: path for module in own for file, path in module.here().items()}
        key = {
            "docstrings": cache.content_hash({"list": documents.LIST, **files}),
            "of": [module.name for module in own],
        }

        def build(folder: Path, own: Sequence[documents.Module] = own) -> dict[str, str]:
            (folder / "texts.json").write_text(json.dumps(documents.read(own)), "utf-8")
            return {}

        kept = json.loads((cache.prepared(key, build).folder / "texts.json").read_text("utf-8"))
        read |= {module: documents.Text(*text) for module, text in zip(own, kept, strict=True)}
    return {module: read[module] for module in modules}


def _missing(read: Mapping[documents.Module, documents.Text]) -> str:
    """Says, and warns, what the list has and this installation has not; "" where it has all."""
    missing = {module.name: text.missing for module, text in read.items() if text.missing}
    if not missing:
        return ""
    listed = sum(len(module.hashes) for module in read)
    said = f"{sum(missing.values())} of {listed} missing here"
    named = ", ".join(f"{name} ({count})" for name, count in list(missing.items())[:5])
    more = f" and {len(missing) - 5} more modules" if len(missing) > 5 else ""
    warnings.warn(
        f"the embedded text is not that of other machines: {said}, in {named}{more}; install the versions in "
        "constraints.txt to repeat what was measured elsewhere",
        stacklevel=2,
    )
    return f", {said}"


def _chosen(split: str, limit: int) -> dict[str, list[documents.Module]]:
    """Chooses the modules of each part, by what the list says alone: what is missing here moves no other.

    They come in the order of the hashes of their names, so that any prefix is a fair sample: the lowest are for
    testing, the next for validation. Of each part those are taken that begin before the limit.
    """
    libraries = (_ADAPT,) if split == "adapt" else (documents.PYTHON, *_LIBRARIES)
    ranked = sorted((_rank(module.name), module) for module in documents.listed() if module.library in libraries)
    test, validation = _ADAPT_SHARES if split == "adapt" else _SOURCE_SHARES
    bounds = {"test": test, "validation": test + validation, "train": 1.0}
    parts: dict[str, list[documents.Module]] = {part: [] for part in bounds}
    letters = dict.fromkeys(parts, 0)
    for rank, module in ranked:
        part = next(part for part, bound in bounds.items() if rank < bound)
        if letters[part] < (limit if part == "train" else min(limit, _HELD_OUT_LIMIT)):
            parts[part].append(module)
            letters[part] += module.letters
    return parts


def _rank(name: str) -> float:
    """Computes the hash of a name, as a number in [0, 1)."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big") / 2**48
