"""The embedded text: what is in it, how it is split, and that tokens give the text back."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from baselines import documents, text
from baselines.bert import Bert
from baselines.gpt import Gpt


@pytest.fixture(scope="module")
def tokenizer():
    documents = ["def f(x):\n    return x + 1\n", "the quick brown fox – ünïcode 🦊"] * 10
    tokenizer = text._trained(documents, 300)
    tokenizer.encode_special_tokens = True
    return tokenizer


@given(document=st.text())
def test_tokens_give_the_text_back(tokenizer, document):
    ids = tokenizer.encode(document).ids
    assert tokenizer.decode(ids) == document
    assert all(token >= len(text.SPECIAL) for token in ids), "text may not forge a special token"


def test_text_that_spells_a_special_token_stays_text(tokenizer):
    document = f"a {text.SPECIAL[text.MASK]} b"
    ids = tokenizer.encode(document).ids
    assert text.MASK not in ids
    assert tokenizer.decode(ids) == document


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8), length=st.integers(4, 16))
def test_packing_keeps_every_token_in_order(tokenizer, lengths, length):
    documents = ["x " * n for n in lengths]
    stream = [token for document in documents for token in [*tokenizer.encode(document).ids, text.SEP]]
    encode = text.byte_pairs(tokenizer)
    plain = text._packed(encode(documents), length, framed=False)
    assert plain.flatten().tolist() == stream[: len(stream) // length * length]
    framed = text._packed(encode(documents), length, framed=True)
    assert framed.shape[1] == length
    assert (framed[:, 0] == text.CLS).all()
    assert (framed[:, -1] == text.SEP).all()
    assert framed[:, 1:-1].flatten().tolist() == stream[: len(stream) // (length - 2) * (length - 2)]


def module(name: str, letters: int = 1000) -> documents.Module:
    return documents.Module((f"{documents.PYTHON}/{name}",), letters, (documents.hashed(name),))


@given(names=st.sets(st.text("abc", min_size=1), min_size=1, max_size=60), extra=st.text("abc", min_size=1))
def test_each_module_is_in_one_part_and_stays_there_whatever_is_added(names, extra):
    def chosen(names):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(documents, "listed", lambda: tuple(map(module, names)))
            patch.setattr(text, "_SOURCE_SHARES", (0.2, 0.3))
            return text._chosen("source", 1 << 30)

    before, after = chosen(names), chosen(names | {extra})
    assert sorted(itertools.chain(*before.values())) == sorted(map(module, names))
    assert all(set(before[part]) <= set(after[part]) for part in before)


@pytest.mark.parametrize("split", ["source", "adapt"])
def test_the_embedded_modules_are_shared_out_as_they_should_be(split):
    chosen = text._chosen(split, 1 << 30)
    count = sum(map(len, chosen.values()))
    for part, share in zip(
        ("test", "validation"), text._SOURCE_SHARES if split == "source" else text._ADAPT_SHARES, strict=True
    ):
        deviation = math.sqrt(share * (1 - share) / count)  # of a binomial share
        assert abs(len(chosen[part]) / count - share) < 3 * deviation
    texts = [each for part in chosen.values() for module in part for each in module.hashes]
    assert len(texts) == len(set(texts)), "no docstring is in two parts"


def test_adapt_is_another_library_than_the_source():
    libraries = [
        {module.library for part in text._chosen(split, 1 << 30).values() for module in part}
        for split in ("source", "adapt")
    ]
    assert libraries == [{documents.PYTHON, *text._LIBRARIES}, {text._ADAPT}]
    assert set.union(*libraries) == {module.library for module in documents.listed()}


def test_a_larger_size_trains_on_more_and_is_tested_on_the_same():
    small, large = (text._chosen("pretrain", text._LIMIT[size]) for size in ("nano", "mini"))
    assert small["train"] == large["train"][: len(small["train"])]
    assert (small["test"], small["validation"]) == (large["test"], large["validation"])
    letters = [each.letters for each in small["train"]]
    assert sum(letters[:-1]) < text._LIMIT["nano"] <= sum(letters)


@given(document=st.text())
def test_characters_are_the_letters_and_single_spaces(document):
    letters = text.normalised(document)
    assert set(letters) <= set(text.ALPHABET)
    assert "  " not in letters and letters == letters.strip() == text.normalised(letters)
    (tokens,) = text.characters([document])
    assert text.spelled(torch.from_numpy(tokens)) == letters


def test_what_is_no_letter_is_a_space_and_special_tokens_are_shown():
    assert text.normalised("  It's 2 dicts:\n{'Kelvin': None} … ") == "it s dicts kelvin none"
    (tokens,) = text.characters(["a b"])
    row = torch.tensor([text.CLS, *tokens, text.MASK, text.SEP, text.PAD])
    assert text.spelled(row) == "^a b_.~"
    assert text.CHARACTERS < 40


def test_preparation_is_the_same_in_a_fresh_cache(tmp_path, monkeypatch):
    first = Gpt().data("nano", "adapt")
    monkeypatch.setenv("LEANTRAIN_CACHE", str(tmp_path))
    second = Gpt().data("nano", "adapt")
    assert second.sha256 == first.sha256
    assert np.array_equal(first.train.tensors["input_ids"], second.train.tensors["input_ids"])


def test_what_has_been_read_is_kept_when_the_rest_is_interrupted(tmp_path, monkeypatch):
    monkeypatch.setenv("LEANTRAIN_CACHE", str(tmp_path))
    read, asked = text.documents.read, []

    def interrupted(modules):
        asked.append(modules[0].library)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return read(modules)

    monkeypatch.setattr(text.documents, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        text._texts("pretrain", None, text._LIMIT["pico"])
    found = text._texts("pretrain", None, text._LIMIT["pico"])
    assert len(asked) > 3 and len(set(asked)) == len(asked) - 1, "each library once, but the one that was interrupted"
    chosen = text._chosen("pretrain", text._LIMIT["pico"])
    assert found.train == [each.text for each in read(chosen["train"]) if each.text]


@pytest.mark.parametrize("baseline", [Bert(), Gpt()])
def test_shapes_are_those_of_the_data_and_read_nothing(baseline, monkeypatch):
    data = baseline.data("pico", "pretrain")
    monkeypatch.setattr(text, "_texts", lambda *_: pytest.fail("text was read"))
    monkeypatch.setattr(text.cache, "prepared", lambda *_: pytest.fail("something was prepared"))
    shapes = baseline.shapes("pico", "pretrain")
    (batch, _), (shaped, _) = data.batch(0, 0, 2), shapes.batch(0, 0, 2)
    assert {name: (each.shape, each.dtype) for name, each in batch.items() if each.ndim > 1} == {
        name: (each.shape, each.dtype) for name, each in shaped.items() if each.ndim > 1
    }
