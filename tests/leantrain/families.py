"""Tiny models of many families, with a batch for each: three or four blocks a stack, 32 wide, no trained weights.

    >>> model, batch = FAMILIES["llama"]()
    >>> seeded(3)
    >>> loss_of(model, batch).backward()

A builder gives the same model each time, in training mode, with its library's own settings: dropout, layer drop, caches
of keys and values, attention. Most draw from torch's generator alone; speech models mask their input by NumPy's.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torchvision
import transformers as hf
from timm import create_model
from timm.models.mlp_mixer import MlpMixer
from torch import Tensor, nn

from baselines import families as brought
from tests.model import transformer_models as tiny
from tests.model.further_models import FURTHER

hf.logging.set_verbosity_error()

Batch = dict[str, Any]
Config = dict[str, Any]
Builder = Callable[[], tuple[nn.Module, Batch]]
EXAMPLES, LENGTH, ANSWER, SIDE, CLASSES, PATCHES, IMAGE_TOKEN = 4, 24, 12, 32, 10, 16, 63


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """The model's own loss where it has one."""
    if "classes" in batch:
        return F.cross_entropy(model(batch["images"]), batch["classes"])
    outputs = model(**batch)
    return outputs[0].square().mean() if outputs.get("loss") is None else outputs.loss


def seeded(seed: int) -> None:
    """Sets all generators that models draw from."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


# batches --------------------------------------------------------------------------------------------------------------


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def tokens(length: int = LENGTH) -> Tensor:
    return torch.randint(3, 60, (EXAMPLES, length), generator=torch.Generator().manual_seed(0))


def text() -> Batch:
    """The first text ends in padding."""
    ids = tokens()
    mask = torch.ones_like(ids)
    mask[0, LENGTH - 4 :] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def whole_text() -> Batch:
    return {"input_ids": tokens(), "labels": tokens()}


def two_texts() -> Batch:
    return {**text(), "labels": tokens(ANSWER)}


def classes() -> Tensor:
    return torch.arange(EXAMPLES) % CLASSES


def pixels() -> Batch:
    return {"pixel_values": drawn(EXAMPLES, 3, SIDE, SIDE)}


def images() -> Batch:
    return {**pixels(), "labels": classes()}


def bare_images() -> Batch:
    return {"images": drawn(EXAMPLES, 3, SIDE, SIDE), "classes": classes()}


def maps() -> Batch:
    return {**pixels(), "labels": (drawn(EXAMPLES, SIDE, SIDE) > 0).long()}


def boxed() -> Batch:
    """Two things in each image."""
    one = {"class_labels": torch.tensor([1, 2]), "boxes": torch.tensor([[0.3, 0.3, 0.2, 0.2], [0.6, 0.6, 0.3, 0.3]])}
    return {**pixels(), "labels": [one] * EXAMPLES}


def captioned() -> Batch:
    return {"input_ids": tokens(), "attention_mask": text()["attention_mask"], **pixels(), "return_loss": True}


def patched() -> Batch:
    """Texts, and images of 4 x 4 patches that one of them fills up to."""
    mask = torch.ones(EXAMPLES, PATCHES, dtype=torch.long)
    return {
        "input_ids": tokens(),
        "pixel_values": drawn(EXAMPLES, PATCHES, 3 * 8 * 8),
        "pixel_attention_mask": mask,
        "spatial_shapes": torch.full((EXAMPLES, 2), 4),
        "return_loss": True,
    }


def described() -> Batch:
    return {**text(), **pixels()}


def illustrated(places: int = PATCHES) -> Batch:
    """Texts in which an image takes the second to the last but a few places."""
    ids = tokens()
    ids[:, 1 : 1 + places] = IMAGE_TOKEN
    return {"input_ids": ids, **pixels(), "labels": ids}


def typed_and_illustrated() -> Batch:
    batch = illustrated()
    return {**batch, "attention_mask": torch.ones_like(tokens()), "token_type_ids": (tokens() > 30).long()}


def cut_and_illustrated() -> Batch:
    """Patches of all images in a row, two frames each, four of them a place in the text."""
    patches, grid = drawn(EXAMPLES * PATCHES, 2 * 3 * 8 * 8), torch.tensor([[1, 4, 4]] * EXAMPLES)
    batch = illustrated(PATCHES // 4)
    kinds = (batch["input_ids"] == IMAGE_TOKEN).int()
    return {**batch, "pixel_values": patches, "image_grid_thw": grid, "mm_token_type_ids": kinds}


def asked() -> Batch:
    return {"input_ids": tokens(), **pixels(), "labels": (drawn(EXAMPLES, CLASSES) > 0).float()}


def waves() -> Batch:
    return {"input_values": drawn(EXAMPLES, 1600), "labels": tokens(8) % 29 + 1}


def spectra() -> Batch:
    return {"input_values": drawn(EXAMPLES, SIDE, SIDE), "labels": classes()}


def heard() -> Batch:
    return {"input_features": drawn(EXAMPLES, 16, 48), "labels": tokens(ANSWER)}


def listened() -> Batch:
    return {"input_features": drawn(EXAMPLES, 48, 16), "labels": tokens(ANSWER)}


def films() -> Batch:
    return {"pixel_values": drawn(EXAMPLES, 4, 3, SIDE, SIDE), "labels": classes()}


def series() -> Batch:
    return {"past_values": drawn(EXAMPLES, 32, 3), "future_values": drawn(EXAMPLES, 8, 3)}


# builders -------------------------------------------------------------------------------------------------------------


def built(make: Callable[[], nn.Module], batch: Callable[[], Batch]) -> Builder:
    """Weights that begin at 0 (of a branch's last norm, a head) get others, lest gradients behind them be 0 as well."""

    def build() -> tuple[nn.Module, Batch]:
        seeded(0)
        model = make().train()
        for each in model.parameters():
            if not each.any():
                nn.init.normal_(each, std=0.02)
        return model, batch()

    return build


def of(task: str, batch: Callable[[], Batch], model_type: str, **config: Any) -> Builder:
    """Of transformers: what its AutoModel of this task makes of a config."""
    auto = getattr(hf, f"AutoModel{task}")
    return built(lambda: auto.from_config(hf.AutoConfig.for_model(model_type, **config)), batch)


def decoder(model_type: str, batch: Callable[[], Batch] = text, **config: Any) -> Builder:
    return of("ForCausalLM", batch, model_type, **{**TEXT, **config})


def encoder(model_type: str, batch: Callable[[], Batch] = text, **config: Any) -> Builder:
    return of("ForMaskedLM", batch, model_type, **{**TEXT, "max_position_embeddings": 64, **config})


def both(model_type: str, **config: Any) -> Builder:
    return of("ForSeq2SeqLM", two_texts, model_type, **{**TEXT, "decoder_start_token_id": 0, **config})


def classifier(model_type: str, **config: Any) -> Builder:
    return of("ForImageClassification", images, model_type, **{"image_size": SIDE, "num_labels": CLASSES, **config})


def of_timm(name: str, **arguments: Any) -> Builder:
    return built(lambda: create_model(name, num_classes=CLASSES, **arguments), bare_images)


TEXT: Config = {**tiny.TEXT}
SIZES: Config = {**tiny.SIZES}
GROUPED: Config = {**SIZES, "num_key_value_heads": 2}
HEADS_OF_8: Config = {**GROUPED, "head_dim": 8}
SIX: Config = {**SIZES, "num_hidden_layers": 6}
MOE: Config = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
GPT: Config = {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64}
PAIRED: Config = {
    "d_model": 32,
    "encoder_layers": 4,
    "decoder_layers": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
}
T5: Config = {
    "vocab_size": 64,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 4,
    "num_decoder_layers": 4,
    "num_heads": 4,
}
SSM: Config = {"mamba_d_state": 8, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_chunk_size": 8}
RELATIVE: Config = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
WAVES: Config = {
    **SIZES,
    "vocab_size": 32,
    "conv_dim": [32, 32, 32],
    "conv_kernel": [10, 3, 3],
    "conv_stride": [5, 2, 2],
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
TOWER: Config = {**SIZES, "image_size": SIDE, "patch_size": 8}
WORDS: Config = {**TEXT, **SIZES, "max_position_embeddings": 64}
RESNET: Config = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [16, 32], "depths": [3, 3]}
ROTARY: Config = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
BANDS: Config = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2}

DECODERS = {
    **{name: decoder(**each.config) for name, each in brought.DECODERS.items()},
    "cohere": decoder("cohere", **GROUPED),
    "ctrl": decoder("ctrl", **GPT, dff=64),
    "deepseek_v3": decoder(
        "deepseek_v3",
        **SIZES,
        num_key_value_heads=4,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=8,
        v_head_dim=8,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        moe_intermediate_size=32,
    ),
    "gemma2": decoder("gemma2", **HEADS_OF_8),
    "gemma3": decoder("gemma3_text", **HEADS_OF_8, **BANDS),
    "gemma3n": decoder(
        "gemma3n_text",
        **HEADS_OF_8,
        **BANDS,
        vocab_size_per_layer_input=64,
        hidden_size_per_layer_input=8,
        num_kv_shared_layers=2,
        laurel_rank=8,
        activation_sparsity_pattern=[0.5, 0.0, 0.0, 0.0],
    ),
    "glm4": decoder("glm4", **HEADS_OF_8),
    "gpt2": decoder("gpt2", **GPT),
    "gpt_neo": decoder(
        "gpt_neo",
        hidden_size=32,
        num_layers=4,
        num_heads=4,
        attention_types=[[["global", "local"], 2]],
        window_size=8,
        max_position_embeddings=64,
    ),
    "gpt_oss": decoder("gpt_oss", **HEADS_OF_8, **BANDS, num_local_experts=4, num_experts_per_tok=2),
    "granite": decoder("granite", **GROUPED),
    "llama4": decoder("llama4_text", **HEADS_OF_8, num_local_experts=4, intermediate_size_mlp=64),
    "mpt": decoder("mpt", d_model=32, n_layers=4, n_heads=4, max_seq_len=64),
    "nemotron": decoder("nemotron", **HEADS_OF_8),
    "olmo2": decoder("olmo2", **GROUPED),
    "openai_gpt": decoder("openai-gpt", **GPT),
    "qwen3_moe": decoder("qwen3_moe", **HEADS_OF_8, **MOE),
    "stablelm": decoder("stablelm", **GROUPED),
    "starcoder2": decoder("starcoder2", **GROUPED),
    "xglm": decoder("xglm", d_model=32, ffn_dim=64, num_layers=4, attention_heads=4, max_position_embeddings=64),
    "xlnet": decoder("xlnet", d_model=32, n_layer=4, n_head=4, d_inner=64),
}

RECURRENT = {
    "bamba": decoder("bamba", **GROUPED, **SSM, attn_layer_indices=[1, 3]),
    "falcon_h1": decoder("falcon_h1", **GROUPED, **SSM, mamba_d_ssm=64),
    "falcon_mamba": decoder("falcon_mamba", hidden_size=32, num_hidden_layers=4, state_size=8),
    "granite_hybrid": decoder(
        "granitemoehybrid",
        **GROUPED,
        **SSM,
        num_local_experts=4,
        shared_intermediate_size=32,
        layer_types=["mamba", "attention"] * 2,
    ),
    "jamba": decoder(
        "jamba", **GROUPED, num_experts=4, attn_layer_period=2, attn_layer_offset=1, mamba_d_state=8, mamba_dt_rank=4
    ),
    "lfm2": decoder("lfm2", **GROUPED, layer_types=["conv", "full_attention"] * 2),
    "mamba": decoder("mamba", hidden_size=32, num_hidden_layers=4, state_size=8),
    "mamba2": decoder(
        "mamba2", hidden_size=32, num_hidden_layers=4, state_size=8, num_heads=8, head_dim=8, n_groups=1, chunk_size=8
    ),
    "qwen3_next": decoder(
        "qwen3_next",
        **HEADS_OF_8,
        **MOE,
        shared_expert_intermediate_size=32,
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        layer_types=["linear_attention", "full_attention"] * 2,
    ),
    "recurrent_gemma": decoder(
        "recurrent_gemma", **SIX, num_key_value_heads=1, head_dim=8, lru_width=32, attention_window_size=8
    ),
    "rwkv": decoder("rwkv", whole_text, hidden_size=32, num_hidden_layers=4, context_length=64),
    "xlstm": decoder(  # with its cache it writes over what its own backward pass needs
        "xlstm", whole_text, use_cache=False, hidden_size=64, num_hidden_layers=4, num_heads=4, chunk_size=16
    ),
    "zamba": decoder(
        "zamba",
        **{**SIX, "num_key_value_heads": 4},
        mamba_d_state=8,
        n_mamba_heads=2,
        mamba_dt_rank=4,
        layers_block_type=["mamba", "mamba", "hybrid"] * 2,
    ),
    "zamba2": decoder(
        "zamba2",
        **SIX,
        mamba_d_state=8,
        n_mamba_heads=8,
        chunk_size=8,
        num_mem_blocks=2,
        adapter_rank=4,
        layers_block_type=["mamba", "hybrid"] * 3,
    ),
}

ENCODERS = {
    **{
        name: encoder(**brought.ENCODERS[name].config)
        for name in ("albert", "deberta", "distilbert", "electra", "modernbert")
    },
    "bert": encoder("bert", **SIZES),
    "big_bird": encoder("big_bird", **SIZES, block_size=2, num_random_blocks=1),
    "convbert": encoder("convbert", **SIZES, embedding_size=32),
    "deberta_v1": encoder("deberta", **SIZES, **RELATIVE),
    "esm": encoder("esm", **SIZES, mask_token_id=3, position_embedding_type="rotary"),
    "fnet": encoder("fnet", whole_text, **SIZES),
    "funnel": encoder("funnel", d_model=32, n_head=4, d_head=8, d_inner=64, block_sizes=[2, 2, 2]),
    "longformer": encoder("longformer", **SIZES, attention_window=4),
    "mobilebert": encoder("mobilebert", **SIZES, embedding_size=32, intra_bottleneck_size=32, true_hidden_size=32),
    "mpnet": encoder("mpnet", **SIZES),
    "perceiver": encoder(
        "perceiver",
        d_latents=32,
        num_latents=8,
        d_model=32,
        num_blocks=1,
        num_self_attends_per_block=4,
        num_self_attention_heads=4,
        num_cross_attention_heads=4,
        max_position_embeddings=LENGTH,
        qk_channels=32,
        v_channels=32,
    ),
    "reformer": encoder(  # without dropout, whose seeds it draws anew from the clock in each pass
        "reformer",
        hidden_size=32,
        attention_head_size=8,
        num_attention_heads=4,
        feed_forward_size=64,
        attn_layers=["local", "lsh"] * 2,
        axial_pos_shape=[4, 6],
        axial_pos_embds_dim=[16, 16],
        num_buckets=4,
        local_attn_chunk_length=4,
        lsh_attn_chunk_length=4,
        is_decoder=False,
        max_position_embeddings=LENGTH,
        hash_seed=0,
        hidden_dropout_prob=0.0,
        local_attention_probs_dropout_prob=0.0,
    ),
    "roberta": encoder("roberta", **SIZES),
    "roformer": encoder("roformer", **SIZES),
    "squeezebert": encoder("squeezebert", **SIZES, embedding_size=32),
}

ENCODER_DECODERS = {
    "bart": both("bart", **PAIRED),
    "blenderbot": both("blenderbot", **PAIRED),
    "led": both(
        "led", **PAIRED, max_encoder_position_embeddings=64, max_decoder_position_embeddings=64, attention_window=4
    ),
    "longt5": both("longt5", **T5, encoder_attention_type="transient-global", local_radius=4, global_block_size=4),
    "m2m_100": both("m2m_100", **PAIRED),
    "marian": both("marian", **PAIRED),
    "mt5": both("mt5", **T5),
    "pegasus": both("pegasus", **PAIRED),
    "prophetnet": both(
        "prophetnet",
        hidden_size=32,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_encoder_layers=4,
        num_decoder_layers=4,
        num_encoder_attention_heads=4,
        num_decoder_attention_heads=4,
        max_position_embeddings=64,
    ),
    "switch": both(
        "switch_transformers", **T5, num_experts=4, num_sparse_encoder_layers=2, num_sparse_decoder_layers=2
    ),
    "t5": both("t5", **T5),
    "t5gemma": both("t5gemma", encoder={**TEXT, **HEADS_OF_8}, decoder={**TEXT, **HEADS_OF_8}),
}

SOUNDS = {
    "ast": of(
        "ForAudioClassification",
        spectra,
        "audio-spectrogram-transformer",
        **SIZES,
        max_length=SIDE,
        num_mel_bins=SIDE,
        patch_size=8,
        time_stride=8,
        frequency_stride=8,
        num_labels=CLASSES,
    ),
    "hubert": of("ForCTC", waves, "hubert", **WAVES),
    "speech_to_text": of(
        "ForSpeechSeq2Seq",
        listened,
        "speech_to_text",
        **TEXT,
        **PAIRED,
        input_feat_per_channel=16,
        conv_channels=32,
        max_source_positions=64,
        max_target_positions=64,
    ),
    "wav2vec2": of("ForCTC", waves, "wav2vec2", **WAVES),
    "wav2vec2_conformer": of("ForCTC", waves, "wav2vec2-conformer", **WAVES),
    "wavlm": of("ForCTC", waves, "wavlm", **WAVES),
    "whisper": of(
        "ForSpeechSeq2Seq",
        heard,
        "whisper",
        **TEXT,
        **PAIRED,
        num_mel_bins=16,
        max_source_positions=24,
        max_target_positions=32,
        decoder_start_token_id=1,
    ),
}

PICTURES = {
    "beit": classifier(**brought.CLASSIFIERS["hf_beit"].config),
    "cait_timm": built(FURTHER["cait"], bare_images),
    "convnext": classifier("convnext", hidden_sizes=[16, 32], depths=[3, 3], num_stages=2, drop_path_rate=0.1),
    "convnextv2_timm": of_timm("convnextv2_atto", depths=[1, 1, 3, 1], dims=[16, 16, 32, 32]),
    "cvt": classifier("cvt", embed_dim=[16, 32, 32], num_heads=[1, 2, 4], depth=[1, 3, 3]),
    "data2vec": classifier(**brought.CLASSIFIERS["hf_data2vec"].config),
    "deit": classifier(**brought.CLASSIFIERS["hf_deit"].config, architectures=["DeiTForImageClassification"]),
    "deit3_timm": built(FURTHER["deit3"], bare_images),
    "densenet_timm": of_timm("densenet121", growth_rate=8, block_config=(3, 3)),
    "detr": of(
        "ForObjectDetection",
        boxed,
        "detr",
        **PAIRED,
        num_queries=5,
        use_timm_backbone=False,
        backbone=None,
        use_pretrained_backbone=False,
        backbone_config={**RESNET, "out_features": ["stage2"]},
    ),
    "dinov2": classifier(**brought.CLASSIFIERS["hf_dinov2"].config),
    "eva02_timm": built(FURTHER["eva02"], bare_images),
    "levit": classifier(
        "levit",
        architectures=["LevitForImageClassification"],
        image_size=SIDE,
        hidden_sizes=[16, 32, 32],
        num_attention_heads=[2, 4, 4],
        depths=[2, 2, 2],
        key_dim=[8, 8, 8],
        attention_ratio=[2, 2, 2],
    ),
    "maxvit_timm": of_timm(
        "maxvit_nano_rw_256", img_size=SIDE, embed_dim=(32, 64), depths=(2, 2), stem_width=8, block_type=("M", "M")
    ),
    "mixer_timm": built(lambda: MlpMixer(CLASSES, SIDE, patch_size=8, num_blocks=4, embed_dim=32), bare_images),
    "mobilenet_torchvision": built(
        lambda: torchvision.models.MobileNetV2(CLASSES, 0.5, [[1, 16, 1, 1], [4, 16, 3, 2], [4, 32, 3, 2]]), bare_images
    ),
    "mobilevit": classifier("mobilevit", hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 16, 16, 24, 32, 32]),
    "poolformer": classifier("poolformer", hidden_sizes=[8, 16, 32, 32], depths=[1, 1, 3, 1]),
    "pvt_v2_timm": built(FURTHER["pvt"], bare_images),
    "regnet": classifier("regnet", embedding_size=8, hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 3, 1], groups_width=8),
    "resnet": classifier(**RESNET),
    "resnet_timm": of_timm("resnet26", layers=(1, 1, 3, 1), channels=(8, 8, 16, 16)),
    "segformer": of(
        "ForSemanticSegmentation",
        maps,
        "segformer",
        hidden_sizes=[8, 16, 32, 32],
        depths=[1, 1, 3, 1],
        num_attention_heads=[1, 1, 2, 4],
        decoder_hidden_size=32,
        num_labels=2,
    ),
    "swin": classifier(**{**brought.CLASSIFIERS["hf_swin"].config, "depths": [2, 3], "patch_size": 2}),
    "swin_torchvision": built(
        lambda: torchvision.models.SwinTransformer([2, 2], 16, [2, 3], [2, 4], [4, 4], num_classes=CLASSES), bare_images
    ),
    "swinv2_timm": built(FURTHER["swinv2"], bare_images),
    "videomae": of(
        "ForVideoClassification", films, "videomae", **TOWER, num_frames=4, tubelet_size=2, num_labels=CLASSES
    ),
    "vit": classifier("vit", **TOWER),
    "vit_mae": of("ForPreTraining", pixels, "vit_mae", **TOWER, **{**tiny.DECODER, "decoder_num_hidden_layers": 3}),
    "vit_timm": built(FURTHER["dropping_vit"], bare_images),
    "vit_torchvision": built(
        lambda: torchvision.models.VisionTransformer(SIDE, 8, 4, 4, 32, 64, dropout=0.1, num_classes=CLASSES),
        bare_images,
    ),
    "xcit_timm": built(FURTHER["xcit"], bare_images),
    "yolos": of("ForObjectDetection", boxed, "yolos", **{**TOWER, "image_size": [SIDE, SIDE]}, num_detection_tokens=5),
}

SEVERAL = {
    "blip": of(
        "ForImageTextToText", described, "blip", text_config={**WORDS, "encoder_hidden_size": 32}, vision_config=TOWER
    ),
    "blip2": of(
        "ForImageTextToText",
        lambda: illustrated(8),
        "blip-2",
        vision_config=TOWER,
        num_query_tokens=8,
        qformer_config={**WORDS, "encoder_hidden_size": 32},
        image_token_index=IMAGE_TOKEN,
        text_config={**brought.DECODERS["opt"].config, **TEXT},
    ),
    "clip": of("", captioned, "clip", text_config=WORDS, vision_config=TOWER, projection_dim=16),
    "git": of("ForCausalLM", described, "git", **WORDS, vision_config=TOWER),
    "groupvit": of(
        "",
        captioned,
        "groupvit",
        text_config=WORDS,
        projection_dim=16,
        projection_intermediate_dim=32,
        vision_config={**TOWER, "depths": [2, 2, 2], "num_group_tokens": [8, 4, 0], "num_output_groups": [8, 4, 4]},
    ),
    "llava": of(
        "ForImageTextToText",
        illustrated,
        "llava",
        image_token_index=IMAGE_TOKEN,
        image_seq_length=PATCHES,
        vision_config={"model_type": "clip_vision_model", **TOWER},
        text_config={"model_type": "llama", **TEXT, **GROUPED},
    ),
    "paligemma": of(
        "ForImageTextToText",
        typed_and_illustrated,
        "paligemma",
        image_token_index=IMAGE_TOKEN,
        projection_dim=32,
        hidden_size=32,
        vision_config={"model_type": "siglip_vision_model", **TOWER, "vision_use_head": False},
        text_config={"model_type": "gemma", **TEXT, **HEADS_OF_8},
    ),
    "patchtst": built(
        lambda: hf.PatchTSTForPrediction(
            hf.PatchTSTConfig(
                num_input_channels=3,
                context_length=32,
                patch_length=4,
                patch_stride=4,
                prediction_length=8,
                d_model=32,
                num_hidden_layers=4,
                num_attention_heads=4,
                ffn_dim=64,
            )
        ),
        series,
    ),
    "qwen2_vl": of(
        "ForImageTextToText",
        cut_and_illustrated,
        "qwen2_vl",
        image_token_id=IMAGE_TOKEN,
        video_token_id=62,
        vision_start_token_id=61,
        vision_end_token_id=60,
        text_config={**TEXT, **GROUPED, "rope_parameters": ROTARY},
        vision_config={"depth": 4, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "mlp_ratio": 2, "patch_size": 8},
    ),
    "siglip": of("", captioned, "siglip", text_config=WORDS, vision_config=TOWER),
    "siglip2": of(
        "", patched, "siglip2", text_config=WORDS, vision_config={**SIZES, "patch_size": 8, "num_patches": PATCHES}
    ),
    "vilt": of("ForVisualQuestionAnswering", asked, "vilt", **{**WORDS, **TOWER}, num_labels=CLASSES),
}

FAMILIES: dict[str, Builder] = {
    **DECODERS,
    **RECURRENT,
    **ENCODERS,
    **ENCODER_DECODERS,
    **SOUNDS,
    **PICTURES,
    **SEVERAL,
}
