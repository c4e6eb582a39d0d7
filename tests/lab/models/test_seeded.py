"""The first weights of a network are a function of the seed, whatever it is made of and whoever wrote it."""

import random
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from regrow.lab.config import make_config
from regrow.lab.config.component import components
from regrow.lab.data import synthesize
from regrow.lab.models import Inputs, Model, Shape, initialize, read_model
from regrow.lab.models.seeded import build_from_seed
from regrow.lab.run.start import build_model

NARROW = 0.1


def stir() -> None:
    """Leave all global generators somewhere else."""
    torch.rand(7)
    random.random()
    np.random.rand(3)


def values(network: nn.Module) -> dict[str, Tensor]:
    return dict(network.state_dict())


def are_equal(one: nn.Module, other: nn.Module) -> bool:
    mine, others = values(one), values(other)
    return mine.keys() == others.keys() and all(torch.equal(mine[name], others[name]) for name in mine)


class Mixed(nn.Module):
    """Some of everything that draws itself from a global generator."""

    def __init__(self, inputs: Inputs) -> None:
        super().__init__()
        self.embedding = nn.Embedding(inputs.num_classes, 8)
        self.bare = nn.Parameter(torch.randn(4, 8))
        self.attention = nn.MultiheadAttention(8, 2)
        self.recurrent = nn.GRU(8, 8)
        self.norm = nn.LayerNorm(8)
        self.of_numpy = nn.Parameter(torch.from_numpy(np.random.rand(3)))
        self.of_python = nn.Parameter(torch.tensor([random.random()]))
        self.register_buffer("projection", torch.randn(8, 3))


class OfSomebody(Model):
    """A model as people bring it."""

    name: ClassVar[str] = "of_somebody"
    usual: ClassVar[Inputs] = Shape((4,), 10)
    make: ClassVar[type[nn.Module]] = Mixed

    def build(self, inputs: Inputs, width: float = 1.0) -> nn.Module:
        return self.make(inputs)


@pytest.mark.parametrize("name", components("model"))
def test_two_builds_with_one_seed_are_the_same_whatever_was_drawn_before(name: str) -> None:
    model = read_model(name)
    one = build_from_seed(model, model.usual, NARROW, 3)
    stir()
    assert are_equal(one, build_from_seed(model, model.usual, NARROW, 3))
    other = dict(build_from_seed(model, model.usual, NARROW, 4).named_parameters())
    constant = {key for key, p in one.named_parameters() if p.unique().numel() == 1}  # biases and norms
    assert all(not torch.equal(p, other[key]) for key, p in one.named_parameters() if key not in constant)
    assert all(one.get_parameter(key).dim() == 1 for key in constant)


def test_everything_in_a_model_of_somebody_else_follows_from_the_seed() -> None:
    one = build_from_seed(OfSomebody(), OfSomebody.usual, 1.0, 2**64 - 1)
    stir()
    assert are_equal(one, build_from_seed(OfSomebody(), OfSomebody.usual, 1.0, 2**64 - 1))
    other = values(build_from_seed(OfSomebody(), OfSomebody.usual, 1.0, 1))
    changed = {name for name, value in values(one).items() if not torch.equal(value, other[name])}
    assert changed >= {"embedding.weight", "bare", "attention.in_proj_weight", "recurrent.weight_hh_l0"}
    assert changed >= {"of_numpy", "of_python", "projection"}


def test_building_leaves_everybodys_generators_as_they_were() -> None:
    stir()
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    build_from_seed(OfSomebody(), OfSomebody.usual, 1.0, 0)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), np.random.get_state()[1].tolist())
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("name", ["lenet_300_100", "wrn_10_1", "resnet_50"])
def test_the_papers_networks_are_drawn_by_the_papers_rule_from_a_generator_of_their_own(name: str) -> None:
    model = read_model(name)
    network = model.build(model.usual, NARROW)
    initialize(network, torch.Generator().manual_seed(5))
    assert are_equal(network, build_from_seed(model, model.usual, NARROW, 5))


def test_a_run_gives_its_network_the_weights_of_its_seed() -> None:
    data = synthesize(image_shape=(3, 8, 8))
    settings = {"model": {"name": "vit", "width": 12, "depth": 1}, "method": "SET", "sparsity": 0.5}
    settings |= {"data": "synthetic_colour", "batch_size": 10, "epochs": 1, "optimizer": {"lr": 0.1}}
    one, other, twin = (build_model(make_config({**settings, "seed": seed}), data) for seed in (0, 1, 0))
    assert are_equal(one, twin)
    assert not torch.equal(one.positions, other.positions)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.ParameterList([torch.empty(3)]), "nobody has given 0 of of_somebody its first values; draw them"),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(2)), "1.weight of of_somebody has no shape yet"),
        (lambda: nn.Linear(2, 2, device="meta"), "weight of of_somebody is on meta; build it on the CPU"),
    ],
)
def test_values_that_nobody_drew_are_refused(make, message: str) -> None:
    class Careless(OfSomebody):
        def build(self, inputs: Inputs, width: float = 1.0) -> nn.Module:
            network: nn.Module = make()
            return network

    with pytest.raises(ValueError, match=message):
        build_from_seed(Careless(), OfSomebody.usual, 1.0, 0)
