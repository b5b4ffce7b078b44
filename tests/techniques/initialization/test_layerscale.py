"""LayerScale against timm's, its rule for the depth, and experts."""

import torch

from suite.model.anatomy import anatomy
from techniques.initialization.layerscale.technique import LayerScale, LayerScaleTechnique, initial_scale
from tests.model.further_models import further_run
from tests.techniques.written_out import images, trial_run, vit


def test_equals_timms_layer_scale() -> None:
    theirs, ours = vit(init_values=0.1), LayerScaleTechnique(0.1).model(vit(), trial_run()).double()
    values = theirs.state_dict()
    state = {name: values[name.replace(".linear.", ".")] for name in ours.state_dict() if not name.endswith(".scale")}
    ours.load_state_dict(state, strict=False)
    ours(images()).square().sum().backward()
    theirs(images()).square().sum().backward()
    torch.testing.assert_close(ours(images()), theirs(images()), rtol=1e-5, atol=1e-6)
    for mine, their in zip(anatomy(ours).blocks, theirs.blocks):
        torch.testing.assert_close(mine.attention_output.module.scale.grad, their.ls1.gamma.grad, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(mine.mlp_output.module.scale.grad, their.ls2.gamma.grad, rtol=1e-4, atol=1e-6)


def test_the_papers_rule_for_the_depth() -> None:
    assert [initial_scale(depth) for depth in (12, 18, 19, 24, 25, 48)] == [0.1, 0.1, 1e-5, 1e-5, 1e-6, 1e-6]


def test_a_mixture_of_experts_is_scaled_as_a_whole() -> None:
    run = further_run("mixtral", LayerScaleTechnique())
    scaled = [path for path, module in run.model.named_modules() if isinstance(module, LayerScale)]
    assert scaled[:2] == ["model.layers.0.self_attn.o_proj", "model.layers.0.mlp"]
    run.train(2)
