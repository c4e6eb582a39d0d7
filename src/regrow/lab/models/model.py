"""What every model of the lab is made of."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import nn

from regrow.lab.config.component import Component


class Inputs(Protocol):
    """What a network must be told about its data."""

    @property
    def image_shape(self) -> tuple[int, ...]: ...

    @property
    def num_classes(self) -> int: ...


@dataclass(frozen=True)
class Shape:
    """Just that."""

    image_shape: tuple[int, ...]
    num_classes: int


class Model(Component):
    """Makes a network, a plain module that knows nothing of sparsity but which layers are usually made sparse.

    It is built with its first weights, drawn from torch's global generator, which a run seeds. A language model has a
    field `context`, how many tokens it sees.
    """

    kind: ClassVar[str] = "model"
    paper: ClassVar[str | None] = None
    """Under which name the paper's settings for it are found, if it is one of the paper's."""

    @property
    @abstractmethod
    def usual(self) -> Inputs:
        """What it is usually trained on."""

    @property
    def title(self) -> str:
        """What reports call it."""
        return self.in_words()

    @abstractmethod
    def build(self, inputs: Inputs, width: float = 1.0) -> nn.Module:
        """The network, with hidden layers so many times as wide as they are."""
