"""A user's own checkpoint: adapted where it is whole and of its configuration's architecture, else refused in words."""

import json
import struct
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForMaskedLM, BertModel, GPT2Config, GPT2LMHeadModel

from suite.entries import checkpoints
from suite.entries.adapting import baseline_for
from suite.entries.jobs import run_of
from suite.entries.pretrained import checkpoint
from suite.entries.setting import check_model
from suite.record.job import Job, Setting

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "a", "dull"]
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def tokenizer(folder: Path) -> None:
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(folder / "tokenizer.json"))
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": {"content": "[PAD]"}, "unk_token": "[UNK]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "own"
    torch.manual_seed(1)
    BertForMaskedLM(BertConfig(vocab_size=len(WORDS), **TINY)).save_pretrained(path)
    tokenizer(path)
    return path


@pytest.fixture
def labelled(tmp_path: Path) -> str:
    texts = [("a good film", 1), ("a bad film", 0), ("a dull film", 0), ("good", 1)] * 12
    lines = [
        json.dumps({"sentence": f"{text} {'a ' * (number % 7)}", "label": label})
        for number, (text, label) in enumerate(texts)
    ]
    (tmp_path / "reviews.jsonl").write_text("\n".join(lines))
    return str(tmp_path / "reviews.jsonl")


def setting(folder: Path, data: str | None = None) -> Setting:
    return Setting(baseline="bert", size="pico", recipe="classic", task="adapt", data=data, model=str(folder), steps=4)


def test_its_weights_and_its_tokens_are_what_an_adapted_model_starts_from(folder: Path, labelled: str) -> None:
    own = setting(folder, labelled)
    with pytest.warns(UserWarning, match=r"begin afresh: classifier\.weight, classifier\.bias"):
        check_model(own)
    run = run_of(Job(setting=own, stack="lora:rank=2"), baseline=baseline_for(own), weights=checkpoint(own))
    theirs = BertForMaskedLM.from_pretrained(folder).bert
    state = {name.replace(".linear.", "."): each for name, each in run.model.bert.state_dict().items()}
    assert all(torch.equal(each, state[name]) for name, each in theirs.state_dict().items() if "pooler" not in name)
    row = run.data.train.tensors["input_ids"][0].tolist()
    assert row[0] == WORDS.index("[CLS]") and WORDS[row[1]] in ("a", "good") and WORDS.index("[SEP]") in row
    assert run.model.classifier.weight.requires_grad
    run.train(4)
    assert 0 <= run.evaluate("test")["accuracy"] <= 1


def test_the_base_model_alone_is_enough(folder: Path, labelled: str) -> None:
    theirs = BertModel(BertConfig(vocab_size=len(WORDS), **TINY), add_pooling_layer=False)
    theirs.save_pretrained(folder)  # names without "bert."
    weights = torch.load(checkpoint(setting(folder, labelled)), weights_only=True)
    assert torch.equal(weights["bert.encoder.layer.0.output.dense.weight"], theirs.encoder.layer[0].output.dense.weight)
    assert not any(name.startswith("classifier") for name in weights)


def test_other_weights_are_another_checkpoint(folder: Path, labelled: str) -> None:
    first = checkpoint(setting(folder, labelled))
    assert checkpoint(setting(folder, labelled)) == first
    torch.manual_seed(2)
    BertForMaskedLM(BertConfig(vocab_size=len(WORDS), **TINY)).save_pretrained(folder)
    assert checkpoint(setting(folder, labelled)) != first


def test_a_configuration_alone_is_pretrained_here(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert checkpoints.weight_files(folder) == []
    check_model(setting(folder))


def test_another_architecture_is_refused(folder: Path, labelled: str, tmp_path: Path) -> None:
    GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=10)).save_pretrained(tmp_path / "gpt2")
    (folder / "model.safetensors").write_bytes((tmp_path / "gpt2" / "model.safetensors").read_bytes())
    with pytest.raises(ValueError, match=r"of another architecture than its config\.json says: 32 of 32 parameters"):
        check_model(setting(folder, labelled))
    with pytest.raises(ValueError, match="of another architecture"):
        checkpoint(setting(folder, labelled))


def test_deeper_than_its_weights_is_another_architecture(folder: Path, labelled: str) -> None:
    BertConfig(vocab_size=len(WORDS), **TINY | {"num_hidden_layers": 3}).save_pretrained(folder)
    with pytest.raises(ValueError, match=r"16 of 48 parameters of the blocks are missing.* bert\.encoder\.layer\.2"):
        check_model(setting(folder, labelled))


@pytest.mark.parametrize("kept", [0, 5, 40, -1, -1000])
def test_a_file_that_is_cut_off_is_refused(folder: Path, labelled: str, kept: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"model\.safetensors is cut off or damaged .*: the download is not complete"):
        check_model(setting(folder, labelled))


@pytest.mark.parametrize(
    "header", [b"[]", b"{}", b'{"a": 1}', b'{"a": {"data_offsets": "x", "shape": [1]}}', b"version https://git-lfs"]
)
def test_what_is_no_safetensors_is_refused(folder: Path, header: bytes) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(ValueError, match="is cut off or damaged"):
        checkpoints.stored_tensors(folder)


def test_a_shard_that_is_missing_is_refused_by_name(folder: Path, labelled: str) -> None:
    BertForMaskedLM.from_pretrained(folder).save_pretrained(folder, max_shard_size="20KB")
    (folder / "model.safetensors").unlink()
    shards = checkpoints.weight_files(folder)
    assert len(shards) > 1
    check_model(setting(folder, labelled))
    shards[0].unlink()
    with pytest.raises(ValueError, match=rf"1 of {len(shards)} weight files are missing, {shards[0].name}"):
        check_model(setting(folder, labelled))
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(ValueError, match=r"is there, but neither model\.safetensors nor"):
        checkpoints.weight_files(folder)


def test_an_index_names_files_beside_it_alone(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"a": "../../elsewhere.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="which is no file beside it"):
        checkpoints.weight_files(folder)


def test_what_may_hold_code_is_not_read(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="may hold code and is not read"):
        checkpoints.weight_files(folder)


def test_text_in_tokens_that_it_does_not_know_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="knows nothing of the letters"):
        check_model(setting(folder))


def test_without_its_tokenizer_it_is_refused(folder: Path, labelled: str) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="needs the tokens that it was trained with"):
        check_model(setting(folder, labelled))
