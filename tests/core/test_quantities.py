"""Quantities of units, in chunks as storages give them: with an entry for every place, or for active units alone."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.core.quantities import OfChunk
from regrow.core.row import cut_into_chunks
from regrow.core.units import Block
from strategies import CPU, any_rows, make_row, row

_ = None  # a free place
EIGHT = row(
    [0.5, _, -2.0, _],
    [_, _, 1.0, -1.0],
    gradient=[[1, 2, 3, 4], [5, 6, 7, 8]],
    sign=["+-++", "++-+"],
)
NAMES = ["weight", "gradient", "mean_gradient", "sign", "position"]


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_part_shows_the_active_units_and_counts_the_free_places(is_listed):
    (part,) = EIGHT.parts(is_listed=is_listed)
    assert part.places.tolist() == [0, 2, 6, 7]
    assert part.units.weight.tolist() == [0.5, -2, 1, -1]
    assert part.units.gradient.tolist() == [1, 3, 7, 8]
    assert part.units.sign.tolist() == [True, True, False, True]
    assert part.free == [2, 2]


@pytest.mark.parametrize("is_listed", [False, True])
def test_positions_are_those_in_the_row_not_those_in_the_chunk(is_listed):
    first, second = EIGHT.parts(limit=4, is_listed=is_listed)
    assert first.units.position.tolist() == [0, 2]
    assert second.places.tolist() == [2, 3]
    assert second.units.position.tolist() == [6, 7]


@pytest.mark.parametrize("is_listed", [False, True])
@pytest.mark.parametrize("name", ["weight", "gradient", "mean_gradient"])
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_quantities_that_are_not_finite_are_refused_with_the_name_of_the_layer(name, wrong, is_listed):
    broken = [torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([0.0, 0.0, wrong, 1.0])]
    (part,) = replace(EIGHT, tensors=tuple(broken), beside={name: broken}).parts(is_listed=is_listed)
    with pytest.raises(ValueError, match=r"layer1 has .*(weight|gradient)s that are not finite"):
        getattr(part.units, name)


def test_what_is_kept_of_active_units_alone_is_taken_before_it_is_sought_everywhere():
    (part,) = EIGHT.parts()
    part = replace(part, kept={"gradient": torch.tensor([9.0, 8.0, 7.0, 6.0])})
    assert part.units.gradient.tolist() == [9, 8, 7, 6]


def test_what_is_kept_of_active_units_must_be_finite_too():
    (part,) = EIGHT.parts()
    part = replace(part, kept={"gradient": torch.tensor([9.0, 8.0, 7.0, torch.nan])})
    with pytest.raises(ValueError, match="layer1 has gradients that are not finite"):
        _ = part.units.gradient


def test_units_know_where_they_lie_in_their_tensors():
    tensors = [torch.ones(2, 4), torch.ones(4, 2)]
    flags = [torch.tensor([1, 0, 0, 1, 0, 1, 0, 0]).bool(), torch.tensor([0, 0, 0, 1, 0, 0, 1, 0]).bool()]
    (part,) = make_row(tensors, flags).parts()
    assert part.units.index(0).tolist() == [0, 0, 1, 1, 3]
    assert part.units.index(1).tolist() == [0, 3, 1, 1, 0]


def test_blocks_lie_where_their_own_grid_says():
    (part,) = make_row([torch.ones(4, 6)], [torch.tensor([0, 1, 1, 0, 0, 1]).bool()], granularity=Block(2, 2)).parts()
    assert part.units.index(0).tolist() == [0, 0, 1]
    assert part.units.index(1).tolist() == [1, 2, 2]


def test_all_units_of_a_chunk_can_be_looked_at_too():
    (chunk,) = cut_into_chunks(EIGHT.layers, [CPU] * 2)
    everything = OfChunk(chunk, lambda name: torch.cat(EIGHT.flat(name)))
    assert everything.position.tolist() == list(range(8))
    assert everything.gradient.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert everything.index(0).tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_a_device_with_a_way_of_its_own_is_asked_first_and_may_decline():
    asked = []

    def declines(*_given):
        asked.append("below")

    (part,) = EIGHT.parts()
    places, counts = replace(part, kernels={"below": declines}).below(1.5, None)
    assert (places.tolist(), counts, asked) == ([0, 6, 7], [1, 2], ["below"])


def test_a_device_with_a_way_of_its_own_is_not_asked_about_other_scores():
    (part,) = EIGHT.parts()
    part = replace(part, kernels={"smallest": lambda *_given: torch.tensor([0, 7])})
    assert part.smallest([1, 1], None).tolist() == [0, 7]
    assert part.smallest([1, 1], torch.tensor([2.0, 1.0, 1.0, 2.0])).tolist() == [2, 6]


@given(any_rows, st.integers(1, 40))
@settings(deadline=None, max_examples=40)
def test_active_units_look_the_same_however_they_are_stored_and_cut(row, limit):
    one, *others = row.in_all_ways(limit)
    for name in NAMES:
        assert all(torch.equal(getattr(one, name), getattr(other, name)) for other in others)
    dims = range(min(len(layer.shape) for layer in row.layers))
    assert all(torch.equal(one.index(dim), other.index(dim)) for dim in dims for other in others)
