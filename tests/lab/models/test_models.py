"""Convolutional networks, and the paper's, to the last parameter."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from regrow.lab import models
from regrow.lab.models.resnet import ResNet

SIZES = {
    # name: (parameters, sparse tensors, sparse positions)
    "lenet_300_100": (266_200 + 2 * 410, 3, 266_200),
    "wrn_28_2": (1_467_610, 24, 1_451_520),
    "resnet_50": (25_557_032, 49, 22_724_608),
}
IMAGES = {"lenet_300_100": (1, 28, 28), "wrn_28_2": (3, 32, 32), "resnet_50": (3, 64, 64)}
THIN = {"lenet_300_100": 0.2, "wrn_28_2": 0.2, "resnet_50": 0.05}


def num_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def num_sparse(model: nn.Module) -> int:
    parameters = dict(model.named_parameters())
    return sum(parameters[name].numel() for name in models.sparse_layers(model))


@pytest.fixture(scope="module", params=models.PAPER)
def full(request: pytest.FixtureRequest) -> tuple[str, nn.Module]:
    torch.manual_seed(0)
    return request.param, models.build(request.param)


def test_sizes_are_those_of_the_paper(full: tuple[str, nn.Module]) -> None:
    name, model = full
    sparse = models.sparse_layers(model)
    assert (num_parameters(model), len(sparse), num_sparse(model)) == SIZES[name]
    assert len(set(sparse)) == len(sparse)


def test_dense_rest_of_wrn_28_2() -> None:
    model = models.build("wrn_28_2")
    assert num_parameters(model) - num_sparse(model) == 16_090


@pytest.mark.parametrize(("sparsity", "remaining"), [(0.8, 7_377_346), (0.9, 5_104_885)])
def test_budget_of_resnet_50_is_the_published_one(sparsity: float, remaining: int) -> None:
    with torch.device("meta"):
        model = models.build("resnet_50")
    positions = num_sparse(model)
    assert num_parameters(model) - positions + round((1 - sparsity) * positions) == remaining


def test_sparse_tensors_are_weights_and_the_rest_stays_dense(full: tuple[str, nn.Module]) -> None:
    name, model = full
    parameters = dict(model.named_parameters())
    sparse = models.sparse_layers(model)
    assert all(parameters[layer].dim() >= 2 for layer in sparse)
    dense = {layer for layer, p in parameters.items() if p.dim() >= 2} - set(sparse)
    num_dense = {"lenet_300_100": 0, "wrn_28_2": 1 + 3 + 1, "resnet_50": 1 + 4}
    assert len(dense) == num_dense[name]
    if name == "wrn_28_2":
        assert all(parameters[layer].shape[2:] == (3, 3) for layer in sparse)


def test_weights_start_as_the_paper_says(full: tuple[str, nn.Module]) -> None:
    _, model = full
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            std = math.sqrt(2 / (module.out_channels * module.kernel_size[0] * module.kernel_size[1]))
            tolerance = 5 / math.sqrt(module.weight.numel())
            assert module.weight.std().item() == pytest.approx(std, rel=tolerance)
            assert abs(module.weight.mean().item()) < tolerance * std
        elif isinstance(module, nn.Linear):
            bound = 1 / math.sqrt(module.in_features)
            tensors = [module.weight] if module.bias is None else [module.weight, module.bias]
            assert all(tensor.abs().max() <= bound for tensor in tensors)
            assert module.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)
        elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()


def test_initialize_is_a_function_of_its_generator() -> None:
    one, other = models.build("wrn_10_1"), models.build("wrn_10_1")
    for model in (one, other):
        models.initialize(model, torch.Generator().manual_seed(3))
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(p, q) for p, q in pairs)


@pytest.mark.parametrize("name", models.PAPER)
def test_narrower_is_smaller(name: str) -> None:
    widths = [0.05, 0.1, 0.15, 0.2, 0.31, 0.4] if name == "resnet_50" else [0.03, 0.1, 0.2, 0.31, 0.45, 0.6, 0.8, 1.0]
    with torch.device("meta"):
        thin = [models.build(name, width=width) for width in widths]
    for size in (num_sparse, num_parameters):
        assert all(small < large for small, large in pairwise(size(model) for model in thin))
    assert len({len(models.sparse_layers(model)) for model in thin}) == 1


@pytest.mark.parametrize("name", models.PAPER)
@pytest.mark.parametrize("density", [0.1, 0.2, 0.5])
def test_some_width_comes_close_to_any_thin_dense_target(name: str, density: float) -> None:
    target = (density + 1 / 32) * SIZES[name][2]
    low, high = 0.0, 1.0
    with torch.device("meta"):
        for _ in range(10):
            middle = (low + high) / 2
            low, high = (low, middle) if num_sparse(models.build(name, width=middle)) > target else (middle, high)
        reached = num_sparse(models.build(name, width=low))
    assert reached == pytest.approx(target, rel=0.06)


@pytest.mark.parametrize("name", models.PAPER)
def test_a_training_step_moves_every_parameter(name: str) -> None:
    torch.manual_seed(0)
    model = models.build(name, width=THIN[name], num_classes=7)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    logits = model(torch.randn(4, *IMAGES[name]))
    assert logits.shape == (4, 7)
    nn.functional.cross_entropy(logits, torch.arange(4)).backward()
    optimizer.step()
    assert all(not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_vgg_19_by_hand() -> None:
    model = models.build("vgg_19")
    inner = 64 * 64 + 64 * 128 + 128**2 + 128 * 256 + 3 * 256**2 + 256 * 512 + 7 * 512**2
    norms = 2 * (2 * 64 + 2 * 128 + 4 * 256 + 8 * 512)
    assert num_sparse(model) == 9 * inner
    assert num_parameters(model) == 9 * (3 * 64 + inner) + norms + 512 * 10 + 10
    assert len(models.sparse_layers(model)) == 15, "of sixteen convolutions all but the first"
    assert "features.0.weight" not in models.sparse_layers(model)


@pytest.mark.parametrize(("side", "left"), [(32, 2), (64, 4)])
def test_vgg_19_halves_images_four_times(side: int, left: int) -> None:
    model = models.build("vgg_19", width=0.05, num_classes=7)
    images = torch.randn(2, 3, side, side)
    assert model.features(images).shape[2:] == (left, left)
    assert model(images).shape == (2, 7)


def test_a_small_stem_halves_images_once_where_the_usual_one_does_twice() -> None:
    usual, small = models.build("resnet_50", width=0.05), models.build("resnet_50_small", width=0.05)
    images = torch.randn(1, 3, 64, 64)
    assert small.stem(images).shape == (1, 64, 32, 32)
    assert usual.stem(images).shape == (1, 64, 16, 16)
    assert models.sparse_layers(small) == models.sparse_layers(usual)
    assert num_parameters(usual) - num_parameters(small) == 3 * 64 * (7 * 7 - 3 * 3)


def test_resnet_50_with_a_small_stem_is_another_network_under_a_name_of_its_own() -> None:
    usual, small = models.read_model("resnet_50"), models.read_model({"name": "resnet_50", "stem": "small"})
    assert (usual.said(), str(usual), usual.title) == ("resnet_50", "resnet_50", "ResNet-50")
    assert (small.said(), str(small), small.title) == ("resnet_50_small",) * 2 + ("ResNet-50 (small stem)",)
    assert models.read_model("resnet_50_small") == small
    with pytest.raises(ValueError, match="one of usual, small, got 'tiny'"):
        models.read_model({"name": "resnet_50", "stem": "tiny"})


def test_full_networks_give_logits() -> None:
    for name in ("lenet_300_100", "wrn_28_2"):
        assert models.build(name).eval()(torch.randn(2, *IMAGES[name])).shape == (2, 10)
    assert models.build("resnet_50").eval()(torch.randn(1, *IMAGES["resnet_50"])).shape == (1, 1000)


def test_wrn_downsamples_twice_and_resnet_five_times() -> None:
    wrn, resnet = models.build("wrn_10_1"), ResNet((1, 1, 1, 1), width=0.1)
    assert wrn.groups(wrn.stem(torch.randn(1, 3, 32, 32))).shape == (1, 64, 8, 8)
    assert resnet.groups(resnet.stem(torch.randn(1, 3, 224, 224))).shape[2:] == (7, 7)


def test_any_wide_resnet_by_name() -> None:
    model = models.build("wrn_16_4", image_shape=(1, 32, 32), num_classes=3)
    assert model(torch.randn(2, 1, 16, 16)).shape == (2, 3)
    assert len(models.sparse_layers(model)) == 12


def test_shortcut_only_where_the_shape_changes() -> None:
    convolutions = [
        m for m in models.build("wrn_10_1").modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1)
    ]
    assert len(convolutions) == 2


def test_lenet_takes_other_images() -> None:
    assert models.build("lenet_300_100", image_shape=(3, 32, 32))(torch.randn(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lenet300", "did you mean 'lenet_300_100'"),
        ("resnet50", "did you mean 'resnet_50'"),
        ("zzz", "there are: gpt, .*lenet_300_100"),
        ("wrn_27_2", "depth must be 6n"),
        ("wrn_28_0", "widen must be at least 1"),
    ],
)
def test_unknown_names_are_answered_with_the_next_step(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        models.build(name)


def test_impossible_width_is_refused() -> None:
    with pytest.raises(ValueError, match="width must be positive"):
        models.build("wrn_28_2", width=0)


def test_a_foreign_model_does_not_say_what_is_sparse() -> None:
    with pytest.raises(TypeError, match=r"give it a method sparse_layers\(\)"):
        models.sparse_layers(nn.Linear(2, 2))
