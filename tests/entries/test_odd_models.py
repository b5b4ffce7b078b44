"""Odd model folders: each is taken, or refused in one sentence, with no error of a library's or of Python's own."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from leantrain.train_step import script
from suite.entries import checkpoints
from suite.entries.setting import check_model
from suite.model.attributes import check_numbers
from suite.record.job import Setting

GPT = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 64,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
}


def cfg(**values: Any) -> str:
    return json.dumps({**GPT, **values})


CONFIGURATIONS: dict[str, str | bytes] = {
    "plain": cfg(),
    "deep list": "[" * 100000 + "]" * 100000,
    "deep object": '{"a":' * 100000 + "1" + "}" * 100000,
    "deep value": cfg()[:-1] + ',"x":' + "[" * 100000 + "]" * 100000 + "}",
    "empty": "",
    "null": "null",
    "list": "[]",
    "number": "3",
    "string": '"gpt2"',
    "truncated": cfg()[:40],
    "bom": "\ufeff" + cfg(),
    "nan": cfg(n_embd=float("nan")),
    "latin": b'{"model_type":"gpt2\xfc"}',
    "nul": b"\0" * 100,
    "n_embd 32.5": cfg(n_embd=32.5),
    "n_embd text": cfg(n_embd="32"),
    "n_embd null": cfg(n_embd=None),
    "n_embd 0": cfg(n_embd=0),
    "n_embd -1": cfg(n_embd=-32),
    "n_embd odd": cfg(n_embd=33),
    "n_embd huge": cfg(n_embd=10**30),
    "n_embd list": cfg(n_embd=[32]),
    "n_embd true": cfg(n_embd=True),
    "n_layer 0": cfg(n_layer=0),
    "n_layer -1": cfg(n_layer=-1),
    "n_layer 2.5": cfg(n_layer=2.5),
    "n_layer text": cfg(n_layer="2"),
    "n_head 0": cfg(n_head=0),
    "n_head 3": cfg(n_head=3),
    "n_head 4.0": cfg(n_head=4.0),
    "vocab 0": cfg(vocab_size=0),
    "vocab -1": cfg(vocab_size=-1),
    "vocab text": cfg(vocab_size="x"),
    "vocab null": cfg(vocab_size=None),
    "vocab 64.5": cfg(vocab_size=64.5),
    "positions 0": cfg(n_positions=0),
    "positions text": cfg(n_positions="64"),
    "positions null": cfg(n_positions=None),
    "dtype evil": cfg(dtype="evil"),
    "torch_dtype evil": cfg(torch_dtype="evil"),
    "dtype 3": cfg(dtype=3),
    "dtype list": cfg(dtype=["float32"]),
    "dtype int8": cfg(dtype="int8"),
    "dtype module": cfg(dtype="nn"),
    "activation": cfg(activation_function="evil"),
    "activation 3": cfg(activation_function=3),
    "dropout 2": cfg(resid_pdrop=2),
    "dropout text": cfg(attn_pdrop="x"),
    "dropout nan": cfg(embd_pdrop=float("nan")),
    "dropout 1": cfg(embd_pdrop=1.0),
    "dropout -0.1": cfg(summary_first_dropout=-0.1),
    "n_inner -1": cfg(n_inner=-64),
    "n_positions -1": cfg(n_positions=-64),
    "type missing": json.dumps({k: v for k, v in GPT.items() if k != "model_type"}),
    "type 3": cfg(model_type=3),
    "type list": cfg(model_type=["gpt2"]),
    "type null": cfg(model_type=None),
    "type evil": cfg(model_type="evil"),
    "type resnet": json.dumps({"model_type": "resnet"}),
    "type bert": json.dumps({"model_type": "bert"}),
    "arch 3": cfg(architectures=3),
    "arch text": cfg(architectures="GPT2LMHeadModel"),
    "arch evil": cfg(architectures=["Evil"]),
    "arch nested": cfg(architectures=[["a"]]),
    "arch null": cfg(architectures=None),
    "attn evil": cfg(attn_implementation="evil"),
    "_attn evil": cfg(_attn_implementation="evil"),
    "auto_map": cfg(auto_map={"AutoConfig": "evil.Evil"}),
    "quant": cfg(quantization_config={"quant_method": "evil"}),
    "quant 3": cfg(quantization_config=3),
    "eps text": cfg(layer_norm_epsilon="x"),
    "init text": cfg(initializer_range="x"),
    "init -1": cfg(initializer_range=-1),
    "id2label": cfg(id2label=3),
    "id2label bad": cfg(id2label={"x": "y"}),
    "num_labels": cfg(num_labels="x"),
    "timm evil": json.dumps({"architecture": "evil"}),
    "timm 3": json.dumps({"architecture": 3}),
    "timm args": json.dumps({"architecture": "vit_tiny_patch16_224", "model_args": 3}),
    "timm args evil": json.dumps({"architecture": "vit_tiny_patch16_224", "model_args": {"evil": 1}}),
    "timm depth": json.dumps({"architecture": "vit_tiny_patch16_224", "model_args": {"depth": "x"}}),
    "timm dim": json.dumps({"architecture": "vit_tiny_patch16_224", "model_args": {"embed_dim": 32.5}}),
    "tf version": cfg(transformers_version=3),
    "n_inner text": cfg(n_inner="x"),
    "n_inner 1.5": cfg(n_inner=64.5),
    "pad": cfg(pad_token_id="x"),
    "use_cache": cfg(use_cache="x"),
    "attribute map": cfg(hidden_size=48),
    "tie": cfg(tie_word_embeddings="x"),
}


def st(header: Any, body: bytes = bytes(16), length: int | None = None) -> bytes:
    h = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(h) if length is None else length) + h + body


TENSOR = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}


def e(**k: Any) -> Any:
    return {"a": {**TENSOR, **k}}


WEIGHTS: dict[str, bytes] = {
    "empty": b"",
    "short": b"\0\0",
    "whole": st(e()),
    "offsets text": st(e(data_offsets="09")),
    "offsets list text": st(e(data_offsets=["0", "16"])),
    "offsets null": st(e(data_offsets=None)),
    "offsets one": st(e(data_offsets=[16])),
    "offsets float": st(e(data_offsets=[0, 16.0])),
    "offsets neg": st(e(data_offsets=[-4, 16])),
    "offsets true": st(e(data_offsets=[False, 16])),
    "offsets huge": st(e(data_offsets=[0, 10**30])),
    "shape text": st(e(shape="4")),
    "shape neg": st(e(shape=[-4])),
    "shape float": st(e(shape=[4.5])),
    "shape null": st(e(shape=[None])),
    "shape huge": st(e(shape=[10**400])),
    "shape nan": st(b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,16]}}'),
    "shape inf": st(b'{"a":{"dtype":"F32","shape":[1e999],"data_offsets":[0,16]}}'),
    "dtype evil": st(e(dtype="evil")),
    "dtype 3": st(e(dtype=3)),
    "deep": st(b"[" * 100000 + b"]" * 100000),
    "deep value": st(b'{"a":' + b"[" * 100000 + b"]" * 100000 + b"}"),
    "list": st([]),
    "entry list": st({"a": [1]}),
    "entry null": st({"a": None}),
    "meta only": st({"__metadata__": {}}),
    "length huge": st(e(), length=2**63),
    "length zero": st(e(), length=0),
    "not json": st(b"x" * 50),
    "latin": st(b'{"\xfc":1}'),
    "cut": st(e(), b"\0" * 8),
    "long": st(e(), b"\0" * 32),
}

INDICES: dict[str, bytes] = {
    "index deep": b"[" * 100000,
    "index map list": b'{"weight_map":[1]}',
    "index nested": b'{"weight_map":{"a":["b"]}}',
    "index null": b"null",
    "index evil": b'{"weight_map":{"a":"../../etc/passwd"}}',
    "index missing": b'{"weight_map":{"a":"b.safetensors"}}',
    "index num": b'{"weight_map":{"a":3}}',
    "index mixed": b'{"weight_map":{"a":3,"b":"c"}}',
    "index empty": b'{"weight_map":{}}',
}
PLAIN = {
    "plain",
    "type bert",
    "arch 3",
    "arch text",
    "arch nested",
}
TAKEN = {"arch evil", "arch null", "auto_map", "quant", "tf version", "attribute map", *PLAIN}
"""What does no harm: what a library looks at nowhere, or the baseline sets itself."""
BLAMED = ("--model ", "no Transformer blocks in ")


def outcome(work: Callable[[], Any]) -> str:
    """ "" of what is taken, else the sentence. Raises whatever is none."""
    try:
        work()
    except (ValueError, OSError) as refusal:
        said = str(refusal)
        assert said.startswith(BLAMED) and "\n" not in said and len(said) < 500, said
        return said
    return ""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_configuration_is_taken_or_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    content = CONFIGURATIONS[name]
    (tmp_path / "config.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    setting = Setting(baseline="gpt", size="pico", recipe="classic", model=str(tmp_path))
    of_the_run, of_the_script = outcome(lambda: check_model(setting)), outcome(lambda: script("lion", str(tmp_path)))
    if name not in TAKEN:
        assert of_the_run or of_the_script
    if name == "plain":
        assert not of_the_run and not of_the_script


NUMBERS = {
    "vocab 0": "vocab_size is 1 or more, not 0",
    "vocab -1": "vocab_size is 1 or more, not -1",
    "positions 0": "n_positions is 1 or more, not 0",
    "n_inner -1": "n_inner is 0 or more, not -64",
    "dropout nan": "embd_pdrop is a probability in [0, 1), not nan",
    "dropout 1": "embd_pdrop is a probability in [0, 1), not 1",
    "dropout -0.1": "summary_first_dropout is a probability in [0, 1), not -0.1",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_no_library_looks_at_are_refused_by_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(str(CONFIGURATIONS[name]))
    setting = Setting(baseline="gpt", size="pico", recipe="classic", model=str(tmp_path))
    for work in (lambda: check_model(setting), lambda: script("lion", str(tmp_path))):
        assert NUMBERS[name] in outcome(work)


def test_the_parts_of_a_model_and_timms_arguments_are_looked_at_too(tmp_path: Path) -> None:
    towers = {"model_type": "clip", "text_config": {"vocab_size": 64, "attention_dropout": 1.5}}
    arguments = {"depth": 2, "embed_dim": 32, "num_heads": 4, "drop_path_rate": math.nan}
    timms = {"architecture": "vit_tiny_patch16_224", "model_args": arguments}
    for content, said in (
        (towers, "attention_dropout is a"),
        (timms, "drop_path_rate is a probability in [0, 1)"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(content))
        assert said in outcome(lambda: script("lion", str(tmp_path)))


def test_what_libraries_mean_by_minus_one_is_taken() -> None:
    """As their own configurations have it."""
    for kind in ("phi4_multimodal", "deberta-v2", "gpt2", "vit"):
        check_numbers(vars(CONFIG_MAPPING[kind]()))


@pytest.mark.parametrize("name", [*WEIGHTS, *INDICES])
def test_weights_are_whole_or_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(cfg())
    file = checkpoints.SINGLE if name in WEIGHTS else checkpoints.INDEX
    (tmp_path / file).write_bytes({**WEIGHTS, **INDICES}[name])
    said = outcome(lambda: checkpoints.stored_tensors(tmp_path))
    assert (said == "") == (name == "whole")


def test_a_timm_folder_is_built_with_its_arguments(tmp_path: Path) -> None:
    """Also where it has no weights: the script trains the model that the folder describes, and no other."""
    arguments = {"depth": 2, "embed_dim": 32, "num_heads": 4}
    content = {"architecture": "vit_tiny_patch16_224", "model_args": arguments}
    (tmp_path / "config.json").write_text(json.dumps(content))
    text = script("lion", str(tmp_path))
    assert "timm.create_model('vit_tiny_patch16_224', pretrained=False, depth=2, embed_dim=32, num_heads=4)" in text
