"""LayerScale against timm's, merged into the weights, and its size, gradients and depth rule."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from suite.model.anatomy import anatomy, weight_matrix
from techniques.initialization.layerscale.technique import LayerScale, LayerScaleTechnique, initial_scale
from tests.model.further_models import further_run
from tests.runs import new_recording, new_run

SIZES = {"img_size": 16, "patch_size": 4, "num_classes": 5, "embed_dim": 24, "depth": 3, "num_heads": 2}


def vit(**changes: float) -> VisionTransformer:
    torch.manual_seed(0)
    return VisionTransformer(**SIZES, **changes).eval()


def scaled(initial: float | None = None) -> nn.Module:
    run: Any = SimpleNamespace(trial=lambda model: model(images()))
    return LayerScaleTechnique(initial).model(vit(), run)


def images() -> Tensor:
    return torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def test_equals_timms_layer_scale() -> None:
    theirs, ours = vit(init_values=0.1), scaled(0.1)
    values = theirs.state_dict()
    state = {name: values[name.replace(".linear.", ".")] for name in ours.state_dict() if not name.endswith(".scale")}
    ours.load_state_dict(state, strict=False)
    ours(images()).square().sum().backward()
    theirs(images()).square().sum().backward()
    torch.testing.assert_close(ours(images()), theirs(images()), rtol=1e-5, atol=1e-6)
    for mine, their in zip(anatomy(ours).blocks, theirs.blocks):
        torch.testing.assert_close(mine.attention_output.module.scale.grad, their.ls1.gamma.grad, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(mine.mlp_output.module.scale.grad, their.ls2.gamma.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("baseline", ["bert", "gpt", "vit", "mae"])
def test_merging_the_scales_into_the_branch_outputs_changes_nothing(baseline: str) -> None:
    run = new_run(baseline, "layerscale", recipe="classic")
    run.model.eval()
    batch = run.data.held_out("test", 4)[0]
    layers = [(part.path, part.module) for block in run.anatomy.every_block for part in block.branches]
    with torch.no_grad():
        for _, layer in layers:
            assert isinstance(layer, LayerScale)
            layer.scale.uniform_(0.5, 2.0)
        torch.manual_seed(0)  # the auto-encoder draws its mask
        before = run.baseline.losses(run.baseline.forward(run.model, batch), batch)
        for path, layer in layers:
            weight_matrix(layer.linear).mul_(layer.scale[:, None])
            layer.linear.bias.mul_(layer.scale)
            run.anatomy.replace(path, layer.linear)
        torch.manual_seed(0)
        after = run.baseline.losses(run.baseline.forward(run.model, batch), batch)
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)


def test_two_widths_of_parameters_a_block_and_none_of_them_decays() -> None:
    plain, run = (new_run("vit", stack, steps=4) for stack in ("baseline", "layerscale"))
    count = [sum(p.numel() for p in each.model.parameters()) for each in (plain, run)]
    assert count[1] - count[0] == 2 * run.anatomy.width * run.anatomy.depth
    decaying = {id(p) for g in run.optimizer.param_groups if g["weight_decay"] for p in g["params"]}
    trained = {id(p) for g in run.optimizer.param_groups for p in g["params"]}
    scales = [m.scale for m in run.model.modules() if isinstance(m, LayerScale)]
    assert all(id(scale) in trained and id(scale) not in decaying for scale in scales)


def test_branch_gradients_grow_linearly_with_the_initial_scale() -> None:
    norms = {}
    for initial in (1e-4, 2e-4):
        model = scaled(initial)
        model(images()).sum().backward()
        norms[initial] = torch.stack([part.module.weight.grad.norm() for part in anatomy(model).linears])
    torch.testing.assert_close(norms[2e-4] / norms[1e-4], torch.full((12,), 2.0), rtol=1e-2, atol=0)


def test_at_initialisation_the_network_is_nearly_the_identity() -> None:
    x = torch.randn(2, 17, 24, generator=torch.Generator().manual_seed(2))
    for initial in (1e-2, 1e-6):
        blocks = scaled(initial).blocks
        norms: list[Tensor] = []

        def note(module: nn.Module, inputs: object, output: Tensor, norms: list[Tensor] = norms) -> None:
            norms.append(output.norm())

        for block in anatomy(nn.ModuleDict({"blocks": blocks})).blocks:
            for part in block.branches:
                part.module.linear.register_forward_hook(note)
        with torch.no_grad():
            moved = (blocks(x) - x).norm()
        assert len(norms) == 6
        assert moved <= initial * sum(norms) * (1 + 1e-3) + 1e-5


def test_the_papers_rule_for_the_depth() -> None:
    assert [initial_scale(depth) for depth in (12, 18, 19, 24, 25, 48)] == [0.1, 0.1, 1e-5, 1e-5, 1e-6, 1e-6]


def test_a_mixture_of_experts_is_scaled_as_a_whole() -> None:
    run = further_run("mixtral", LayerScaleTechnique())
    scaled = [path for path, module in run.model.named_modules() if isinstance(module, LayerScale)]
    assert scaled[:2] == ["model.layers.0.self_attn.o_proj", "model.layers.0.mlp"]
    run.train(2)


@pytest.mark.parametrize("name", ["deit3", "cait", "swinv2"])
def test_a_model_with_a_scale_of_its_own_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="learned scale already"):
        further_run(name, LayerScaleTechnique())


@pytest.mark.parametrize("baseline", ["vit", "gpt", "bert"])
def test_probes_hold_at_another_initial_scale(baseline: str) -> None:
    recording = new_recording(baseline, "layerscale:initial=0.01", size="pico", recipe="classic", steps=4)
    recording.train(4)
    probes = {name.partition(".")[2]: value for name, value in recording.probes().items()}
    assert probes["merged_apart"] < 1e-9
    assert probes["gradient_slope"] == pytest.approx(1, abs=1e-2)
    if baseline != "bert":
        assert probes["moved_over_bound"] <= 1
        assert probes["jacobian_off"] < 20
