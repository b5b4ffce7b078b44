"""The embedded text: what is in it, how it is split, and that tokens give the text back."""

import ast
import sysconfig
from pathlib import Path

import numpy as np
import pytest
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
    plain = text._packed(tokenizer, documents, length, framed=False)
    assert plain.flatten().tolist() == stream[: len(stream) // length * length]
    framed = text._packed(tokenizer, documents, length, framed=True)
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


def test_no_document_is_both_trained_and_tested_on():
    for split, share in (("source", text._SOURCE_TEST_SHARE), ("adapt", text._PROSE_TEST_SHARE)):
        found = text._texts(split, None, limit_bytes=1 << 30)
        # Some modules of the library are empty or identical stubs; what matters is that no real one is in both.
        assert not {d for d in found.train if len(d) > 500} & {d for d in found.test if len(d) > 500}
        assert len(found.test) == pytest.approx(share * (len(found.train) + len(found.test)), abs=1)


def test_a_limit_takes_a_prefix_and_leaves_the_test_documents_alone():
    small, whole = (text._texts("source", None, limit) for limit in (1 << 20, 1 << 30))
    assert small.train == whole.train[: len(small.train)]
    assert 0.9 * (1 << 20) < sum(map(len, small.train)) < 2 * (1 << 20)
    assert small.test == whole.test


def test_preparation_is_the_same_in_a_fresh_cache(tmp_path, monkeypatch):
    first = Gpt().data("nano", "adapt")
    monkeypatch.setenv("LEANTRAIN_CACHE", str(tmp_path))
    second = Gpt().data("nano", "adapt")
    assert second.sha256 == first.sha256
    assert np.array_equal(first.train.tensors["input_ids"], second.train.tensors["input_ids"])
