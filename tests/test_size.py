"""Parameters, description length and operations, by hand and as the paper counts them."""

import pytest
import torch
from torch import nn

import regrow
from regrow.lab.models import build, sparse_layers
from regrow.lab.models.thin import thin_width
from regrow.size import Size, count_flops, size_of


def test_a_small_network_by_hand():
    model = nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.Flatten(), nn.Linear(8, 3))
    masks = {"0.weight": torch.zeros(2, 1, 3, 3).bool()}
    masks["0.weight"][0, 0] = True
    size = size_of(model, masks)
    assert size == Size(dense=8 * 3 + 3, active=9, positions=18)
    assert size.parameters == 36
    assert size.bits == 32 * 36 + 18
    # 9 weights at 2 x 2 places, 24 weights once; a multiplication and an addition each
    assert count_flops(model, (1, 4, 4), masks) == 2 * (9 * 4 + 24)
    assert count_flops(model, (1, 4, 4), {}) == 2 * (18 * 4 + 24)


@pytest.mark.parametrize(("sparsity", "parameters"), [(0.8, 7_377_346), (0.9, 5_104_885)])
def test_resnet_50_counts_as_published(sparsity, parameters):
    model = build("resnet_50")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparse = regrow.attach(model, optimizer, regrow.Static(sparsity=sparsity), layers=sparse_layers(model))
    assert size_of(model, sparse.masks()).parameters == parameters


def test_flops_of_wide_resnet_fall_with_its_density():
    model = build("wrn_28_2")
    masks = {name: torch.rand(p.shape) < 0.1 for name, p in model.named_parameters() if name in sparse_layers(model)}
    dense, sparse = count_flops(model, (3, 32, 32), {}), count_flops(model, (3, 32, 32), masks)
    assert 0.1 < sparse / dense < 0.13, "the layers that stay dense are few"


def test_counting_leaves_the_model_as_it_was():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train()
    count_flops(model, (4,), {})
    assert model.training
    assert not model[0]._forward_hooks
    assert model[1].num_batches_tracked == 0


def test_masks_of_another_model_are_refused():
    with pytest.raises(ValueError, match="no parameter 'a'"):
        size_of(nn.Linear(2, 2), {"a": torch.ones(2, 2).bool()})


@pytest.mark.parametrize("name", ["lenet_300_100", "wrn_28_2", "resnet_50"])
@pytest.mark.parametrize("sparsity", [0.5, 0.8, 0.9])
def test_a_thin_network_has_nearly_the_description_length_of_the_sparse_one(name, sparsity):
    with torch.device("meta"):
        whole, thin = build(name), build(name, width=thin_width(name, sparsity))

    def positions(model):
        parameters = dict(model.named_parameters())
        return sum(parameters[layer].numel() for layer in sparse_layers(model))

    wanted = (1 - sparsity + 1 / 32) * positions(whole)
    assert positions(thin) == pytest.approx(wanted, rel=0.06), "widths come in whole channels"
