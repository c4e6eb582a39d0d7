"""The row: layers end to end, cut into chunks of whole layers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.core.row import CHUNK_UNITS, Tally, check_finite, cut_into_chunks, join
from regrow.core.units import cut
from strategies import CPU, any_rows, row, with_pruned

META = torch.device("meta")


def layers_of(*sizes: int):
    return [cut(f"layer{i}", torch.empty(size), "weight") for i, size in enumerate(sizes)]


def sizes_of(chunks):
    return [[layer.num_units for layer in chunk.layers] for chunk in chunks]


def test_a_short_row_is_one_chunk():
    (chunk,) = cut_into_chunks(layers_of(3, 5), [CPU] * 2)
    assert (chunk.first, chunk.start, chunk.offsets, chunk.num_units) == (0, 0, (0, 3, 8), 8)
    assert chunk.sizes == (3, 5)


def test_chunks_hold_whole_layers_up_to_the_limit():
    chunks = cut_into_chunks(layers_of(3, 5, 1, 8, 2), [CPU] * 5, limit=8)
    assert sizes_of(chunks) == [[3, 5], [1], [8], [2]]
    assert [chunk.first for chunk in chunks] == [0, 2, 3, 4]
    assert [chunk.start for chunk in chunks] == [0, 8, 9, 17]


def test_a_layer_longer_than_the_limit_is_a_chunk_of_its_own():
    assert sizes_of(cut_into_chunks(layers_of(2, 100, 2), [CPU] * 3, limit=8)) == [[2], [100], [2]]


def test_a_chunk_stays_on_one_device():
    chunks = cut_into_chunks(layers_of(1, 1, 1), [CPU, META, CPU])
    assert [chunk.device for chunk in chunks] == [CPU, META, CPU]


def test_on_a_cpu_chunks_are_small_by_default():
    limit = CHUNK_UNITS["cpu"]
    assert len(cut_into_chunks(layers_of(limit, 1), [CPU] * 2)) == 2
    assert len(cut_into_chunks(layers_of(limit, 1), [META] * 2)) == 1


def test_a_chunk_knows_its_part_of_a_list_over_all_layers():
    first, second = cut_into_chunks(layers_of(3, 5, 8), [CPU] * 3, limit=8)
    assert (first.of("abc"), second.of("abc")) == ("ab", "c")


def test_a_chunk_counts_ascending_positions_by_layer():
    (chunk,) = cut_into_chunks(layers_of(3, 1, 4), [CPU] * 3)
    assert chunk.count_per_layer(torch.tensor([0, 2, 4, 5, 7])) == [2, 0, 3]
    assert chunk.count_per_layer(torch.tensor([], dtype=torch.int64)) == [0, 0, 0]


def test_splitting_gives_views():
    (chunk,) = cut_into_chunks(layers_of(3, 5), [CPU] * 2)
    flat = torch.arange(8)
    parts = chunk.split(flat)
    parts[1].zero_()
    assert flat.tolist() == [0, 1, 2, 0, 0, 0, 0, 0]


def test_flattening_lays_tensors_end_to_end():
    tensors = [torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([5.0])]
    (chunk,) = cut_into_chunks([cut(str(i), t, "weight") for i, t in enumerate(tensors)], [CPU] * 2)
    assert chunk.flatten(tensors).tolist() == [1, 2, 3, 4, 5]


def test_a_chunk_of_one_layer_is_a_view():
    tensor = torch.ones(2, 4)
    (chunk,) = cut_into_chunks([cut("w", tensor, "weight")], [CPU])
    assert chunk.flatten([tensor]).data_ptr() == tensor.data_ptr()


def test_half_precision_is_widened_and_double_and_bool_are_kept():
    (chunk,) = cut_into_chunks(layers_of(8), [CPU])
    kept = {t: chunk.flatten([torch.ones(8, dtype=t)]).dtype for t in (torch.bfloat16, torch.float64, torch.bool)}
    assert kept == {torch.bfloat16: torch.float32, torch.float64: torch.float64, torch.bool: torch.bool}


def test_where_all_layers_agree_a_number_of_each_is_one_for_all():
    (chunk,) = cut_into_chunks(layers_of(3, 5), [CPU] * 2)
    assert chunk.per_unit([0.5, 0.5], torch.tensor([0, 7])) == 0.5


def test_a_number_of_each_layer_goes_to_its_own_positions():
    (chunk,) = cut_into_chunks(layers_of(3, 1, 4), [CPU] * 3)
    assert chunk.per_unit([0.5, 1.0, 2.0], torch.tensor([0, 2, 3, 4, 7])).tolist() == [0.5, 0.5, 1, 2, 2]


def test_joining_layers_of_several_precisions_takes_the_widest():
    assert join([torch.ones(2), torch.ones(1, dtype=torch.float64)]).dtype == torch.float64
    assert join([torch.ones(2, dtype=torch.float16), torch.ones(1, dtype=torch.bfloat16)]).dtype == torch.float32


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_refused_with_the_name_of_its_layer(wrong):
    with pytest.raises(ValueError, match="layer1 has gradients that are not finite; lower the learning rate"):
        check_finite(torch.tensor([1.0, 2.0, 3.0, wrong, 5.0]), layers_of(2, 3), [2, 3], "gradients")


def test_finite_numbers_pass_however_large():
    check_finite(torch.tensor([3e38, -3e38]), layers_of(2), [2], "weights")


@given(any_rows, st.integers(1, 40))
@settings(deadline=None, max_examples=50)
def test_chunks_cover_the_row_once_and_in_order(row, limit):
    chunks = cut_into_chunks(row.layers, [CPU] * len(row.layers), limit)
    assert [layer for chunk in chunks for layer in chunk.layers] == list(row.layers)
    assert [chunk.first for chunk in chunks] == [row.layers.index(chunk.layers[0]) for chunk in chunks]
    assert [chunk.start for chunk in chunks] == [row.starts[chunk.first] for chunk in chunks]
    assert all(chunk.num_units <= limit or len(chunk.layers) == 1 for chunk in chunks)


# The tally: the row in whole numbers

MIXED = Tally(
    unit_sizes=(4, 1),
    num_units=(3, 8),
    active=(2, 5),
    goal=(1, 4),
    target=8,
    budget=14,
    pruned=(1, 2),
)


def test_free_places_are_those_from_before_pruning():
    # What was just pruned does not count as a place to grow.
    tally = with_pruned(row([0.5, None, -2.0, 1.0], [None, None, None, 1.0]).tally, 2, 0)
    assert tally.free == [1, 3]
    assert tally.survivors == [1, 1]


def test_what_went_may_grow_again():
    tally = with_pruned(row([0.5, None, -2.0, 1.0], [None, None, None, 1.0]).tally, 2, 0)
    assert tally.open_weights == 2


def test_weights_are_units_times_their_size():
    assert MIXED.weights_in([2, 5]) == 13
    assert MIXED.weights_in(MIXED.survivors) == 7


def test_what_an_earlier_pass_left_over_may_grow_too():
    # 13 of a budget of 14 are held, 6 go: 7 survive.
    assert MIXED.open_weights == 7


def test_some_of_the_layers_have_what_they_hold_as_their_budget():
    own = MIXED.of([1])
    assert (own.num_units, own.active, own.goal, own.pruned) == ((8,), (5,), (4,), (2,))
    assert (own.budget, own.target, own.open_weights) == (5, 5, 2)


def test_the_order_of_the_layers_asked_for_is_kept():
    assert MIXED.of([1, 0]).unit_sizes == (1, 4)
