"""Builds architectures that users bring, at a tiny size: four blocks, 32 wide, with the dropout that each library gives
them.

Each is the ``config.json`` of a folder that ``--model`` takes: transformers' form, or timm's with an ``architecture``.
"""

from typing import Any

from suite.loop.baseline import Family

DEPTH, WIDTH, HEADS, INNER = 4, 32, 4, 64
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
}
ENCODERS = {
    "roberta": _text("roberta", **_BLOCKS, max_position_embeddings=16),  # as many as the data's, and none for padding
    "electra": _text("electra", **_BLOCKS, embedding_size=16),
    "albert": _text("albert", **_BLOCKS, embedding_size=16),
    "deberta": _text("deberta-v2", **_BLOCKS, relative_attention=True, pos_att_type=["p2c", "c2p"]),
    "modernbert": _text("modernbert", **_BLOCKS),
    "distilbert": _text("distilbert", dim=WIDTH, n_layers=DEPTH, n_heads=HEADS, hidden_dim=INNER),
    "t5": _hugging_face(
        "t5",
        vocab_size=64,
        d_model=WIDTH,
        d_kv=8,
        d_ff=INNER,
        num_layers=DEPTH,
        num_decoder_layers=DEPTH,
        num_heads=HEADS,
    ),
    "bart": _text(
        "bart",
        d_model=WIDTH,
        encoder_layers=DEPTH,
        decoder_layers=DEPTH,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=INNER,
        decoder_ffn_dim=INNER,
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
    "timm_convnext": Family(
        {"architecture": "convnext_atto", "model_args": {"depths": [1, 1, 2, 1], "dims": [16, 16, 32, 32]}}, False
    ),
    "hf_resnet": Family(
        {"model_type": "resnet", "embedding_size": 16, "hidden_sizes": [16, 32], "depths": [2, 2]}, False
    ),
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
