"""Makes the tokens of rows that hold an example each: the suite's own, or those of a user's checkpoint.

A checkpoint knows nothing of other tokens than those that it was trained with, so its tokenizer.json goes with its
weights. The suite's own are those of :mod:`baselines.text`: letters at the CPU sizes, byte pairs of docstrings at
``base`` and ``large``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache as remembered
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedConfig

from baselines import cache, models, text
from baselines.text import CHARACTERS, CLS, PAD, SEP, VOCABULARY, Encoder
from suite.entries.checkpoints import weight_files
from suite.record.job import Size

_FILE, _SETTINGS = "tokenizer.json", "tokenizer_config.json"


@dataclass(frozen=True)
class Tokens:
    """Holds an encoder of texts, and the tokens that stand before, behind and after a row's text. ``key`` says which
    they are; ``letters`` whether all but letters is lost."""

    encode: Encoder
    vocabulary: int
    key: str
    begin: int = CLS
    end: int = SEP
    pad: int = PAD
    letters: bool = False
    of_a_user: bool = False

    def model(self, auto: Any, config: PreTrainedConfig, folder: str, length: int) -> nn.Module:
        """Builds the model of a user's configuration with the head of transformers' class ``auto``, with room for the
        rows."""
        if not self.of_a_user:
            return models.text_model(auto, config, folder, self.vocabulary, length)
        config.pad_token_id, config.use_cache = self.pad, False
        return models.built(auto, config, folder)

    def row(self, text: NDArray[Any], length: int, framed: bool) -> tuple[NDArray[Any], int]:
        """Returns a row int32 [length] of a text's tokens, and how many are no padding; what does not fit is cut off,
        the end included. ``framed`` rows begin with ``begin``, and their end is never cut off."""
        before = [self.begin] if framed else []
        room = length - len(before) - framed
        tokens = [*before, *text[:room].tolist()]
        if len(tokens) < length:
            tokens.append(self.end)
        return np.array(tokens + [self.pad] * (length - len(tokens)), dtype=np.int32), len(tokens)


def tokens_of(size: Size, model: str | None) -> Tokens:
    """Returns the tokens of a user's checkpoint ``model``, where it has weights, else the suite's own.

    Raises ValueError where the checkpoint has no tokenizer.
    """
    if model is not None and weight_files(model):
        return _of_a_user(Path(model).expanduser(), model)
    if VOCABULARY[size] == CHARACTERS:
        return Tokens(text.characters, CHARACTERS, "letters", letters=True)
    return _byte_pairs(size)


def check_known(model: str | None, fitting: str) -> None:
    """Raises ValueError where a user's checkpoint would get the suite's own tokens; ``fitting`` is the data that has
    rows in its own."""
    if model is not None and weight_files(model):
        raise ValueError(
            f"--model {model}: its weights are of its own tokens; it knows nothing of the letters that texts are here: "
            f"adapt it to {fitting} (--data), or keep config.json alone there, to train such a model from the start"
        )


@remembered
def _byte_pairs(size: Size) -> Tokens:
    limit = text._LIMIT[size]
    vocabulary = {"tokenizer": text._identity("source", None, limit), "size": VOCABULARY[size], "limit": limit}

    def train(folder: Path) -> dict[str, str]:
        documents = text._texts("source", None, limit).train
        text._trained(documents, VOCABULARY[size]).save(str(folder / _FILE), pretty=False)
        return {}

    tokenizer = text._loaded(cache.prepared(vocabulary, train).folder / _FILE)
    return Tokens(text.byte_pairs(tokenizer), VOCABULARY[size], f"byte pairs {vocabulary}")


@remembered
def _of_a_user(folder: Path, model: str) -> Tokens:
    try:
        tokenizer = Tokenizer.from_file(str(folder / _FILE))
        settings = json.loads((folder / _SETTINGS).read_text("utf-8"))
    except Exception as error:  # tokenizers raises a bare Exception for whatever it cannot read
        raise ValueError(
            f"--model {model}: a checkpoint needs the tokens that it was trained with: cannot read {_FILE} and "
            f"{_SETTINGS} there ({error}); write them with the tokenizer's save_pretrained"
        ) from None
    special = {name: _special(tokenizer, settings, name) for name in ("cls", "bos", "sep", "eos", "pad", "unk")}
    begin, end = _first(special, "cls", "bos", "eos"), _first(special, "sep", "eos")
    if begin is None or end is None:
        raise ValueError(f"--model {model}: {_SETTINGS} names no token that ends a text (sep_token or eos_token)")
    pad = _first(special, "pad", "unk", "eos")
    key = cache.content_hash({_FILE: folder / _FILE})
    assert pad is not None
    return Tokens(text.byte_pairs(tokenizer), tokenizer.get_vocab_size(), key, begin, end, pad, of_a_user=True)


def _special(tokenizer: Tokenizer, settings: Mapping[str, Any], name: str) -> int | None:
    named = settings.get(f"{name}_token")
    content = named.get("content") if isinstance(named, dict) else named
    return tokenizer.token_to_id(content) if isinstance(content, str) else None


def _first(special: Mapping[str, int | None], *names: str) -> int | None:
    return next((special[name] for name in names if special[name] is not None), None)
