"""Small randomly initialised Transformers of every family that structure must find, with a batch for each."""

from collections.abc import Callable

import timm
import torch
import transformers as hf
from torch import Tensor, nn

hf.logging.set_verbosity_error()
torch.set_num_threads(1)  # on models this small, threads cost more than they save

TEXT = {"vocab_size": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SIZES = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64}
TIMM = {"img_size": 32, "patch_size": 8, "depth": 4, "embed_dim": 32, "num_heads": 4, "num_classes": 10}
DECODER = {
    "decoder_hidden_size": 24,
    "decoder_num_hidden_layers": 2,
    "decoder_num_attention_heads": 4,
    "decoder_intermediate_size": 48,
}


def bert() -> nn.Module:
    return hf.BertForMaskedLM(hf.BertConfig(**TEXT, **SIZES))


def gpt2() -> nn.Module:
    return hf.GPT2LMHeadModel(hf.GPT2Config(**TEXT, n_embd=32, n_layer=4, n_head=4, n_positions=32))


def llama() -> nn.Module:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**TEXT, **SIZES, num_key_value_heads=2, attention_dropout=0.1))


def deberta() -> nn.Module:
    relative = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_position_embeddings": 32}
    return hf.DebertaV2ForMaskedLM(hf.DebertaV2Config(**TEXT, **SIZES, **relative))


def t5() -> nn.Module:
    return hf.T5ForConditionalGeneration(
        hf.T5Config(
            vocab_size=64,
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=4,
            num_decoder_layers=2,
            num_heads=4,
            decoder_start_token_id=0,
        )
    )


def mae() -> nn.Module:
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    model = hf.ViTMAEForPreTraining(hf.ViTMAEConfig(**SIZES, **DECODER, **dropout, image_size=32, patch_size=8))
    for parameter in model.parameters():
        if parameter.ndim == 3:  # tokens and positions: left at 0, where layer normalisation magnifies rounding
            nn.init.normal_(parameter)
    return model


def vit() -> nn.Module:
    drops = {"drop_path_rate": 0.2, "attn_drop_rate": 0.1, "proj_drop_rate": 0.1}
    return timm.create_model("vit_tiny_patch16_224", **TIMM, **drops)


def deit() -> nn.Module:
    return timm.create_model("deit_tiny_distilled_patch16_224", **TIMM, attn_drop_rate=0.1)


BUILDERS: dict[str, Callable[[], nn.Module]] = {
    each.__name__: each for each in (bert, gpt2, llama, deberta, t5, mae, vit, deit)
}
SWAPPABLE = [name for name in BUILDERS if name != "deberta"]


def build(name: str, seed: int = 0) -> nn.Module:
    """In training mode, without key-value caches (their copies change the order of sums in backward)."""
    torch.manual_seed(seed)
    model = BUILDERS[name]()
    for module in model.modules():
        if hasattr(vars(module).get("config"), "use_cache"):
            module.config.use_cache = False
    return model.train()


def loss(model: nn.Module, name: str, seed: int = 1, padding: bool = True) -> Tensor:
    """A scalar of the model's outputs for a fixed batch, under fixed dropout noise; some texts end in padding."""
    generator = torch.Generator().manual_seed(seed)
    if name in ("vit", "deit", "mae"):
        images = torch.randn(2, 3, 32, 32, generator=generator)
        torch.manual_seed(seed)
        output = model(images)
    else:
        tokens = torch.randint(3, 64, (2, 12), generator=generator)
        mask = torch.ones_like(tokens)
        if padding:
            mask[1, 9:] = 0
        torch.manual_seed(seed)
        more = {"decoder_input_ids": tokens.flip(1)} if name == "t5" else {}
        output = model(input_ids=tokens, attention_mask=mask, **more)
    logits = output if isinstance(output, Tensor) else output[0] if isinstance(output, tuple) else output.logits
    weights = torch.randn(logits.shape, generator=generator)
    if name not in ("vit", "deit", "mae") and padding:
        weights[1, 9:] = 0  # what padded queries see is nobody's promise
    return (logits * weights).sum() / logits.shape[-1]


def gradients(model: nn.Module, name: str, **settings: bool) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss and the gradient of every parameter that has one."""
    model.zero_grad(set_to_none=True)
    value = loss(model, name, **settings)
    value.backward()
    return value.detach(), {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
