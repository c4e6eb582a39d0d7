"""The search that ranks do together, with one rank: it takes what is taken where everything is at hand."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.core.selections import k_smallest, k_smallest_each
from regrow.core.units import Layer
from regrow.distributed.collectives import Ranks
from regrow.distributed.search import Candidates, Order, first_of
from regrow.distributed.shard import Shard, ShardedChunk, cut_shards

CPU = torch.device("cpu")
ALONE = Ranks([], CPU)


def whole(*lengths: int) -> ShardedChunk:
    """A chunk of vectors all of which is here."""
    shards = [part_of(length, torch.arange(length)) for length in lengths]
    [chunk] = cut_shards(shards, [CPU] * len(shards), None)
    return chunk


def part_of(length: int, here: torch.Tensor) -> Shard:
    layer = Layer("layer", (length,), (1,), (0,))
    return Shard(layer.name, (len(here),), layer.unit_shape, layer.unit_dims, layer, (here,))


def taken(scores: torch.Tensor, lengths: list[int], wanted: list[int], order: Order | None = None) -> list[int]:
    [found] = first_of([Candidates(whole(*lengths), lambda: scores)], wanted, ALONE, order)
    return found.tolist()


def test_the_smallest_of_each_layer_and_of_equal_ones_the_first():
    scores = torch.tensor([3.0, 1.0, 2.0, 1.0, 1.0, -0.0, 0.0])
    assert taken(scores, [5, 2], [2, 1]) == [1, 3, 5]
    assert taken(scores, [5, 2], [2, 0], Order(is_last_first=True)) == [3, 4]


def test_of_all_layers_together():
    scores = torch.tensor([3.0, 1.0, 2.0, 1.0, 1.0, 0.5, 0.0])
    assert taken(scores, [5, 2], [3], Order(groups=[0, 0])) == [1, 5, 6]


def test_units_of_several_weights_go_on_until_it_is_enough():
    scores = torch.tensor([3.0, 1.0, 2.0, 0.5])
    assert taken(scores, [2, 2], [4], Order(groups=[0, 0], weights=[2, 3])) == [1, 3]
    assert taken(scores, [2, 2], [6], Order(groups=[0, 0], weights=[2, 3])) == [1, 2, 3]


numbers = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 2.0, torch.inf, 1e-45, -1e-45]), st.floats(width=32, allow_nan=False)
)


@settings(deadline=None)
@given(st.lists(st.lists(numbers, min_size=1, max_size=40), min_size=1, max_size=3), st.data())
def test_it_takes_what_is_the_smallest_where_all_is_at_hand(layers, data):
    lengths = [len(own) for own in layers]
    wanted = [data.draw(st.integers(0, length)) for length in lengths]
    for dtype in (torch.float32, torch.float64):
        scores = torch.tensor([score for own in layers for score in own], dtype=dtype)
        assert taken(scores, lengths, wanted) == k_smallest_each(scores, lengths, wanted).tolist()
        assert (
            taken(scores, lengths, [sum(wanted)], Order(groups=[0] * len(lengths)))
            == k_smallest(scores, sum(wanted)).tolist()
        )


@settings(deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=40), st.data())
def test_whole_numbers_of_64_bits_compare_too(values, data):
    wanted = data.draw(st.integers(0, len(values)))
    scores = torch.tensor(values)
    assert taken(scores, [len(values)], [wanted]) == k_smallest(scores, wanted).tolist()


def test_a_shard_knows_the_numbers_of_its_units_in_the_whole_layer():
    layer = Layer("layer", (4, 6), (1, 1), (0, 1))
    here = (torch.tensor([1, 3]), torch.tensor([0, 1, 5]))
    shard = Shard("layer", (2, 3), (1, 1), (0, 1), layer, here)
    units = torch.arange(6)
    assert shard.outward(units).tolist() == [6, 7, 11, 18, 19, 23]
    back, are_here = shard.inward(torch.arange(24))
    assert back[are_here].tolist() == units.tolist()
    assert are_here.nonzero().flatten().tolist() == [6, 7, 11, 18, 19, 23]
