"""What numba lacks for these kernels: typed pointers, short vectors that live in registers, and a shared counter.

`Lanes(dtype, count)` is LLVM's vector type. A count larger than the machine's registers is split into several of them,
so that `fma(v, load(acc, x, i), acc)` over 64 lanes keeps a whole tile of sums in registers: the blocking that dense
libraries write by hand. Sums may be reassociated and multiplications fused; nan and inf stay what they are.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

_FLAGS = ("reassoc", "contract", "nsz")


class Lanes(types.Type):
    """`count` numbers side by side."""

    def __init__(self, dtype, count):
        self.dtype, self.count = dtype, count
        super().__init__(f"Lanes({dtype}, {count})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager, lanes):
        super().__init__(manager, lanes, ir.VectorType(manager.lookup(lanes.dtype).get_value_type(), lanes.count))


@intrinsic
def pointer(typing, address, dtype):
    """A number or another pointer as a pointer to numbers of a dtype; p[i] is then not checked in any way."""
    result = types.CPointer(dtype.instance_type)

    def generate(context, builder, signature, args):
        kind = context.get_value_type(result)
        return (builder.inttoptr if isinstance(address, types.Integer) else builder.bitcast)(args[0], kind)

    return result(address, dtype), generate


@intrinsic
def is_given(typing, address):
    """Whether a pointer points to anything."""

    def generate(context, builder, signature, args):
        return builder.icmp_unsigned("!=", args[0], ir.Constant(args[0].type, None))

    return types.boolean(address), generate


@intrinsic
def ahead(typing, base, count):
    """A pointer to base[count]."""

    def generate(context, builder, signature, args):
        return builder.gep(args[0], [args[1]])

    return base(base, types.intp), generate


@intrinsic
def splat(typing, number, count):
    """The same number in all of `count` lanes."""
    if not isinstance(count, types.IntegerLiteral):
        return None

    def generate(context, builder, signature, args):
        return _repeat(context, builder, signature.return_type, args[0])

    return Lanes(number, count.literal_value)(number, count), generate


@intrinsic
def zeros(typing, source, count):
    """Zeros of the type that a pointer points to, in `count` lanes."""
    if not isinstance(count, types.IntegerLiteral):
        return None

    def generate(context, builder, signature, args):
        return ir.Constant(context.get_value_type(signature.return_type), None)

    return Lanes(source.dtype, count.literal_value)(source, count), generate


@intrinsic
def load(typing, like, source, index):
    """As many lanes as in `like`, from source[index] on."""

    def generate(context, builder, signature, args):
        place = _place(context, builder, signature.return_type, args[1], args[2])
        return builder.load(place, align=like.dtype.bitwidth // 8)

    return like(like, source, types.intp), generate


@intrinsic
def store(typing, lanes, target, index):
    """Put lanes to target[index] and after."""

    def generate(context, builder, signature, args):
        place = _place(context, builder, lanes, args[1], args[2])
        builder.store(args[0], place, align=lanes.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(lanes, target, types.intp), generate


@intrinsic
def fma(typing, factor, lanes, summand):
    """factor * lanes + summand, the factor being one number or lanes."""

    def generate(context, builder, signature, args):
        factors = args[0] if isinstance(factor, Lanes) else _repeat(context, builder, lanes, args[0])
        return builder.fadd(builder.fmul(factors, args[1], flags=_FLAGS), args[2], flags=_FLAGS)

    return summand(factor, lanes, summand), generate


@intrinsic
def total(typing, lanes):
    """The sum of all lanes."""

    def generate(context, builder, signature, args):
        kind = args[0].type
        name = f"llvm.vector.reduce.fadd.v{kind.count}f{lanes.dtype.bitwidth}"
        function_type = ir.FunctionType(kind.element, [kind.element, kind])
        function = cgutils.get_or_insert_function(builder.module, function_type, name)
        return builder.call(function, [ir.Constant(kind.element, -0.0), args[0]], fastmath=_FLAGS)

    return lanes.dtype(lanes), generate


@intrinsic
def turn_square(typing, source, step, target, target_step):
    """target[j, i] = source[i, j] for 8 x 8 numbers, in registers.

    Halves, quarters and eighths change places: with s = 1, 2, 4, where bit s of i and of j differ.
    """

    def generate(context, builder, signature, args):
        lanes = Lanes(source.dtype, 8)
        align = source.dtype.bitwidth // 8
        at = [[builder.mul(ir.Constant(ir.IntType(64), i), args[k]) for i in range(8)] for k in (1, 3)]
        lines = [builder.load(_place(context, builder, lanes, args[0], i), align=align) for i in at[0]]
        for s in (1, 2, 4):
            for i in range(8):
                if not i & s:
                    upper = [8 + j - s if j & s else j for j in range(8)]
                    lower = [8 + j if j & s else j + s for j in range(8)]
                    pair = lines[i], lines[i + s]
                    lines[i], lines[i + s] = (_shuffle(builder, *pair, order) for order in (upper, lower))
        for line, i in zip(lines, at[1], strict=True):
            builder.store(line, _place(context, builder, lanes, args[2], i), align=align)
        return context.get_dummy_value()

    return types.void(source, types.intp, target, types.intp), generate


@intrinsic
def take(typing, counter):
    """The number at a pointer, which becomes one more; no two threads get the same."""

    def generate(context, builder, signature, args):
        return builder.atomic_rmw("add", args[0], ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(counter), generate


def _repeat(context, builder, lanes, number):
    kind = context.get_value_type(lanes)
    undefined, whole = ir.Constant(kind, ir.Undefined), ir.IntType(32)
    first = builder.insert_element(undefined, number, ir.Constant(whole, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(whole, kind.count), None))


def _shuffle(builder, first, second, order):
    return builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(ir.IntType(32), len(order)), order))


def _place(context, builder, lanes, base, index):
    return builder.bitcast(builder.gep(base, [index]), context.get_value_type(lanes).as_pointer())
