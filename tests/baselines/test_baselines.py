"""What holds for every baseline: it learns, is deterministic, and can be replaced; its recipes differ as they say."""

import copy
import json
from dataclasses import replace

import pytest
import torch
from transformers import (
    BertConfig,
    DeiTConfig,
    GPT2Config,
    LlamaConfig,
    RobertaConfig,
    T5Config,
    ViTConfig,
    ViTMAEConfig,
)
from transformers.pipelines import SUPPORTED_TASKS

from baselines import bert, gpt, text
from baselines.bert import Bert
from baselines.gpt import Gpt
from baselines.mae import Mae
from baselines.recipes import FP32_SIZES
from baselines.text import CHARACTERS, PAD
from baselines.vit import Vit
from suite.judge.ruler import BUDGETS
from suite.meters.state import parameter_count
from suite.model.anatomy import NoAttention, NoBlocks, anatomy
from suite.record.job import SIZES, TASKS

BASELINES = [Bert(), Gpt(), Vit(), Mae()]
each = pytest.mark.parametrize("baseline", BASELINES, ids=lambda baseline: baseline.id)


@each
def test_learns_within_a_few_steps(baseline):
    """One batch over and over: wrong gradients, a detached branch or mispaired targets would keep the loss up."""
    torch.manual_seed(0)
    data, recipe = baseline.data("nano", "pretrain"), baseline.recipe("nano", "classic", "pretrain")
    model = baseline.model("nano", data)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate / 2)
    batch, _ = data.batch(0, 0, 8)
    history = []
    for _ in range(24):
        loss = baseline.losses(baseline.forward(model, batch), batch).mean()
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)
        optimizer.step()
        optimizer.zero_grad()
        history.append(loss.item())
    assert history[-1] < 0.85 * history[0]


@each
def test_the_hub_knows_the_task(baseline):
    assert baseline.hub_task in SUPPORTED_TASKS


@each
@pytest.mark.parametrize("split", ["pretrain", "source", "adapt"])
def test_batches_and_shapes(baseline, split):
    data = baseline.data("nano", split)
    again = baseline.data("nano", split)
    assert (data.name, data.sha256) == (again.name, again.sha256)
    batch, indices = data.batch(3, 100, 8)
    repeated, _ = again.batch(3, 100, 8)
    other, _ = data.batch(4, 100, 8)
    assert batch.keys() == repeated.keys()
    assert all(torch.equal(batch[name], repeated[name]) for name in batch)
    assert not all(torch.equal(batch[name], other[name]) for name in batch)
    assert all(len(tensor) == len(indices) == 8 for tensor in batch.values())
    for part in ("validation", "test"):
        first, second = data.held_out(part, 8), again.held_out(part, 8)
        assert all(torch.equal(a[name], b[name]) for a, b in zip(first, second, strict=True) for name in a)
    assert 50 <= len(data.validation) <= 1200, "runs ask for it again and again"
    assert 50 <= len(data.test) <= 7200
    model = baseline.model("nano", data)
    outputs = baseline.forward(model, batch)
    losses = baseline.losses(outputs, batch)
    assert losses.shape == (8,)
    assert losses.dtype == torch.float32
    for values in baseline.metrics(outputs, batch).values():
        assert values.shape == (8,)
        assert ((values >= 0) & (values <= 1)).all()


@each
def test_splits_differ_and_models_fit_all_of_them(baseline):
    splits = [baseline.data("nano", split) for split in ("pretrain", "source", "adapt")]
    assert splits[1].sha256 != splits[2].sha256
    shapes = [{k: v.shape for k, v in baseline.model("nano", data).state_dict().items()} for data in splits]
    assert shapes[0] == shapes[1] == shapes[2], "a checkpoint of the source must load for adapting"


@each
def test_model_follows_the_seed(baseline):
    data = baseline.data("nano", "pretrain")
    states = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        states.append(torch.cat([p.detach().flatten() for p in baseline.model("nano", data).parameters()]))
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


@each
def test_recipes_differ_only_in_how_they_run(baseline):
    for size in SIZES:
        for task in TASKS:
            classic, modern, compiled = (
                baseline.recipe(size, name, task) for name in ("classic", "modern", "compiled")
            )
            assert (classic.precision, classic.fused_attention, classic.fused_optimizer) == ("fp32", False, False)
            precision = "fp32" if size in FP32_SIZES else "bf16"
            assert (modern.precision, modern.fused_attention, modern.fused_optimizer) == (precision, True, True)
            assert not classic.compile
            assert not modern.compile
            assert replace(compiled, compile=False) == modern
            assert replace(modern, precision="fp32", fused_attention=False, fused_optimizer=False) == classic
            assert classic.learning_rate_at(classic.steps - 1) < 0.01 * classic.learning_rate


@pytest.mark.parametrize(
    ("baseline", "size", "millions"),
    [  # the papers' sizes; BERT and MAE with their heads and decoder, ViT with 10 classes for the papers' 1000
        (Bert(), "base", 109.5),
        (Bert(), "large", 335.2),
        (Gpt(), "base", 124.4),
        (Gpt(), "large", 354.8),
        (Vit(), "base", 85.8),
        (Vit(), "large", 303.3),
        (Mae(), "base", 111.9),
        (Mae(), "large", 329.5),
    ],
)
def test_base_and_large_are_the_papers(baseline, size, millions):
    data = baseline.data(size if baseline.modality == "image" else "nano", "pretrain")
    with torch.device("meta"):
        model = baseline.model(size, data)
    assert sum(parameter.numel() for parameter in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.15)


@each
def test_sizes_are_in_order_and_the_smallest_has_two_blocks(baseline):
    data = {size: baseline.data(size if baseline.modality == "image" else "pico", "pretrain") for size in SIZES}
    with torch.device("meta"):
        built = [baseline.model(size, data[size]) for size in SIZES]
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in built]
    assert counts == sorted(counts) and SIZES[0] == "pico"
    assert anatomy(built[0]).depth == 2
    assert counts[0] < 40_000


@pytest.mark.parametrize("baseline", [Bert(), Gpt()], ids=lambda baseline: baseline.id)
def test_the_ladder_of_text_has_one_row_length_and_as_many_tokens_a_parameter_and_no_epoch_twice(baseline):
    length = {"bert": bert.LENGTH, "gpt": gpt.LENGTH}[baseline.id]
    tokens, parameters, letters = {}, {}, {}
    for size in ("nano", "micro", "mini"):
        with torch.device("meta"):
            parameters[size] = sum(each.numel() for each in baseline.model(size, None).parameters())
        recipe = baseline.recipe(size, "modern", "pretrain")
        tokens[size] = recipe.steps * recipe.batch_size * length[size]
        letters[size] = sum(module.letters for module in text._chosen("pretrain", text._LIMIT[size])["train"])
    assert length["nano"] == length["micro"] == length["mini"]
    shares = [tokens[size] / parameters[size] for size in tokens]
    assert max(shares) < 1.02 * min(shares)
    rows = baseline.data("nano", "pretrain").train.tensors["input_ids"]
    spaced = rows.numel() / letters["nano"]  # tokens a letter, spaces and framing included
    assert all(tokens[size] < spaced * letters[size] for size in tokens)
    assert tokens["nano"] * max(BUDGETS) < rows.numel(), "nor does any run of nano's ruler"


_TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
_VIT = {**_TINY, "image_size": 224, "patch_size": 2}


@pytest.mark.parametrize(
    ("baseline", "config"),
    [
        (Bert(), BertConfig(vocab_size=100, max_position_embeddings=16, **_TINY)),
        (Gpt(), LlamaConfig(vocab_size=100, max_position_embeddings=16, num_key_value_heads=2, **_TINY)),
        (Gpt(), GPT2Config(vocab_size=5000, n_positions=8, n_embd=32, n_layer=2, n_head=2)),
        (Vit(), ViTConfig(**_VIT)),
        (Mae(), ViTMAEConfig(**_VIT, decoder_hidden_size=32, decoder_num_hidden_layers=1, norm_pix_loss=False)),
    ],
    ids=lambda value: getattr(value, "model_type", None) or getattr(value, "id", None),
)
def test_a_users_configuration_takes_the_models_place(tmp_path, baseline, config):
    config.save_pretrained(tmp_path)
    data = baseline.data("nano", "pretrain")
    model = baseline.model("nano", data, str(tmp_path))
    assert type(model.config) is type(config)
    batch, _ = data.batch(0, 0, 4)
    losses = baseline.losses(baseline.forward(model, batch), batch)
    assert losses.shape == (4,)
    assert losses.isfinite().all()
    if baseline.modality == "text":
        assert model.config.vocab_size == max(config.vocab_size, CHARACTERS)
        ids = batch["input_ids"]
        changed = ids.clone()
        changed[:, -1] = (changed[:, -1] + 1) % CHARACTERS
        model.eval()
        a, b = (baseline.forward(model, {"input_ids": x}).logits[:, :-1] for x in (ids, changed))
        assert torch.allclose(a, b, atol=1e-5) == (baseline.id == "gpt"), "only GPT may not see the future"


def test_an_encoder_becomes_causal_for_gpt(tmp_path):
    BertConfig(vocab_size=100, **_TINY).save_pretrained(tmp_path)
    gpt = Gpt()
    model = gpt.model("nano", gpt.data("nano", "pretrain"), str(tmp_path)).eval()
    ids = torch.randint(4, CHARACTERS - 1, (2, 32))
    changed = ids.clone()
    changed[:, -1] += 1
    a, b = (gpt.forward(model, {"input_ids": x}).logits[:, :-1] for x in (ids, changed))
    torch.testing.assert_close(a, b)


def test_timm_models_take_vits_place():
    vit = Vit()
    data = vit.data("nano", "pretrain")
    batch, _ = data.batch(0, 0, 2)
    for name in ("vit_tiny_patch16_224", "deit3_small_patch16_224", "swin_tiny_patch4_window7_224"):
        model = vit.model("nano", data, name)
        assert anatomy(model).blocks[0].attention_output is not None
        assert vit.losses(vit.forward(model, batch), batch).shape == (2,)
        assert vit.forward(copy.deepcopy(model), batch).logits.shape == (2, 10), "which takes the small pictures, too"
    with pytest.raises(ValueError, match=r"did you mean .*vit_tiny_patch16_224"):
        vit.model("nano", data, "vit_tiny_patch16_225")


@pytest.mark.parametrize("name", ["convnext_atto", "resnet10t"])
def test_what_is_no_transformer_is_built_and_refused_as_such(name):
    """It takes pictures of any size, so their size must not be the reason."""
    vit = Vit()
    model = vit.model("pico", vit.data("pico", "pretrain"), name)
    with pytest.raises(NoBlocks, match="no Transformer blocks"):
        anatomy(model)


def test_a_timm_model_that_takes_no_pictures_so_small_gets_them_at_the_size_that_it_names(tmp_path):
    """CrossViT cuts them twice, and its configuration names 240."""
    vit = Vit()
    data = vit.data("pico", "pretrain")
    config = vit.families()["timm_crossvit"].config
    (tmp_path / "config.json").write_text(json.dumps(dict(config)))
    model = vit.model("pico", data, str(tmp_path))
    sides = []
    model.patch_embed[0].register_forward_pre_hook(lambda _, inputs: sides.append(inputs[0].shape[-1]))
    batch, _ = data.batch(0, 0, 2)
    assert vit.forward(model, batch).logits.shape == (2, 10) and sides == [240]


@pytest.mark.parametrize("name", ["clip", "wav2vec2", "ast", "whisper"])
def test_two_towers_and_models_of_speech_tell_pictures_apart(name, tmp_path):
    vit = Vit()
    data = vit.data("pico", "pretrain")
    (tmp_path / "config.json").write_text(json.dumps(dict(vit.families()[name].config)))
    model = vit.model("pico", data, str(tmp_path))
    batch, _ = data.batch(0, 0, 2)
    outputs = vit.forward(model.eval(), batch)
    assert outputs.logits.shape == (2, 10)
    vit.losses(outputs, batch).mean().backward()
    silent = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    assert not [name for name in silent if ".layers." in name], "both towers learn"
    other = {"pixel_values": batch["pixel_values"].flip(2), "labels": batch["labels"]}
    assert not torch.equal(vit.forward(model, other).logits, outputs.logits), "it sees the picture"


def test_a_folder_in_timms_form_is_a_model_and_loads_nothing(tmp_path):
    vit = Vit()
    data = vit.data("pico", "pretrain")
    arguments = {"depth": 3, "embed_dim": 32, "num_heads": 2, "patch_size": 8, "checkpoint_path": "/evil.pt"}
    config = {"architecture": "vit_tiny_patch16_224", "model_args": {**arguments, "pretrained": True}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = vit.model("pico", data, str(tmp_path))
    assert (anatomy(model).depth, anatomy(model).width) == (3, 32)
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_args": {**arguments, "num_heads": 5}}))
    with pytest.raises(ValueError, match="timm cannot build it for 32x32 images"):
        vit.model("pico", data, str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "vit_tiny_patch16_225"}))
    with pytest.raises(ValueError, match=r"did you mean .*vit_tiny_patch16_224"):
        vit.model("pico", data, str(tmp_path))


def test_pyramids_for_pictures_of_any_size_take_vits_place():
    """timm's pvt_v2 has no argument for the size of pictures."""
    vit = Vit()
    data = vit.data("pico", "pretrain")
    batch, _ = data.batch(0, 0, 2)
    assert vit.losses(vit.forward(vit.model("pico", data, "pvt_v2_b0"), batch), batch).isfinite().all()


def test_positions_after_the_paddings_own_have_room(tmp_path):
    """RoBERTa's first position is the one after padding's: 16 tokens need 16 + 1; BERT's first is 0."""
    bert = Bert()
    data = bert.data("pico", "pretrain")
    length = data.train.tensors["input_ids"].shape[1]
    batch, _ = data.batch(0, 0, 4)
    for config, rows in ((RobertaConfig, length + PAD + 1), (BertConfig, length)):
        config(vocab_size=64, max_position_embeddings=length, **_TINY).save_pretrained(tmp_path)
        model = bert.model("pico", data, str(tmp_path))
        assert model.config.max_position_embeddings == rows
        assert bert.losses(bert.forward(model, batch), batch).isfinite().all()


def test_an_encoder_decoder_fills_in_what_is_masked(tmp_path):
    T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0
    ).save_pretrained(tmp_path)
    bert = Bert()
    data = bert.data("pico", "pretrain")
    torch.manual_seed(0)
    model = bert.model("pico", data, str(tmp_path)).eval()
    batch, _ = data.batch(0, 0, 4)
    assert bert.losses(bert.forward(model, batch), batch).isfinite().all()
    changed = batch["input_ids"].clone()
    changed[:, -1] = (changed[:, -1] + 1) % CHARACTERS
    a, b = (bert.forward(model, {"input_ids": each}).logits[:, 0] for each in (batch["input_ids"], changed))
    assert not torch.allclose(a, b), "the first prediction hears the last token, through the encoder"


def test_a_model_with_two_heads_for_a_task_is_built(tmp_path):
    """DeiT's has one with and one without a teacher; transformers alone ends in a TypeError."""
    DeiTConfig(**{**_VIT, "patch_size": 8}).save_pretrained(tmp_path)
    vit = Vit()
    data = vit.data("pico", "pretrain")
    batch, _ = data.batch(0, 0, 2)
    assert vit.forward(vit.model("pico", data, str(tmp_path)), batch).logits.shape == (2, 10)


def test_what_a_library_cannot_build_is_one_sentence(tmp_path):
    LlamaConfig(**_TINY).save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**content, "hidden_act": "no_such_function"}))
    gpt = Gpt()
    with pytest.raises(ValueError, match=r"transformers cannot build it: KeyError: 'no_such_function'|cannot read"):
        gpt.model("pico", gpt.data("pico", "pretrain"), str(tmp_path))


UNTOLD = ("timm_coatnet", "timm_efficientformer")  # their blocks stand among convolutions, or have no linear layers


@pytest.mark.parametrize(("baseline", "name"), [(each, name) for each in BASELINES for name in each.families()])
def test_every_family_of_the_matrix_can_be_built(baseline, name, tmp_path):
    family = baseline.families()[name]
    (tmp_path / "config.json").write_text(json.dumps(family.config))
    data = baseline.data("pico", "pretrain")
    model = baseline.model("pico", data, str(tmp_path))
    assert parameter_count(model) < 400_000
    batch, _ = data.batch(0, 0, 2)
    assert baseline.losses(baseline.forward(model, batch), batch).isfinite().all()
    if family.transformer and name not in UNTOLD:
        assert sum(stack.depth for stack in anatomy(model).stacks) >= 1
    else:
        with pytest.raises(NoBlocks if family.transformer else NoAttention) as raised:
            anatomy(model)
        assert isinstance(raised.value, NoAttention) is not family.transformer


def test_models_that_cannot_serve_are_refused(tmp_path):
    for baseline in (Bert(), Gpt(), Mae()):
        with pytest.raises(FileNotFoundError, match=r"no config\.json"):
            baseline.model("nano", baseline.data("nano", "pretrain"), str(tmp_path))
    ViTConfig(**_VIT).save_pretrained(tmp_path)
    for baseline, missing in ((Bert(), "no masked language"), (Gpt(), "no causal"), (Mae(), "no masked image")):
        with pytest.raises(ValueError, match=missing):
            baseline.model("nano", baseline.data("nano", "pretrain"), str(tmp_path))
    ViTMAEConfig(**{**_VIT, "patch_size": 16}).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="patch_size to 2"):
        Mae().model("nano", Mae().data("nano", "pretrain"), str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "x", "auto_map": {"AutoConfig": "evil.Config"}}')
    (tmp_path / "evil.py").write_text("raise SystemExit('was run')")
    with pytest.raises(ValueError, match=r"cannot read config\.json"):
        Bert().model("nano", Bert().data("nano", "pretrain"), str(tmp_path))
