"""Packed storage as a value: what `attach(..., storage=...)` takes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.kernels.cpu.choose import Choices
from regrow.methods.method import Method
from regrow.storage.base import Chosen, Start
from regrow.storage.computed_weights import leave_out_unfit
from regrow.storage.optimizer_state import check_leaves_zeros_alone
from regrow.storage.packed.build import Init, check_packable, pack_weights
from regrow.storage.packed.growth import check_sees_all_gradients
from regrow.storage.packed.meta import become_real, check_can_become_real
from regrow.storage.packed.storage import PackedStorage

Kernels = Literal["auto", "sparse", "dense"]


@dataclass(frozen=True)
class Packed:
    """Packed storage: of sparse layers the active weights are all there is.

    - `kernels`: how layers compute on a CPU: "sparse" on their values alone, "dense" as dense ones for a moment, or
      "auto", whichever is measured to be faster for each; that becomes part of `state_dict()`.
    - `init`: for layers on the meta device, whose weights never existed: a function (name, shape, n, generator) -> n
      values. By default they are drawn as torch draws the weights of linear and convolution layers.
    """

    kernels: Kernels = "auto"
    init: Init | None = None

    name: ClassVar[str] = "packed"
    offers: ClassVar[frozenset[str]] = frozenset({"gradient", "free_gradient", "sampled_gradient", "sign"})
    may_be_meta: ClassVar[bool] = True
    may_be_sharded: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.kernels not in get_args(Kernels):
            raise ValueError(f"kernels must be one of {get_args(Kernels)}, got {self.kernels!r}")

    def check(self, method: Method, how: str | Mapping[str, Tensor]) -> None:
        name = type(method).__name__
        if "free_gradient" in method.needs:
            if not method.regrows_in_place:
                raise ValueError(
                    f"{name} grows by gradient across layers, and packed storage must know before the backward pass "
                    "how much grows in each; use storage='dense'"
                )
            check_sees_all_gradients()
        if method.granularity != "weight":
            raise ValueError(
                f"packed storage holds single weights; use granularity='weight', not {str(method.granularity)!r}"
            )

    def choices(self, goes_back: bool = True) -> Choices:
        """Which way layers compute on a CPU, in a training or, where nobody goes back, in use."""
        return Choices(None if self.kernels == "auto" else self.kernels, goes_back=goes_back)

    def fit(self, model: nn.Module, chosen: Chosen) -> Chosen:
        return leave_out_unfit(model, chosen, "packed")

    def build(
        self, model: nn.Module, optimizer: Optimizer, chosen: Chosen, start: Start
    ) -> tuple[PackedStorage, Callable[[], None]]:
        parameters = [parameter for _, parameter in chosen]
        check_leaves_zeros_alone(optimizer, parameters)
        check_packable(model, optimizer, chosen)
        self._check_first_values(parameters, start)
        check_can_become_real(model, parameters)
        storage, take_over = pack_weights(model, optimizer, chosen, start, self.init, self.choices())

        def begin() -> None:
            take_over()
            become_real(model, optimizer, storage.packs[0].values.device)

        return storage, begin

    def _check_first_values(self, parameters: Sequence[Tensor], start: Start) -> None:
        has_meta = any(parameter.is_meta for parameter in parameters)
        if has_meta and start.how == "magnitude":
            raise ValueError('weights on the meta device have no magnitudes; attach with start="random"')
        if self.init is not None and not has_meta:
            raise ValueError(
                "init is for layers on the meta device, and this model has weights; set them before attaching"
            )
