"""A kernel's arguments by name: the table of its job as it was filled in, read from memory."""

from typing import get_args, get_type_hints

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_WHOLE = ir.IntType(64)


@intrinsic
def read(typing, numbers, table, value, index):
    """The table that begins at a pointer; addresses in it are pointers, those of other tables followed."""
    kinds = {
        "values": types.CPointer(value.instance_type),
        "indices": types.CPointer(index.instance_type),
        "int32": types.CPointer(types.int32),
        "int64": types.CPointer(types.int64),
        "float64": types.CPointer(types.float64),
        "float": types.float64,
    }
    result = _type_of(table.instance_class, kinds)

    def generate(context, builder, signature, args):
        loaded, _ = _load(context, builder, table.instance_class, result, args[0])
        return loaded

    return result(numbers, table, value, index), generate


def _type_of(entry, kinds):
    """What a kernel sees of an entry, or of a whole table."""
    if _is_table(entry):
        return types.BaseTuple.from_types([_type_of(each, kinds) for each in _entries(entry)], entry)
    if entry is int:
        return types.int64
    _, kind = get_args(entry)
    return _type_of(kind, kinds) if _is_table(kind) else kinds[kind]


def _load(context, builder, table, result, base):
    """A table, and how many numbers it takes."""
    loaded, num = [], 0
    for entry, kind in zip(_entries(table), result.types, strict=True):
        place = builder.gep(base, [_WHOLE(num)])
        if _is_table(entry):
            one, size = _load(context, builder, entry, kind, place)
        else:
            one, size = _convert(context, builder, entry, kind, builder.load(place)), 1
        loaded.append(one)
        num += size
    return context.make_tuple(builder, result, loaded), num


def _convert(context, builder, entry, kind, number):
    """A number as what the entry says that it stands for."""
    if isinstance(kind, types.BaseTuple):
        return _load(context, builder, get_args(entry)[1], kind, builder.inttoptr(number, _WHOLE.as_pointer()))[0]
    if isinstance(kind, types.CPointer):
        return builder.inttoptr(number, context.get_value_type(kind))
    return builder.bitcast(number, context.get_value_type(kind))


def _entries(table):
    return get_type_hints(table, include_extras=True).values()


def _is_table(entry):
    return hasattr(entry, "_fields")
