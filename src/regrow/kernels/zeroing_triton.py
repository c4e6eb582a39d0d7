"""The GPU kernel of `zeroing`: reads one byte per position and writes only where the mask is false."""

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def zero_where_false(tensors, masks, sizes, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Program (b, t) looks at block b of tensor t; blocks past the end of a short tensor do nothing."""
    which = tl.program_id(1)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    for t in tl.static_range(len(tensors)):
        if which == t:
            inside = at < sizes[t]
            keep = tl.load(masks[t] + at, mask=inside, other=1)
            zeros = tl.zeros([BLOCK], dtype=tensors[t].dtype.element_ty)
            tl.store(tensors[t] + at, zeros, mask=inside & (keep == 0))
