"""The row: layers end to end, cut into chunks of whole layers."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.core.row import CHUNK_UNITS, cut_into_chunks
from regrow.core.units import cut
from strategies import CPU, row, rows, with_pruned

META = torch.device("meta")


def layers_of(*sizes: int):
    return [cut(f"layer{i}", torch.empty(size), "weight") for i, size in enumerate(sizes)]


def sizes_of(chunks):
    return [[layer.num_units for layer in chunk.layers] for chunk in chunks]


def test_a_short_row_is_one_chunk():
    (chunk,) = cut_into_chunks(layers_of(3, 5), [CPU] * 2)
    assert (chunk.first, chunk.offsets, chunk.num_units) == (0, (0, 3, 8), 8)


def test_chunks_hold_whole_layers_up_to_the_limit():
    chunks = cut_into_chunks(layers_of(3, 5, 1, 8, 2), [CPU] * 5, limit=8)
    assert sizes_of(chunks) == [[3, 5], [1], [8], [2]]
    assert [chunk.first for chunk in chunks] == [0, 2, 3, 4]


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
    stretch = torch.arange(8)
    parts = chunk.split(stretch)
    parts[1].zero_()
    assert stretch.tolist() == [0, 1, 2, 0, 0, 0, 0, 0]


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


def test_a_stretch_shows_the_active_weights_and_the_free_places():
    (stretch,) = row([0.5, None, -2.0, None], [None, None, 1.0, -1.0]).stretches()
    assert stretch.positions.tolist() == [0, 2, 6, 7]
    assert stretch.counts == (2, 2)
    assert stretch.magnitude.tolist() == [0.5, 2, 1, 1]
    assert stretch.free == [2, 2]


def test_a_tally_counts_free_places_as_they_were_before_pruning():
    tally = with_pruned(row([0.5, None, -2.0, 1.0], [None, None, None, 1.0]).tally, 2, 0)
    assert tally.free == [1, 3]
    assert tally.survivors == [1, 1]
    assert tally.open_weights == 2


@given(rows(), st.integers(1, 40))
@settings(deadline=None, max_examples=50)
def test_chunks_cover_the_row_once_and_in_order(row, limit):
    chunks = cut_into_chunks(row.layers, [CPU] * len(row.layers), limit)
    assert [layer for chunk in chunks for layer in chunk.layers] == list(row.layers)
    assert [chunk.first for chunk in chunks] == [row.layers.index(chunk.layers[0]) for chunk in chunks]
    assert all(chunk.num_units <= limit or len(chunk.layers) == 1 for chunk in chunks)
