"""A pack: the weights of a parameter group's sparse layers as one vector, and where each of them belongs."""

import copy
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from regrow.kernels.cpu.choose import Choices
from regrow.storage.base import dtype_of_gradient
from regrow.storage.packed import operators
from regrow.storage.packed.growth import Score, Search
from regrow.storage.packed.pieces import Begun, Stub, of_any_length, pieces, stand_ins
from regrow.storage.packed.places import IndexedPlaces, Places, mark, overwrite
from regrow.storage.packed.sample import Sample, Share, places_of_candidates
from regrow.storage.packed.slot import Slot

if TYPE_CHECKING:
    from regrow.storage.packed.ready import Ready


class Pack:
    """Values, places and, in a step that grows by gradient, the search for free ones; shared by storage and modules.

    `choices` remembers which layers are faster on their values alone. The values are whatever the root module has under
    `name` among the parameters of its own, so that what others put there is what is computed with.
    """

    def __init__(
        self, holder: dict[str, nn.Parameter | None], name: str, places: Sequence[Places], choices: Choices
    ) -> None:
        self.name = name
        self._hold(places)
        self.choices = choices
        self.searches: list[Search | Share] = [Search() for _ in self.places]
        self.is_searched = False  # whether free places are ever looked for
        self.num_takes = 0
        self.begun = Begun()
        self.blocks: dict[int, tuple[Any, Any, Any]] = {}  # of layers and norms, and what they are made of
        self.ready: dict[int, Ready] = {}  # linear layers, for one sample
        self._holder: dict[str, Any] = holder
        self._mark: int | None = None
        self._belongs_to: Tensor | None = None  # if not to the places that are here
        self._made_for: tuple[Any, ...] = ()
        self._pieces: Sequence[Tensor] = ()
        self.shapes = [own.layer.shape for own in self.places]
        self.unit_dims = [own.layer.unit_dims for own in self.places]
        self.stubs = [Stub() for _ in self.places]
        self.known_as = operators.make_known(self)
        self.copies: WeakSet[Pack] = WeakSet()  # that are not trained with places of their own
        self._parted_at: int | None = None
        self.make_stubs()

    def slot(self, number: int) -> Slot:
        """One of the layers."""
        return Slot(self, number)

    @property
    def values(self) -> nn.Parameter:
        values: nn.Parameter = self._holder[self.name]
        return values

    def is_held_by(self, module: nn.Module) -> bool:
        """Whether a module is the one that has the values."""
        return module._parameters is self._holder

    def enter(self, module: nn.Module) -> None:
        """Let a module have the values."""
        module.register_parameter(self.name, self.values)
        self._holder = module._parameters

    def leave(self) -> None:
        """Let the module have no values any more."""
        self._holder = {self.name: self._holder.pop(self.name)}

    def _hold(self, places: Sequence[Places]) -> None:
        """Have these places; with how many values each layer has and where they begin, which is asked all the time."""
        self.places = list(places)
        self.counts = [own.count for own in self.places]
        self.starts = list(accumulate(self.counts, initial=0))[:-1]

    def _be_searched(self) -> None:
        """From now on backward passes look at gradients of free places, of which only operators know."""
        if not self.is_searched:
            self.is_searched = True
            self._let_graphs_compute()

    def split(self, tensor: Tensor) -> Sequence[Tensor]:
        """A vector like the values as one view per layer."""
        return torch.split(tensor, self.counts)

    def pieces(self) -> Sequence[Tensor]:
        """The values of each layer, differentiable in the one parameter.

        They are made once and serve many passes, so that the gradient of all is put together once in each.
        """
        values = self._holder[self.name]
        if self._parted_at is not None:
            self.check_not_mixed()
        try:
            address = values.data_ptr()
        except RuntimeError as error:
            raise RuntimeError(
                "packed layers do not go through torch.func.grad, vmap and the like; call torch.autograd.grad instead"
            ) from error
        stream = torch.cuda.current_stream(values.device).cuda_stream if values.is_cuda else None
        made_for = (id(values), address, values.dtype, values.device, values.requires_grad, stream)
        if made_for != self._made_for:
            self.check_belongs()
            self.follow()
            self._pieces = pieces(values, self.counts, self.begun)
            self._made_for = made_for
        return self._pieces

    def make_stubs(self) -> None:
        """Make what stands for the pieces in a graph that is compiled."""
        self.follow()
        tensors = stand_ins(self.values, self.counts, self.begun)
        for number, (stub, tensor) in enumerate(zip(self.stubs, tensors, strict=True)):
            where = torch.tensor([self.known_as, number], device="cpu")
            stub.tensor, stub.of, stub.where = tensor, self.values, where
        self._let_graphs_compute()

    def _let_graphs_compute(self) -> None:
        """Say where values belong to graphs that need to know no more; elsewhere operators look, when they run."""
        indices = [own.index.detach() for own in self.places if isinstance(own, IndexedPlaces)]
        for stub in self.stubs:
            stub.index = stub.start = None
        if indices and self._is_sure and not self.is_searched:
            starts = torch.tensor(self.starts).to(self.values.device)
            for stub, index, start in zip(self.stubs, of_any_length(indices, self.values), starts, strict=True):
                stub.index, stub.start = index, start

    def follow(self) -> None:
        """Follow the values to another device."""
        device = self.values.device
        if self.places[0].device != device:
            self._hold([places.to(device) for places in self.places])
            if self.sample is not None:
                self.sample.to(device)

    @property
    def sample(self) -> Sample | None:
        """The gradient of free places where growth goes by that of candidates."""
        return self.begun.sample  # type: ignore[no-any-return]

    def search(self, counts: Sequence[int], score: Score) -> None:
        """In the coming step look for so many free places of each layer."""
        self._be_searched()
        self.begun.sample = None
        self.searches = [Search(count, score) for count in counts]

    def look_at(self, units: Sequence[Tensor]) -> None:
        """In the coming step look at the gradients of these units of each layer; of none where there are none."""
        sample = self.sample
        if sample is None:
            sample = self.begun.sample = Sample(dtype_of_gradient(self.values))
            self.searches = [Share(sample, number) for number in range(len(self.places))]
            self._be_searched()
        if not any(map(len, units)):
            sample.rest()
            return
        pairs = zip(self.places, units, strict=True)
        sample.take([places_of_candidates(own.layer, some.to(own.device)) for own, some in pairs])

    def take(self, places: Sequence[Places]) -> None:
        """Take over other places for as many values; in the same memory where nothing changes in size."""
        self.num_takes += 1
        counts = self.counts
        self._hold([overwrite(old, new) for old, new in zip(self.places, places, strict=True)])
        if self.counts != counts:
            self._made_for, self._pieces = (), ()
            self.make_stubs()
        self._mark = None
        self.expect(self._belongs_to)
        for twin in self.copies:
            twin.part()

    def part(self) -> None:
        """The one that this was copied from has other places now, so that its values do not belong here any more."""
        if self._parted_at is None:
            self._parted_at = self.values._version
            self._let_graphs_compute()

    def is_mixed(self) -> bool:
        """Whether somebody wrote such values here; one who averages, since an optimizer would have had gradients."""
        has_changed = self._parted_at is not None and self._parted_at != self.values._version
        return has_changed and self.begun.number == 0

    @property
    def _is_sure(self) -> bool:
        """Whether the values belong to the places that are here."""
        return self._belongs_to is None and self._parted_at is None

    @property
    def mark(self) -> int:
        """What tells these places from others; worked out when it is asked for."""
        if self._mark is None:
            self._mark = mark(self.places)
        return self._mark

    def mark_of_values(self) -> Tensor:
        """The mark of the topology that the values are of, be it here or not; -1 if they are of several."""
        if self.is_mixed():
            return torch.tensor(-1, device="cpu")
        return torch.tensor(self.mark, device="cpu") if self._belongs_to is None else self._belongs_to.clone()

    def expect(self, mark: Tensor | None) -> None:
        """The values are, or are about to be, those of the topology with a mark; None for the one that is here.

        A state that was saved with half precision has its marks so, too: as many bits as there are must agree.
        """
        is_here = mark is None or _agree(mark, torch.tensor(self.mark, device="cpu").to(mark.dtype))
        was_sure = self._is_sure
        self._belongs_to = None if is_here else mark
        self._parted_at = None
        if not is_here:
            self._made_for, self._pieces = (), ()  # so that the next forward pass looks
        if self._is_sure != was_sure:
            self._let_graphs_compute()

    def check_not_mixed(self) -> None:
        """Refuse to compute with values of several topologies."""
        if self.is_mixed():
            raise RuntimeError(
                f"values of a network that was rewired since were written into the {self.name} of this copy, which has "
                "the old topology; keep the average of a packed network with regrow.Average"
            )

    def check_belongs(self) -> None:
        """Refuse to compute with values of another topology."""
        self.check_not_mixed()
        if self._belongs_to is not None:
            raise RuntimeError(
                f"the {self.name} that were loaded into the model belong to another topology than the one it has; load "
                "the state of the sparsifier that was saved with them, too: sparse.load_state_dict(...); or load the "
                "file of the model: regrow.load(...)"
            )

    def __getstate__(self) -> dict[str, Any]:
        """For copying and pickling; pieces are not leaves of autograd, and are made anew."""
        searches = [Search() for _ in self.searches]
        left_out = {
            "searches": searches,
            "blocks": {},
            "ready": {},
            "_made_for": (),
            "_pieces": (),
            "begun": Begun(),
            "copies": None,
        }
        return self.__dict__ | left_out

    def __deepcopy__(self, memo: dict[int, Any]) -> "Pack":
        twin = memo[id(self)] = Pack.__new__(Pack)
        twin.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        self.copies.add(twin)
        return twin

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.copies = WeakSet()
        self.known_as = operators.make_known(self)
        self.make_stubs()


def _agree(one: Tensor, other: Tensor) -> bool:
    a, b = float(one), float(other)
    return a == b or abs(a - b) < 0.5
