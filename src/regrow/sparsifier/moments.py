"""How an adaptive optimizer's state of grown weights begins: `attach(..., moments=...)`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor
from torch.optim import Optimizer

from regrow.distributed.dtensor import is_sharded
from regrow.methods.effects.aged import AgedMoments
from regrow.methods.effects.effect import Effect
from regrow.methods.effects.informed import InformedMoments
from regrow.methods.effects.moments import Moments
from regrow.methods.method import Method
from regrow.storage.moments import moments_of

_EFFECTS = {"aged": AgedMoments, "informed": InformedMoments}


@dataclass(frozen=True)
class GrownMoments:
    """`how`: "clean", "aged" or "informed". `of_groups`: what each parameter group has; nothing if nothing grows."""

    how: str = "clean"
    of_groups: Mapping[int, Moments] = field(default_factory=dict)

    def effects(self) -> list[Effect]:
        return [_EFFECTS[self.how](self.of_groups)] if self.of_groups else []

    def check_state(self, beside: Mapping[str, object]) -> None:
        """Refuse a state in which weights have an age and here they have none, or the other way around."""
        is_aged = "grown_at" in beside
        if is_aged != any(isinstance(effect, AgedMoments) for effect in self.effects()):
            theirs = 'with moments="aged"' if is_aged else 'without moments="aged"'
            raise ValueError(
                f"the state was saved {theirs}, and this sparsifier has moments={self.how!r}; use the same"
            )


def grown_moments(how: str, method: Method, optimizer: Optimizer, parameters: Sequence[Tensor]) -> GrownMoments:
    """What `attach` was asked for; refused where method or optimizer leave it no meaning."""
    if how not in ("clean", *_EFFECTS):
        raise ValueError(f'moments must be "clean", "aged" or "informed", got {how!r}')
    if how == "clean":
        return GrownMoments()
    name = type(method).__name__
    if "dense_step" in method.needs:
        raise ValueError(f'{name} keeps the moments of every place, so that none begin anew; use moments="clean"')
    if method.rewires_every_step:
        raise ValueError(
            f'{name} rewires in every step, before weights have any moments to speak of; use moments="clean"'
        )
    if any(map(is_sharded, parameters)):
        raise ValueError('moments of weights that are sharded over ranks can only begin at 0; use moments="clean"')
    found = {number: _fit(how, optimizer, own) for number, own in moments_of(optimizer, parameters).items()}
    return GrownMoments(how, found if method.rewires else {})


def _fit(how: str, optimizer: Optimizer, moments: Moments | None) -> Moments:
    name = type(optimizer).__name__
    if moments is None or not moments.second:
        raise ValueError(
            f"moments={how!r} is for optimizers that keep a mean of squared gradients, as Adam does, and {name} keeps "
            'none; use moments="clean"'
        )
    if how == "informed":
        return moments
    if moments.second_decay is None:
        raise ValueError(
            f'moments="aged" is for means of squared gradients, and {name} adds them up without end; use '
            'moments="informed" or "clean"'
        )
    if moments.others:
        raise ValueError(
            f'moments="aged" corrects means of gradients and of their squares, and {name} has {min(moments.others)!r}, '
            'too; use moments="informed" or "clean"'
        )
    return moments
