"""Where packed values belong: positions, their orders, and how they are exchanged."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from regrow.core import random, selections
from regrow.core.first_topology import random_places
from regrow.core.row import cut_into_chunks
from regrow.core.selections import Listed, draw_free, is_active
from regrow.core.units import Layer, cut
from regrow.storage.packed.growth import best_free
from regrow.storage.packed.places import IndexedPlaces, places_of_ascending, places_of_stored, places_of_units
from regrow.storage.packed.renumber import column_order, exchange, first_free, move, renumber
from strategies import CPU

#   a . b
#   . c d     stored by column: a, c, b, d
MATRIX = torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 4.0]])


def layer_of(*shape, dims=None):
    return Layer("weight", shape, (1,) * len(shape), dims or tuple(range(len(shape))))


def test_values_are_stored_by_column_then_by_row():
    places, order = places_of_units(layer_of(2, 3), torch.tensor([0, 2, 4, 5]))
    assert places.stored().tolist() == [0, 3, 4, 5]
    assert places.units().tolist() == [0, 4, 2, 5]
    assert order.tolist() == [0, 2, 1, 3]
    assert places.collect(MATRIX).tolist() == [1, 3, 2, 4]
    assert torch.equal(places.spread(torch.tensor([1.0, 3.0, 2.0, 4.0])), MATRIX)


def test_a_huge_layer_is_numbered_without_overflow():
    layer = layer_of(100_000, 100_000)
    last = torch.tensor([layer.num_weights - 1])
    places, _ = places_of_units(layer, last)
    assert places.units().tolist() == places.stored().tolist() == [10**10 - 1]


@given(shape=st.lists(st.integers(1, 4), min_size=1, max_size=4), data=st.data())
def test_renumbering_is_what_permuting_a_tensor_does(shape, data):
    old, new = (data.draw(st.permutations(range(len(shape)))) for _ in range(2))
    numbers = torch.arange(torch.Size(shape).numel())
    inverse = [old.index(dim) for dim in range(len(shape))]
    tensor = numbers.view([shape[dim] for dim in old]).permute(inverse)
    assert torch.equal(renumber(tensor.permute(new).reshape(-1), shape, old, new), numbers)


def test_exchanging_keeps_the_order():
    places, source = exchange(torch.tensor([1, 4, 6, 8]), torch.tensor([4, 8]), torch.tensor([9, 0, 5]))
    assert places.tolist() == [0, 1, 5, 6, 9]
    assert source.tolist() == [-1, 0, -1, 2, -1]
    vector = torch.tensor([10.0, 40.0, 60.0, 80.0, 0.0])  # of which only the first four are meant
    move(vector, source)
    assert vector.tolist() == [0, 10, 0, 60, 0]


@given(st.sets(st.integers(0, 60), min_size=1), st.data())
def test_exchanging_is_what_sets_do(before, data):
    gone = data.draw(st.sets(st.sampled_from(sorted(before))))
    come = data.draw(st.sets(st.integers(0, 60).filter(lambda place: place not in before)))
    stored = torch.tensor(sorted(before))
    out, in_ = (torch.tensor(list(some), dtype=torch.int64) for some in (gone, come))
    places, source = exchange(stored, out, in_)
    assert places.tolist() == sorted(before - gone | come)
    for place, old in zip(places.tolist(), source.tolist(), strict=True):
        assert place in come if old < 0 else stored[old] == place


@given(st.sets(st.integers(0, 30)), st.integers(0, 8))
def test_the_first_free_places(active, count):
    expected = [place for place in range(60) if place not in active][:count]
    assert first_free(torch.tensor(sorted(active), dtype=torch.int64), count).tolist() == expected


@given(st.data())
def test_a_list_knows_what_is_active_as_flags_do(data):
    flags = torch.tensor(data.draw(st.lists(st.booleans(), min_size=1, max_size=30)))
    places = torch.tensor(data.draw(st.lists(st.integers(0, len(flags) - 1), max_size=20)), dtype=torch.int64)
    listed = Listed(flags.nonzero().flatten())
    assert torch.equal(is_active(listed, places), is_active(flags, places))


@given(st.lists(st.sampled_from([(3, 4), (50, 40), (7,)]), min_size=1, max_size=3), st.data())
def test_lists_and_flags_draw_the_same_places(shapes, data):
    layers = [layer_of(*shape) for shape in shapes]
    counts = [data.draw(st.integers(1, layer.num_units)) for layer in layers]
    seed = data.draw(st.integers(0, 99))
    (chunk,) = cut_into_chunks(layers, [CPU] * len(layers))
    nothing = torch.zeros(chunk.num_units, dtype=torch.bool)
    listed = random_places(chunk, counts, seed)
    drawn = draw_free(chunk, counts, chunk.sizes, nothing, random.key(seed, 0), {})
    assert torch.equal(drawn.sort().values, listed)
    flags = nothing.index_fill(0, listed, True)
    free = [layer.num_units - count for layer, count in zip(layers, counts, strict=True)]
    wanted = [data.draw(st.integers(0, room)) for room in free]
    one = draw_free(chunk, wanted, free, flags, seed, {})
    other = draw_free(chunk, wanted, free, Listed(listed), seed, {})
    assert torch.equal(one, other)


def test_drawing_in_tiles_is_drawing_at_once(monkeypatch):
    layer = layer_of(60, 50)
    (chunk,) = cut_into_chunks([layer], [CPU])
    at_once = random_places(chunk, [1500], seed=3)
    monkeypatch.setattr(selections, "_TILE", 64)
    assert torch.equal(random_places(chunk, [1500], seed=3), at_once)


@pytest.mark.parametrize("num_parts", [1, 3, 7])
def test_the_best_free_places_are_found_part_by_part(num_parts):
    generator = torch.Generator().manual_seed(0)
    gradient = torch.randint(-9, 10, (70, 30), generator=generator).float()  # many equal ones
    places, _ = places_of_units(layer_of(70, 30), torch.randperm(2100, generator=generator)[:200])
    free_scores = gradient.abs().flatten().index_fill(0, places.units(), -1)
    expected = free_scores.argsort(descending=True, stable=True)[:50].sort().values
    found = best_free(places, gradient.flatten().chunk(num_parts), 50, torch.abs)
    assert torch.equal(found.places, expected)
    assert torch.equal(found.gradients, gradient.flatten()[expected])


@given(dims=st.permutations([0, 1, 2, 3]), seed=st.integers(0, 99))
@example(dims=[0, 1, 2, 3], seed=0)
def test_both_kinds_of_places_say_the_same(dims, seed):
    shape = (4, 3, 2, 5)
    generator = torch.Generator().manual_seed(seed)
    layer = layer_of(*shape, dims=tuple(dims))
    stored = torch.randperm(120, generator=generator)[:30].sort().values
    pattern = places_of_stored(layer, stored)
    units = renumber(stored, shape, column_order(layer), layer.unit_dims)
    indexed = IndexedPlaces(layer, units.to(torch.int32))
    values, dense = torch.randn(30, generator=generator), torch.randn(shape, generator=generator)
    assert torch.equal(indexed.stored(), pattern.stored())
    assert torch.equal(indexed.units(), pattern.units())
    assert torch.equal(indexed.logical(), pattern.logical())
    for one, other in zip(indexed.by_unit(), pattern.by_unit(), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(indexed.spread(values), pattern.spread(values))
    assert torch.equal(indexed.collect(dense), pattern.collect(dense))
    assert torch.equal(indexed.spread(values.bfloat16()), pattern.spread(values.bfloat16()))


@given(shape=st.lists(st.integers(1, 6), min_size=1, max_size=4), seed=st.integers(0, 999), tenths=st.integers(0, 10))
def test_places_in_ascending_order_need_no_sorting(shape, seed, tenths):
    generator = torch.Generator().manual_seed(seed)
    layer, dense = layer_of(*shape), torch.randn(shape, generator=generator)
    logical = (torch.rand(layer.num_weights, generator=generator) * 10 < tenths).nonzero().flatten()
    places, order = places_of_ascending(layer, logical)
    expected, of_units = places_of_units(layer, logical)
    assert torch.equal(order, of_units)
    assert torch.equal(places.stored(), expected.stored())
    assert torch.equal(places.logical(), logical.index_select(0, order))
    assert torch.equal(places.collect(dense), dense.flatten().index_select(0, logical).index_select(0, order))
    for name in ("rows", "col_starts", "columns", "row_starts"):
        assert torch.equal(getattr(places.pattern, name).int(), getattr(expected.pattern, name).int())


def test_the_memory_format_is_that_of_the_weight():
    weight = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    layer = cut("weight", weight, "weight")
    places = IndexedPlaces(layer, torch.tensor([0, 5], dtype=torch.int32))
    assert places.spread(torch.ones(2)).is_contiguous(memory_format=torch.channels_last)
