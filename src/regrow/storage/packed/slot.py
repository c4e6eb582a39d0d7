"""One layer of a pack, as its module sees it."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regrow.core.units import Layer
from regrow.kernels.cpu.choose import Choices
from regrow.storage.computed_weights import check_not_traced
from regrow.storage.packed import operators
from regrow.storage.packed.gradients import Gradient, Whole
from regrow.storage.packed.growth import Search
from regrow.storage.packed.places import Places
from regrow.storage.packed.sample import Share

if TYPE_CHECKING:
    from regrow.storage.packed.pack import Pack

Version = tuple[Tensor, int, int, int]


class Slot:
    """A layer of a pack."""

    def __init__(self, pack: "Pack", number: int) -> None:
        self.pack, self.number = pack, number
        self.shape = pack.shapes[number]  # what a compiler reads of a layer is here, the same for layers that are alike
        self.unit_dims = pack.unit_dims[number]
        self.stub = pack.stubs[number]

    @property
    def places(self) -> Places:
        return self.pack.places[self.number]

    @property
    def layer(self) -> Layer:
        return self.places.layer

    def values(self) -> Tensor:
        """The values of this layer, differentiable, for one use of it."""
        self.count_use()
        return self.piece()

    def count_use(self) -> None:
        search = self.pack.searches[self.number]
        if search.wanted and torch.is_grad_enabled():
            search.num_uses += 1

    def piece(self) -> Tensor:
        return self.pack.pieces()[self.number]

    def share(self, values: Tensor) -> Tensor:
        """What belongs to this layer of a vector like the values, outside of autograd."""
        start = self.pack.starts[self.number]
        return values.detach()[start : start + self.pack.counts[self.number]]

    def for_compiler(self) -> tuple[Tensor, Tensor, Tensor]:
        """All values, what stands for those of this layer, and the numbers by which operators find it."""
        values: Tensor = self.pack._holder[self.pack.name]
        if not self.stub.fits(values):
            torch.compiler.disable(self.pack.make_stubs)()  # type: ignore[no-untyped-call]
        return values, self.stub.tensor, self.stub.where

    def expand(self, values: None = None) -> Tensor:
        """The weights of the layer, dense, differentiable in the values."""
        check_not_traced(values)
        if torch.compiler.is_compiling():
            return operators.weight(self)
        weight: Tensor = _Expand.apply(self.values(), self)  # type: ignore[no-untyped-call]
        return weight

    def version(self) -> Version:
        """What the layer is computed with: the vector, which others may replace, what is in it, and for which use."""
        pack, values = self.pack, self.pack.values
        try:
            number = values._version
        except RuntimeError:  # made under inference_mode, from where nobody goes back
            number = 0
        return values, number, pack.num_takes, pack.searches[self.number].num_uses

    def check_version(self, version: Version, needs_values: bool) -> None:
        """Refuse to go back through a forward pass with other places or, where they are needed again, other values."""
        values, number, num_takes, _ = version
        if num_takes != self.pack.num_takes or (needs_values and number != values._version):
            raise RuntimeError(
                f"the values of {self.layer.name} have changed between a forward and its backward pass; run backward "
                "before the optimizer's step"
            )

    @property
    def choices(self) -> Choices:
        return self.pack.choices

    @property
    def search(self) -> Search | Share:
        """What is looked for in the next backward pass."""
        return self.pack.searches[self.number]

    @property
    def wanted(self) -> int:
        """How many places that is."""
        return self.pack.searches[self.number].wanted

    def use_of(self, version: Version) -> int:
        """For which use of the layer in a forward pass something was computed."""
        return version[-1]

    def look_for_growth(self, gradient: Gradient, use: int) -> None:
        """Look for what may grow by the gradient of one use."""
        self.search.look(self.places, gradient, use)


class _Expand(torch.autograd.Function):
    """Values to dense weights."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, slot: Slot) -> Tensor:
        ctx.slot, ctx.version = slot, slot.version()
        return slot.places.spread(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.slot.check_version(ctx.version, needs_values=False)
        if ctx.slot.wanted:
            ctx.slot.look_for_growth(Whole(ctx.slot.layer, gradient.detach()), ctx.slot.use_of(ctx.version))
        collected: Tensor = _Collect.apply(gradient, ctx.slot)  # type: ignore[no-untyped-call]
        return collected, None


class _Collect(torch.autograd.Function):
    """Dense gradients to those of the values."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, slot: Slot) -> Tensor:
        ctx.slot, ctx.version = slot, slot.version()
        return slot.places.collect(gradient)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.slot.check_version(ctx.version, needs_values=False)
        return ctx.slot.places.spread(gradient), None
