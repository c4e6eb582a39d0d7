"""What gpt and vit are made of: blocks of attention and a perceptron (Vaswani et al., 2017), behind their norms."""

import math
import re
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from regrow.lab.config.component import Settings
from regrow.lab.models.model import Model
from regrow.lab.models.widths import scaled
from regrow.methods.method import is_whole

_STD = 0.02


class Rotary(nn.Module):
    """Turns queries and keys by angles that grow with the position (Su et al., 2021); pairs are half a head apart."""

    cos: Tensor
    sin: Tensor

    def __init__(self, size: int, context: int) -> None:
        super().__init__()
        speeds = 10_000 ** -(torch.arange(0, size, 2) / size)
        angles = torch.outer(torch.arange(context).float(), speeds)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Heads of the first positions (..., position, size), turned."""
        cos, sin = self.cos[: x.shape[-2]], self.sin[: x.shape[-2]]
        first, second = x.chunk(2, -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).type_as(x)


class Attention(nn.Module):
    """Every position looks at all others; causal, at none after it."""

    def __init__(self, width: int, heads: int, rotary: Rotary | None = None, *, is_causal: bool = False) -> None:
        super().__init__()
        self.heads, self.is_causal = heads, is_causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.rotary = rotary

    def forward(self, x: Tensor) -> Tensor:
        """What each position took from those it looked at."""
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.rotary is not None:
            query, key = self.rotary(query), self.rotary(key)
        seen = scaled_dot_product_attention(query, key, value, is_causal=self.is_causal)
        taken: Tensor = self.out(seen.transpose(1, 2).flatten(2))
        return taken


class Perceptron(nn.Module):
    """Two linear layers, four times as wide between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU()
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Each position by itself."""
        out: Tensor = self.down(self.gelu(self.up(x)))
        return out


class Block(nn.Module):
    """Attention and perceptron, each behind a norm and beside a shortcut."""

    def __init__(self, width: int, heads: int, rotary: Rotary | None = None, *, is_causal: bool = False) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, rotary, is_causal=is_causal)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = Perceptron(width)

    def forward(self, x: Tensor) -> Tensor:
        """The residual sum."""
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


@torch.no_grad()
def initialize(network: nn.Module, depth: int) -> None:
    """The first weights of GPT-2: tables and matrices normal with 0.02, those that end a branch 1/sqrt(2 depth) of it.

    Biases are 0; norms and convolutions stay as torch made them.
    """
    for name, parameter in network.named_parameters():
        if parameter.dim() == 2:
            is_residual = name.endswith(("attention.out.weight", "mlp.down.weight"))
            nn.init.normal_(parameter, std=_STD / math.sqrt(2 * depth) if is_residual else _STD)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


def matrices(network: nn.Module) -> list[str]:
    """The four kinds of matrices of the blocks: queries, keys and values in one, out, up, down."""
    ends = ("attention.qkv.weight", "attention.out.weight", "mlp.up.weight", "mlp.down.weight")
    return [name for name, _ in network.named_parameters() if name.endswith(ends)]


@dataclass(frozen=True, kw_only=True)
class Transformer(Model):
    """So many blocks of a width, which each head has its share of; `NAME_6x512` is 6 blocks of 512 in short."""

    width: int
    depth: int
    heads: int

    @classmethod
    def parse(cls, text: str) -> Settings | None:
        told = re.fullmatch(rf"{cls.name}_(\d+)x(\d+)", text)
        return {"depth": int(told[1]), "width": int(told[2])} if told else super().parse(text)

    def check(self) -> None:
        self.check_counts("width", "depth", "heads")
        if self.width % self.unit:
            raise ValueError(
                f"model.width must be a multiple of {self.unit} for {self.heads} heads, got {self.width}; "
                f"{scaled(self.width, 1.0, self.unit)} is one"
            )

    def check_counts(self, *names: str) -> None:
        """Refuse fields that are not whole numbers from 1 on."""
        for name in names:
            value = getattr(self, name)
            if not is_whole(value) or value < 1:
                raise ValueError(f"model.{name} must be a whole number >= 1, got {value!r}")

    @property
    def unit(self) -> int:
        """What widths are whole multiples of."""
        return self.heads

    def scaled(self, width: float) -> int:
        """The width of the blocks when the network is made so many times as wide: every head keeps its share."""
        return scaled(self.width, width, self.unit)

    def __str__(self) -> str:
        return f"{self.name}_{self.depth}x{self.width}"

    @property
    def title(self) -> str:
        others = [f"{key}={value}" for key, value in self.departures().items() if key not in ("depth", "width")]
        size = f"{type(self).__name__} {self.depth}x{self.width}"
        return f"{size} ({', '.join(others)})" if others else size
