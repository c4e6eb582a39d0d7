"""GPT on bytes (Radford et al., 2019)."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from regrow.lab.config.component import component
from regrow.lab.models.model import Inputs, Shape
from regrow.lab.models.transformer import Block, Rotary, Transformer, initialize, matrices

_POSITIONS = ("learned", "rotary")


class Decoder(nn.Module):
    """Tells of every token what comes after it, from those before."""

    def __init__(
        self, width: int, depth: int, heads: int, *, context: int, is_rotary: bool, is_tied: bool, num_tokens: int
    ) -> None:
        super().__init__()
        self.context = context
        self.embedding = nn.Embedding(num_tokens, width)
        self.positions = None if is_rotary else nn.Parameter(torch.empty(context, width))
        rotary = Rotary(width // heads, context) if is_rotary else None
        self.blocks = nn.Sequential(*(Block(width, heads, rotary, is_causal=True) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_tokens, bias=False)
        if is_tied:
            self.head.weight = self.embedding.weight
        initialize(self, depth)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (batch, position, token) of the next token at every position of (batch, position)."""
        length = tokens.shape[1]
        if length > self.context:
            raise ValueError(f"{length} tokens are more than the network's context of {self.context}; cut them shorter")
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions[:length]
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits

    def sparse_layers(self) -> list[str]:
        """The matrices of the blocks; embeddings, norms and the head stay dense."""
        return matrices(self)


@component
class GPT(Transformer):
    """A language model on bytes; `context` is how many it sees, `tied` whether embedding and output share weights.

    `positions`: "learned" (a table), or "rotary".
    """

    name: ClassVar[str] = "gpt"

    width: int = 512
    depth: int = 6
    heads: int = 8
    context: int = 256
    positions: str = "learned"
    tied: bool = False

    def check(self) -> None:
        if self.positions not in _POSITIONS:
            raise ValueError(f"model.positions must be one of {', '.join(_POSITIONS)}, got {self.positions!r}")
        if type(self.tied) is not bool:
            raise ValueError(f"model.tied must be true or false, got {self.tied!r}")
        self.check_counts("context")
        super().check()

    @property
    def unit(self) -> int:
        """Rotary positions turn the values of a head in pairs."""
        return 2 * self.heads if self.positions == "rotary" else self.heads

    @property
    def usual(self) -> Inputs:
        return Shape((self.context,), 256)

    def build(self, inputs: Inputs, width: float = 1.0) -> Decoder:
        if len(inputs.image_shape) != 1:
            raise ValueError(f"gpt reads bytes, and these data are images of {inputs.image_shape}; say data=text:PATH")
        return Decoder(
            self.scaled(width),
            self.depth,
            self.heads,
            context=self.context,
            is_rotary=self.positions == "rotary",
            is_tied=self.tied,
            num_tokens=inputs.num_classes,
        )
