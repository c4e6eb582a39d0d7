"""What compiled kernels are told: each job's arguments by name and kind, for both those who give and those who read.

Kernels get one row of whole numbers in memory. A table says what stands there, entry by entry. Python makes the tuple,
which fails where an entry is missing or unknown, and its numbers are the row; a kernel has the same tuple again, with
pointers for addresses (`regrow.kernels.cpu.numba.arguments`). Tables within a table hold numbers alone and come first.

An address keeps nothing alive: whoever fills a table in holds its tensors, copies made for it included, until the
kernel is through.
"""

from array import array
from collections.abc import Callable, Sequence
from struct import pack, unpack
from typing import Annotated, Any, NamedTuple, ParamSpec, TypeVar

Table = tuple[Any, ...]
T = TypeVar("T")
Fields = ParamSpec("Fields")

# Addresses of
Values = Annotated[int, "values"]  # numbers of the precision that is computed in
Indices = Annotated[int, "indices"]  # rows or columns, in two bytes or four
Int32s = Annotated[int, "int32"]
Int64s = Annotated[int, "int64"]
Float64s = Annotated[int, "float64"]
Bytes = int  # memory of which a kernel knows what is where

Float = Annotated[int, "float"]  # not a whole number: its bits


def bits(number: float) -> int:
    """A `Float` as an entry of a table."""
    whole: int = unpack("q", pack("d", number))[0]
    return whole


def filler(table: Callable[Fields, T]) -> Callable[Fields, T]:
    """What makes a table by the names of its entries, in half the time that calling the class would take."""
    made: Callable[Fields, T] = table.__new__.__get__(table)
    return made


def numbers(table: Table) -> Sequence[int]:
    """The row of numbers that a table stands for."""
    if not isinstance(table[0], tuple):
        return table
    row: list[int] = []
    for place, entry in enumerate(table):
        if not isinstance(entry, tuple):
            return [*row, *table[place:]]
        row += entry
    return row


def kept(table: Table) -> tuple["array[int]", int]:
    """A table for others to point to, in memory for as long as the first is held, and its address."""
    row = array("q", numbers(table))
    return row, row.buffer_info()[0]


class Entries(NamedTuple):
    """Where a matrix has its entries, in row order and in column order."""

    row_starts: Int32s
    columns: Indices
    col_starts: Int32s
    rows: Indices
    num_rows: int
    num_columns: int


class ReadEntries(NamedTuple):
    """Positions as they are given, to be checked, and where column order goes."""

    made: Entries
    rows: Int64s
    columns: Int64s
    num: int
    wrong: Int64s


class OrderByRow(NamedTuple):
    pattern: Entries


class NumberEntries(NamedTuple):
    pattern: Entries
    row_step: int
    column_step: int
    made: Int64s


class ListByRow(NamedTuple):
    pattern: Entries
    cursors: Int32s
    made: Int64s
    order: Int64s


class Exchange(NamedTuple):
    """Values in column order and a matrix."""

    pattern: Entries
    values: Values
    matrix: Values
    inward: int  # whether the values go to the matrix, or come from there


class LayOut(NamedTuple):
    x: Values
    step_sample: int
    step_channel: int
    tiles: Values
    num_channels: int
    num_samples: int
    num_padded: int
    tile: int
    num_chunks: int


class Tiles(NamedTuple):
    """How all batches of one size are cut, and the matrix with them."""

    num_samples: int
    num_padded: int
    tile: int
    rows_at_once: int
    columns_at_once: int


class ForwardPlan(NamedTuple):
    """What all forward passes of a linear layer through batches of one size have in common."""

    pattern: Entries
    tiles: Tiles
    by_row_at: int  # bytes from the beginning of scratch memory, like the others
    sums_at: int
    cursors_at: int
    reached_at: int


class LinearForward(NamedTuple):
    plan: Annotated[int, ForwardPlan]
    values: Values
    bias: Values  # or 0
    y: Values
    scratch: Bytes
    x: Values
    step_sample: int
    step_channel: int


class BackwardPlan(NamedTuple):
    """Likewise, for the way back."""

    pattern: Entries
    tiles: Tiles
    own_at: int
    reached_at: int


class LinearBackward(NamedTuple):
    plan: Annotated[int, BackwardPlan]
    values: Values
    gradient: Values
    scratch: Bytes
    x: Values
    step_sample: int
    step_channel: int
    dx: Values  # or 0
    dy: Values
    step_below: int  # from sample to sample of dy
    step_row: int


class VectorForward(NamedTuple):
    """A forward pass of a linear layer through one sample."""

    pattern: Annotated[int, Entries]
    values: Values
    bias: Values  # or 0
    y: Values
    x: Values
    step_channel: int


class NormPlan(NamedTuple):
    """What all passes through a norm have in common."""

    num_samples: int
    num_channels: int
    epsilon: Float
    momentum: Float
    floor: Float  # 0 for ReLU, else -inf
    weight: Values  # this and the rest for the way forth alone: on the way back they may be elsewhere
    bias: Values
    running_mean: Values
    running_variance: Values
    num_batches: Int64s


class NormForward(NamedTuple):
    plan: Annotated[int, NormPlan]
    h: Values
    y: Values
    sums: Float64s


class NormBackward(NamedTuple):
    plan: Annotated[int, NormPlan]
    h: Values
    dy: Values
    dh: Values
    dweight: Values
    dbias: Values
    bias: Values
    sums: Float64s


class BlockForward(NamedTuple):
    """A linear layer and the norm after it."""

    layer: LinearForward
    norm: NormForward


class BlockBackward(NamedTuple):
    """Likewise, for the way back."""

    layer: LinearBackward
    norm: NormBackward


class Pictures(NamedTuple):
    """How a batch of pictures lies in memory, and how it is to lie in planes."""

    step_image: int
    step_channel: int
    depth: int
    height: int
    width: int
    step_depth: int
    step_height: int
    step_width: int
    stride_depth: int
    stride_height: int
    stride_width: int
    plane_depth: int
    plane_height: int
    plane_width: int
    images_at_once: int


class PlaneSizes(NamedTuple):
    """How planes lie in the memory of one thread, in numbers."""

    span: int  # from the first output of an image to its last
    channel_step: int  # from a channel of the inputs to the next
    output_step: int  # likewise of the outputs
    before: int  # what taps may reach before the first plane
    plane_memory: int  # all planes of the inputs


class ConvOrder(NamedTuple):
    pattern: Entries
    values: Values
    by_row: Values
    taps: Int32s
    places: Int32s
    cursors: Int32s


class ConvForward(NamedTuple):
    x_pictures: Pictures
    y_pictures: Pictures
    sizes: PlaneSizes
    pattern: Entries
    x: Values
    y: Values
    bias: Values  # or 0
    places: Int32s
    by_row: Values
    num_groups: int
    num_channels: int
    num_images: int
    planes: Values
    sums: Values


class ConvBackward(NamedTuple):
    x_pictures: Pictures
    y_pictures: Pictures
    dx_pictures: Pictures
    sizes: PlaneSizes
    pattern: Entries
    x: Values
    dy: Values
    dx: Values  # or 0
    taps: Int32s
    values: Values
    num_groups: int
    num_channels: int
    num_images: int
    planes: Values
    back: Values
    below: Values
    gradients: Values
