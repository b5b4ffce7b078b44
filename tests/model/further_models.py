"""Small models that compute in ways of their own: fused weights in many orders, shared, scaled or shifted blocks."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import timm
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

from suite.entries.installed import baselines
from suite.entries.jobs import run_of
from suite.entries.spelling import build
from suite.loop.data import Batch
from suite.loop.run import Run
from suite.loop.stack import Stack
from suite.record.job import Job, Setting
from tests.model.transformer_models import SIZES, TEXT

BLOOM = {"hidden_size": 32, "n_layer": 4, "n_head": 4}
FALCON = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}
BIGCODE = {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 32, "attn_pdrop": 0.0}
GROUPED = {"num_key_value_heads": 2}
VIT = {"img_size": 32, "patch_size": 8, "depth": 4, "embed_dim": 32, "num_heads": 4, "num_classes": 10}
SWIN = {
    "img_size": 32,
    "patch_size": 2,
    "window_size": 4,
    "embed_dim": 16,
    "depths": (2, 3),
    "num_heads": (2, 4),
    "num_classes": 10,
}
PVT = {"embed_dims": (8, 16, 32, 32), "depths": (1, 1, 2, 1), "num_heads": (1, 2, 2, 4), "num_classes": 10}

FURTHER: dict[str, Callable[[], nn.Module]] = {
    "gpt_neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**TEXT, **SIZES)),
    "bloom": lambda: hf.BloomForCausalLM(hf.BloomConfig(**TEXT, **BLOOM)),
    "falcon": lambda: hf.FalconForCausalLM(hf.FalconConfig(**TEXT, **FALCON)),
    "falcon_grouped": lambda: hf.FalconForCausalLM(
        hf.FalconConfig(**TEXT, **FALCON, num_kv_heads=2, new_decoder_architecture=True)
    ),
    "gpt_bigcode": lambda: hf.GPTBigCodeForCausalLM(hf.GPTBigCodeConfig(**TEXT, **BIGCODE)),
    "phi3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**TEXT, **SIZES, num_key_value_heads=1)),
    "gptj": lambda: hf.GPTJForCausalLM(hf.GPTJConfig(**TEXT, n_embd=32, n_layer=4, n_head=4, rotary_dim=4)),
    "gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**TEXT, **SIZES, **GROUPED, head_dim=8)),
    "mixtral": lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**TEXT, **SIZES, **GROUPED, num_local_experts=4)),
    "albert": lambda: hf.AlbertForMaskedLM(hf.AlbertConfig(**TEXT, **SIZES, embedding_size=16)),
    "t5": lambda: hf.T5ForConditionalGeneration(
        hf.T5Config(
            vocab_size=64,
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=4,
            num_heads=4,
            decoder_start_token_id=0,
            dropout_rate=0.0,
        )
    ),
    "beit": lambda: timm.create_model("beit_base_patch16_224", **VIT),
    "eva02": lambda: timm.create_model("eva02_tiny_patch14_224", **VIT),
    "deit3": lambda: timm.create_model("deit3_small_patch16_224", **VIT),
    "cait": lambda: timm.create_model("cait_xxs24_224", **VIT),
    "xcit": lambda: timm.create_model(
        "xcit_nano_12_p16_224", img_size=32, embed_dim=32, depth=4, num_heads=4, num_classes=10
    ),
    "swin": lambda: timm.create_model("swin_tiny_patch4_window7_224", **SWIN),
    "swinv2": lambda: timm.create_model("swinv2_tiny_window8_256", **SWIN),
    "pvt": lambda: timm.create_model("pvt_v2_b0", **PVT),
    "dropping_vit": lambda: timm.create_model("vit_tiny_patch16_224", **VIT, drop_path_rate=0.3),
    "gpt2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(**TEXT, n_embd=32, n_layer=4, n_head=4, n_positions=32, attn_pdrop=0.1)
    ),
}


def make(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = FURTHER[name]()
    for module in model.modules():
        if hasattr(vars(module).get("config"), "use_cache"):
            module.config.use_cache = False
    return model


def logits(model: nn.Module, name: str) -> Tensor:
    """Outputs for a fixed batch of two."""
    generator = torch.Generator().manual_seed(1)
    if hasattr(model, "config"):
        tokens = torch.randint(3, 64, (2, 12), generator=generator)
        return model(input_ids=tokens, **({"decoder_input_ids": tokens.flip(1)} if name == "t5" else {})).logits
    return model(torch.randn(2, 3, 32, 32, generator=generator))


def further_run(name: str, technique: Any, steps: int = 6) -> Run:
    """A run that trains one of these models to give ones."""
    text = hasattr(make(name), "config")
    baseline = baselines()["gpt" if text else "vit"]

    class Own(type(baseline)):  # type: ignore[misc]
        def model(self, *_: Any) -> nn.Module:
            return make(name)

        def forward(self, model: nn.Module, batch: Batch) -> Any:
            if not text:
                pixels = F.interpolate(batch["pixel_values"].expand(-1, 3, -1, -1), size=(32, 32))
                return SimpleNamespace(logits=model(pixels))
            tokens = batch["input_ids"][:, :12] % 61 + 3
            return model(input_ids=tokens, **({"decoder_input_ids": tokens.flip(1)} if name == "t5" else {}))

        def losses(self, outputs: Any, batch: Batch) -> Tensor:
            return (outputs.logits.float().flatten(1) - 1).square().mean(1)

    job = Job(setting=Setting(baseline=baseline.id, size="pico", recipe="classic", steps=steps), stack="baseline")
    stack = build(technique) if isinstance(technique, str) else Stack({"technique": technique})
    return run_of(job, baseline=Own(), technique=stack)
