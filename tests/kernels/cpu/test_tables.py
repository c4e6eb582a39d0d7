"""What compiled kernels are told: the same names on the side that fills a table in and on the side that reads it."""

import sys
from pathlib import Path

import pytest
import torch

from regrow.kernels.cpu import tables
from regrow.kernels.cpu.numba import arguments, entries
from regrow.kernels.cpu.tables import Entries, Exchange, LayOut, Tiles, filler, numbers
from regrow.kernels.cpu.threads import run

LAY_OUT = dict(zip(LayOut._fields, range(9), strict=True))
ENTRIES = Entries(*range(6))


def test_a_table_is_filled_in_by_name():
    fill = filler(LayOut)
    assert fill(**LAY_OUT) == LayOut(**LAY_OUT)
    assert list(numbers(fill(**LAY_OUT))) == list(range(9))


def test_an_entry_that_is_missing_or_unknown_is_an_error():
    without = {name: number for name, number in LAY_OUT.items() if name != "tile"}
    with pytest.raises(TypeError, match="tile"):
        filler(LayOut)(**without)
    with pytest.raises(TypeError, match="tiling"):
        filler(LayOut)(**LAY_OUT, tiling=7)


def test_the_table_of_another_kernel_is_an_error():
    with pytest.raises(TypeError, match="exchange takes Exchange, got LayOut"):
        run("exchange", torch.float32, torch.int32, 1, LayOut(**LAY_OUT), work=1)


def test_tables_within_a_table_lie_where_they_stand():
    assert list(numbers(Exchange(ENTRIES, 6, 7, 8))) == list(range(9))
    assert list(numbers((ENTRIES, Tiles(*range(6, 11))))) == list(range(11))


def test_tables_within_a_table_come_first_and_hold_numbers_alone():
    with pytest.raises(TypeError):
        run("exchange", torch.float32, torch.int32, 1, Exchange(1, 2, ENTRIES, 3), work=1)
    with pytest.raises(TypeError):
        run("exchange", torch.float32, torch.int32, 1, Exchange((ENTRIES, 1), 2, 3, 4), work=1)


def test_everything_that_is_compiled_is_stamped():
    compiled = {Path(file.__file__) for name, file in sys.modules.items() if name.startswith(arguments.__package__)}
    assert compiled | {Path(tables.__file__)} <= set(entries._sources())
