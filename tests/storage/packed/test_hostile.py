"""Odd or wrong things given to packed layers: computed as torch does, or refused before anything changes."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import regrow
from opened_files import opened
from regrow.files.positions import code_of
from regrow.kernels.cpu.conv import conv_backward
from regrow.kernels.cpu.densify import densify
from regrow.kernels.cpu.linear import linear_backward
from regrow.kernels.cpu.pattern import make_pattern
from regrow.kernels.cpu.planes import Convolution


def packed(model, method=None, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    method = method or regrow.Static(sparsity=0.5)
    return regrow.attach(model, optimizer, method, storage=regrow.Packed(kernels="sparse"), **options)


def small_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 10))


@pytest.mark.parametrize("bias", [torch.full((1,), 7.0), torch.arange(60.0)[::2]], ids=["one for all", "with gaps"])
def test_a_bias_that_is_not_a_row_of_numbers_in_memory_is_read_like_torch_reads_it(bias):
    model = small_network()
    model[0].bias = nn.Parameter(bias)
    expected = model[0](torch.zeros(2, 20)).detach()
    packed(model)
    assert torch.equal(model[0](torch.zeros(2, 20)), expected)


def test_the_default_device_does_not_matter():
    model = nn.Sequential(nn.Conv2d(2, 4, 3))
    images = torch.randn(2, 2, 8, 8)
    packed(model)
    expected = model(images)
    try:
        torch.set_default_device("meta")
        assert torch.equal(model(images), expected)
    finally:
        torch.set_default_device(None)


def test_images_smaller_than_the_kernel_are_refused():
    model = nn.Sequential(nn.Conv2d(2, 4, 5, stride=2))
    packed(model)
    with pytest.raises(RuntimeError, match="smaller than the kernel"):
        model(torch.zeros(2, 2, 4, 4))


def test_gradients_of_another_shape_are_refused():
    pattern = make_pattern(torch.tensor([0]), torch.tensor([0]), 1, 9)
    layer = Convolution((3, 3), (1, 1), (0, 0), (1, 1))
    with pytest.raises(ValueError, match=r"has shape \(1, 1, 2, 2\)"):
        conv_backward(pattern, torch.ones(1), torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 3, 3), layer)
    with pytest.raises(ValueError, match="same batch"):
        linear_backward(pattern, torch.ones(1), torch.zeros(3, 9), torch.zeros(2, 1))


def add_the_vector(file):
    file.add("packed_values", "dense:float32", [450])
    file.entries["dense:float32"] = torch.zeros(490)


def change_a_bias(file):
    file.modules["2."][2] = [11]
    file.entries["dense:float32"] = torch.zeros(41)


def tie_to_nothing(file):
    file.metadata["aliases"] = '{"a": "nowhere"}'


def add_a_stranger(file):
    file.add("3.bias", "dense:float32", [3])
    file.entries["dense:float32"] = torch.zeros(43)


def rename_a_layer(file):
    file.modules["4."] = file.modules.pop("2.")


def add_a_sparse_stranger(file):
    code = code_of(np.zeros(0, dtype=np.int64), 8000)
    file.add("3.weight", "values:float32", [[80, 100], 0, code.parameter, len(code.content)])
    file.entries["positions"] = torch.cat([file.entries["positions"], torch.from_numpy(code.content)])


SPOILT = [add_the_vector, change_a_bias, tie_to_nothing, add_a_stranger, rename_a_layer, add_a_sparse_stranger]


@pytest.mark.parametrize("spoil", SPOILT)
def test_a_file_that_does_not_fit_a_packed_model_changes_nothing(spoil, tmp_path):
    path = tmp_path / "model.safetensors"
    model = small_network()
    regrow.save(path, model, packed(model))
    with opened(path) as file:
        spoil(file)
    model = small_network()
    sparse = packed(model, seed=1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    masks = sparse.masks()
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        regrow.load(path, model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(torch.equal(mask, masks[name]) for name, mask in sparse.masks().items())


def lower_the_budget(state):
    state["budget"] = 3


def fold_positions(state):
    state["positions"] = state["positions"].view(-1, 1)


@dataclass(frozen=True, kw_only=True)
class Signed(regrow.Static):
    """Has signs beside its weights."""

    needs = frozenset({"sign"})


def fold_signs(state):
    state["beside"] = {kind: own.view(-1, 1) for kind, own in state["beside"].items()}


@pytest.mark.parametrize("spoil", [lower_the_budget, fold_positions, fold_signs])
def test_a_state_that_contradicts_itself_is_refused(spoil):
    sparse = packed(small_network(), Signed(sparsity=0.5))
    state = sparse.state_dict()
    spoil(state)
    with pytest.raises(ValueError, match="contradicts itself"):
        sparse.load_state_dict(state)


@pytest.mark.parametrize("storage", ["dense", "packed"])
def test_what_never_trains_or_gives_sparse_gradients_is_refused(storage):
    model, embedding = small_network(), nn.Embedding(10, 4, sparse=True)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, embedding)]
    with torch.inference_mode(), pytest.raises(ValueError, match="attach outside of it"):
        regrow.attach(model, optimizers[0], regrow.Static(sparsity=0.5), storage=storage)
    with pytest.raises(ValueError, match="build it with sparse=False"):
        regrow.attach(embedding, optimizers[1], regrow.Static(sparsity=0.5), storage=storage, layers="weight")
    assert type(model[0]) is nn.Linear


def test_a_single_number_is_refused():
    model = small_network()
    model.scale = nn.Parameter(torch.ones(()))
    with pytest.raises(ValueError, match="scale is a single number"):
        packed(model, layers="*")


def test_values_with_gaps_in_memory_are_made_dense_all_the_same():
    pattern = make_pattern(torch.tensor([0, 1]), torch.tensor([0, 1]), 2, 2)
    assert densify(pattern, torch.arange(4.0)[1::2]).tolist() == [[1, 0], [0, 3]]


@pytest.mark.parametrize("kernels", ["sparse", "dense"])
def test_the_bias_of_a_layer_on_one_vector_has_a_gradient_for_each_output(kernels):
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    regrow.attach(layer, optimizer, regrow.Static(sparsity=0.5), storage=regrow.Packed(kernels=kernels))
    layer(torch.ones(2)).backward(torch.tensor([3.0, 5.0]))
    assert layer.bias.grad.tolist() == [3, 5]
