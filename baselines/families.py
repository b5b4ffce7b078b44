"""Builds architectures that users bring, at a tiny size: two blocks, 32 wide, with the dropout that each library gives
them.

Each is the ``config.json`` of a folder that ``--model`` takes: transformers' form, or timm's with an ``architecture``.
"""

from dataclasses import replace
from typing import Any

from suite.loop.baseline import Family

DEPTH, WIDTH, HEADS, INNER = 2, 32, 4, 64
_TEXT: dict[str, Any] = {"vocab_size": 64, "max_position_embeddings": 64}
_BLOCKS: dict[str, Any] = {
    "hidden_size": WIDTH,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
}
_GROUPED: dict[str, Any] = {**_BLOCKS, "num_key_value_heads": 2, "head_dim": 8}
_GPT: dict[str, Any] = {"vocab_size": 64, "n_embd": WIDTH, "n_layer": DEPTH, "n_head": HEADS, "n_positions": 64}
_PICTURES: dict[str, Any] = {**_BLOCKS, "patch_size": 8}
_STAGES: dict[str, Any] = {
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
    "patch_size": 4,
    "mlp_ratio": 2.0,
}
_VIT: dict[str, Any] = {"patch_size": 8, "depth": DEPTH, "embed_dim": WIDTH, "num_heads": HEADS}


def _text(kind: str, **values: Any) -> Family:
    return Family({"model_type": kind, **_TEXT, **values})


def _hugging_face(kind: str, **values: Any) -> Family:
    return Family({"model_type": kind, **values})


def _timm(architecture: str, **arguments: Any) -> Family:
    return Family({"architecture": architecture, "model_args": arguments})


_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": INNER // 2}
_GROUPED_HEADS: dict[str, Any] = {**_BLOCKS, "num_key_value_heads": 2}
_STATES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": WIDTH,
    "num_hidden_layers": DEPTH,
    "state_size": 4,
    "expand": 2,
    "use_mambapy": False,
}
_MAMBA2: dict[str, Any] = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 4,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
    "mamba_expand": 2,
}
_TOWER: dict[str, Any] = {**_BLOCKS, "vocab_size": 64, "max_position_embeddings": 32}
_ENCODER_DECODER: dict[str, Any] = {
    "d_model": WIDTH,
    "encoder_layers": DEPTH,
    "decoder_layers": DEPTH,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": INNER,
    "decoder_ffn_dim": INNER,
}
_T5: dict[str, Any] = {
    "vocab_size": 64,
    "d_model": WIDTH,
    "d_kv": 8,
    "d_ff": INNER,
    "num_layers": DEPTH,
    "num_decoder_layers": DEPTH,
    "num_heads": HEADS,
}
_SOUND: dict[str, Any] = {
    **_BLOCKS,
    "conv_dim": [16, 16],
    "conv_kernel": [8, 4],
    "conv_stride": [8, 4],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
    "classifier_proj_size": 16,
    "mask_time_prob": 0.0,
    "mask_feature_prob": 0.0,
}


def _no_transformer(family: Family) -> Family:
    return replace(family, transformer=False)


DECODERS = {
    "opt": _text(
        "opt",
        hidden_size=WIDTH,
        word_embed_proj_dim=WIDTH,
        ffn_dim=INNER,
        num_hidden_layers=DEPTH,
        num_attention_heads=HEADS,
    ),
    "llama": _text("llama", **_GROUPED),
    "mistral": _text("mistral", **_GROUPED),
    "mixtral": _text("mixtral", **_GROUPED, num_local_experts=4),
    "qwen2": _text("qwen2", **_GROUPED),
    "qwen3": _text("qwen3", **_GROUPED),
    "gemma": _text("gemma", **_GROUPED),
    "falcon": _text("falcon", hidden_size=WIDTH, num_hidden_layers=DEPTH, num_attention_heads=HEADS),
    "bloom": _text("bloom", hidden_size=WIDTH, n_layer=DEPTH, n_head=HEADS),
    "gpt_neox": _text("gpt_neox", **_BLOCKS),
    "gptj": _hugging_face("gptj", **_GPT, rotary_dim=4),
    "gpt_bigcode": _hugging_face("gpt_bigcode", **_GPT),
    "phi": _text("phi", **_BLOCKS),
    "phi3": _text("phi3", **{**_BLOCKS, "num_key_value_heads": 1}),
    # mixtures of experts
    "qwen3_moe": _text("qwen3_moe", **_GROUPED, **_EXPERTS),
    "gpt_oss": _text("gpt_oss", **_GROUPED, num_local_experts=4, num_experts_per_tok=2, sliding_window=8),
    "deepseek_v3": _text(
        "deepseek_v3",
        **_BLOCKS,
        num_key_value_heads=HEADS,
        moe_intermediate_size=INNER // 2,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_nope_head_dim=8,
        qk_rope_head_dim=8,
        v_head_dim=8,
    ),
    # state spaces, alone and beside attention
    "mamba": _no_transformer(_hugging_face("mamba", **_STATES)),
    "jamba": _text(
        "jamba",
        **_BLOCKS,
        num_key_value_heads=2,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        num_experts=4,
        mamba_d_state=4,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    ),
    "falcon_h1": _text("falcon_h1", **_GROUPED, **_MAMBA2, mamba_d_ssm=64),
    "lfm2": _text(
        "lfm2",
        **_GROUPED_HEADS,
        block_auto_adjust_ff_dim=False,
        layer_types=["conv", "full_attention"],
    ),
    "recurrent_gemma": _text(
        "recurrent_gemma",
        **_GROUPED_HEADS,
        head_dim=8,
        lru_width=WIDTH,
        attention_window_size=8,
        block_types=["recurrent", "attention"],
    ),
    "qwen3_next": _text(
        "qwen3_next",
        **_GROUPED,
        **_EXPERTS,
        shared_expert_intermediate_size=INNER,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        layer_types=["linear_attention", "full_attention"],
    ),
    "rwkv": _hugging_face(
        "rwkv",
        vocab_size=64,
        hidden_size=WIDTH,
        attention_hidden_size=WIDTH,
        num_hidden_layers=DEPTH,
        context_length=64,
    ),
}
ENCODERS = {
    "roberta": _text("roberta", **_BLOCKS, max_position_embeddings=16),  # as many as the data's, and none for padding
    "electra": _text("electra", **_BLOCKS, embedding_size=16),
    "albert": _text("albert", **_BLOCKS, embedding_size=16),
    "deberta": _text("deberta-v2", **_BLOCKS, relative_attention=True, pos_att_type=["p2c", "c2p"]),
    "modernbert": _text("modernbert", **_BLOCKS),
    "distilbert": _text("distilbert", dim=WIDTH, n_layers=DEPTH, n_heads=HEADS, hidden_dim=INNER),
    "longformer": _text("longformer", **_BLOCKS, attention_window=[8] * DEPTH),
    "convbert": _text("convbert", **_BLOCKS, embedding_size=WIDTH, head_ratio=2, conv_kernel_size=3),
    "fnet": _no_transformer(_text("fnet", **_BLOCKS)),
    # encoder-decoders
    "t5": _hugging_face("t5", **_T5),
    "switch_transformers": _hugging_face(
        "switch_transformers",
        **_T5,
        num_experts=4,
        num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
        expert_capacity=64,
    ),
    "bart": _text("bart", **_ENCODER_DECODER),
    "nllb_moe": _text(
        "nllb-moe", **_ENCODER_DECODER, num_experts=4, encoder_sparse_step=2, decoder_sparse_step=2, expert_capacity=64
    ),
}
CLASSIFIERS = {
    "timm_vit": _timm("vit_tiny_patch16_224", **_VIT),
    "timm_deit3": _timm("deit3_small_patch16_224", **_VIT),
    "timm_beit": _timm("beit_base_patch16_224", **_VIT),
    "timm_eva02": _timm("eva02_tiny_patch14_224", **_VIT),
    "timm_swin": _timm("swin_tiny_patch4_window7_224", **_STAGES),
    "timm_swinv2": _timm("swinv2_tiny_window8_256", **_STAGES),
    "timm_cait": _timm("cait_xxs24_224", **_VIT),
    "timm_xcit": _timm("xcit_nano_12_p8_224", **_VIT),
    "timm_maxvit": _timm(
        "maxvit_nano_rw_256", embed_dim=[WIDTH, 64], depths=[2, 2], stem_width=8, block_type=["M", "M"]
    ),
    "timm_pvt_v2": _timm("pvt_v2_b0", depths=[1, 1, 2, 1], embed_dims=[16, 16, 32, 32], num_heads=[1, 1, 2, 2]),
    "hf_beit": _hugging_face("beit", **_PICTURES),
    "hf_data2vec": _hugging_face("data2vec-vision", **_PICTURES),
    "hf_deit": _hugging_face("deit", **_PICTURES),
    "hf_dinov2": _hugging_face(
        "dinov2", hidden_size=WIDTH, num_hidden_layers=DEPTH, num_attention_heads=HEADS, mlp_ratio=2, patch_size=8
    ),
    "hf_swin": _hugging_face("swin", **_STAGES),
    "hf_swinv2": _hugging_face("swinv2", **_STAGES),
    # hybrids of convolutions and attention, at the size that each wants
    "timm_coatnet": _timm("coatnet_nano_rw_224", embed_dim=[32, 32, 64, 64], depths=[1, 1, 2, 2], stem_width=[8, 16]),
    "timm_crossvit": _timm(
        "crossvit_tiny_240",
        patch_size=[48, 56],
        embed_dim=[16, 16],
        depth=[[1, 2, 0], [1, 2, 0]],
        num_heads=[HEADS, HEADS],
        mlp_ratio=[2, 2, 1],
    ),
    "timm_levit": _timm("levit_128s", embed_dim=[32, 48, 64], num_heads=[2, 3, 4], depth=[2, 2, 2], key_dim=8),
    "timm_davit": _timm(
        "davit_tiny", depths=[1, 1, 2, 1], embed_dims=[16, 16, 32, 32], num_heads=[2, 2, 4, 4], window_size=7
    ),
    "timm_efficientformer": _timm("efficientformer_l1", depths=[1, 1, 1, 4], embed_dims=[16, 16, 32, 32], num_vit=2),
    # two towers: pictures and the classes' descriptions
    "clip": _hugging_face("clip", text_config=_TOWER, vision_config={**_TOWER, "patch_size": 8}, projection_dim=16),
    "siglip": _hugging_face("siglip", text_config=_TOWER, vision_config={**_TOWER, "patch_size": 8}),
    # speech: a picture's pixels as a wave, or as a spectrogram
    "wav2vec2": _hugging_face("wav2vec2", **_SOUND),
    "ast": _hugging_face(
        "audio-spectrogram-transformer",
        **_BLOCKS,
        patch_size=8,
        frequency_stride=8,
        time_stride=8,
        max_length=32,
        num_mel_bins=32,
    ),
    "whisper": _hugging_face(
        "whisper",
        **_ENCODER_DECODER,
        vocab_size=64,
        num_mel_bins=16,
        max_source_positions=16,
        max_target_positions=16,
        classifier_proj_size=16,
    ),
    # none of attention
    "timm_convnext": _no_transformer(_timm("convnext_atto", depths=[1, 1, 2, 1], dims=[16, 16, 32, 32])),
    "hf_resnet": _no_transformer(_hugging_face("resnet", embedding_size=16, hidden_sizes=[16, 32], depths=[2, 2])),
}
AUTOENCODERS = {
    "vit_mae": _hugging_face(
        "vit_mae",
        **{**_BLOCKS, "patch_size": 2},
        decoder_hidden_size=16,
        decoder_num_hidden_layers=2,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=32,
    ),
}
