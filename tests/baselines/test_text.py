"""The embedded text: what is in it, how it is split, and that tokens give the text back."""

import ast
import itertools
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from baselines import text
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


def test_source_is_the_library_without_tests_packages_or_this_machine():
    files = text._source_files()
    assert {"ast.py", "json/decoder.py"} <= set(files)
    parts = {part for name in files for part in Path(name).parts}
    assert not parts & {"test", "tests", "site-packages", "pydoc_data"}
    assert not any("_sysconfigdata" in name for name in files)
    assert list(files) == list(text._source_files())


def test_topics_are_read_without_running_the_module(tmp_path):
    topics = text._topics("import os\ntopics = {'a': 'one' 'two', 'b': '''three'''}\n")
    assert topics == {"a": "onetwo", "b": "three"}
    with pytest.raises(ValueError, match="malformed"):
        text._topics("topics = {'a': print('run')}")
    with pytest.raises(ValueError, match="defines no topics"):
        text._topics("other = 1")
    module = (Path(sysconfig.get_path("stdlib")) / "pydoc_data" / "topics.py").read_text("utf-8")
    assert text._topics(module).keys() >= {"assert", "while", "with"}
    assert ast.parse(module)


@given(names=st.sets(st.text(), min_size=1, max_size=60), extra=st.text())
def test_each_document_is_in_one_part_and_stays_there_whatever_is_added(names, extra):
    def parts(names):
        divided = text._divided("", names, lambda name: f"text of {name}", (0.2, 0.3), 1 << 30)
        return divided.train, divided.validation, divided.test

    before, after = parts(names), parts(names | {extra})
    assert sorted(itertools.chain(*before)) == sorted(f"text of {name}" for name in names)
    assert all(set(small) <= set(large) for small, large in zip(before, after, strict=True))


def test_the_embedded_documents_are_shared_out_as_they_should_be():
    for split, (test, validation) in (("source", text._LIBRARY_SHARES), ("adapt", text._TOPICS_SHARES)):
        found = text._texts(split, None, limit_bytes=1 << 30, in_characters=False)
        parts = [found.test, found.validation, found.train]
        # Some modules of the library are identical stubs; what matters is that no real one is in two parts.
        long = [{document for document in part if len(document) > 500} for part in parts]
        assert len(set.union(*long)) == sum(map(len, long))
        shares = np.array([len(part) for part in parts]) / sum(map(len, parts))
        assert shares == pytest.approx([test, validation, 1 - test - validation], abs=0.09)  # of 80 topics


def test_a_limit_takes_a_prefix_of_each_part():
    small, whole = (text._texts("source", None, limit, in_characters=False) for limit in (1 << 18, 1 << 30))
    for part in ("train", "validation", "test"):
        few, all_ = getattr(small, part), getattr(whole, part)
        assert few == all_[: len(few)]
        assert sum(map(len, few[:-1])) < 1 << 18 <= sum(map(len, few))


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


def test_docstrings_are_those_of_modules_classes_and_functions():
    code = '"""one"""\nclass A:\n    """two"""\n    def f(self):\n        "three"\n        "four"\nx = "five"\n'
    assert text.docstrings(code).split() == ["one", "two", "three"]


def test_preparation_is_the_same_in_a_fresh_cache(tmp_path, monkeypatch):
    first = Gpt().data("nano", "adapt")
    monkeypatch.setenv("LEANTRAIN_CACHE", str(tmp_path))
    second = Gpt().data("nano", "adapt")
    assert second.sha256 == first.sha256
    assert np.array_equal(first.train.tensors["input_ids"], second.train.tensors["input_ids"])
