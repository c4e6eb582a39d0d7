"""Wide residual networks (Zagoruyko & Komodakis, 2016); WRN-28-2 is the paper's network for CIFAR-10."""

import re
from typing import ClassVar

from torch import Tensor, nn

from regrow.lab.config.component import Settings, component
from regrow.lab.models.initialize import initialize
from regrow.lab.models.model import Inputs, Model, Shape
from regrow.lab.models.widths import scaled

STEM = 16


class Block(nn.Module):
    """Pre-activation basic block: norm, relu, 3x3 convolution, twice, beside a shortcut."""

    def __init__(self, num_in: int, num_out: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(num_in)
        self.conv1 = nn.Conv2d(num_in, num_out, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(num_out)
        self.conv2 = nn.Conv2d(num_out, num_out, 3, padding=1, bias=False)
        same_shape = stride == 1 and num_in == num_out
        self.shortcut = None if same_shape else nn.Conv2d(num_in, num_out, 1, stride=stride, bias=False)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """The residual sum."""
        active = self.relu(self.norm1(x))
        # A projection sees the activated input, an identity the raw one, as in the original network.
        beside = x if self.shortcut is None else self.shortcut(active)
        out: Tensor = beside + self.conv2(self.relu(self.norm2(self.conv1(active))))
        return out


class WideResNet(nn.Module):
    """Three groups of (depth - 4) / 6 blocks with 16, 32 and 64 times `widen` channels, after a stem of 16.

    `width` scales the channels of the groups further, by any positive number; the stem keeps its 16.
    """

    def __init__(
        self, depth: int = 28, widen: int = 2, *, width: float = 1.0, in_channels: int = 3, num_classes: int = 10
    ) -> None:
        super().__init__()
        check_size(depth, widen)
        num_blocks = (depth - 4) // 6
        self.stem = nn.Conv2d(in_channels, STEM, 3, padding=1, bias=False)
        groups, num_in = [], STEM
        for channels, stride in ((16, 1), (32, 2), (64, 2)):
            num_out = scaled(channels * widen, width)
            first = Block(num_in, num_out, stride)
            groups.append(nn.Sequential(first, *(Block(num_out, num_out, 1) for _ in range(num_blocks - 1))))
            num_in = num_out
        self.groups = nn.Sequential(*groups)
        self.norm = nn.BatchNorm2d(num_in)
        self.relu = nn.ReLU()
        self.fc = nn.Linear(num_in, num_classes)
        initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of images."""
        features = self.relu(self.norm(self.groups(self.stem(images))))
        logits: Tensor = self.fc(features.mean((2, 3)))
        return logits

    def sparse_layers(self) -> list[str]:
        """The tensors the paper makes sparse: the 3x3 convolutions of the blocks."""
        return [name for name, _ in self.named_parameters() if name.endswith(("conv1.weight", "conv2.weight"))]


def check_size(depth: int, widen: int) -> None:
    """Refuse a depth or width that no Wide ResNet has."""
    if depth < 10 or (depth - 4) % 6:
        raise ValueError(f"depth must be 6n + 4 (10, 16, 22, 28, 34, 40, ...), got {depth}")
    if widen < 1:
        raise ValueError(f"widen must be at least 1, got {widen}; to make the network thinner use width")


@component
class Wide(Model):
    """Residual networks of three groups, wider than the first ones were; `wrn_28_2` is the paper's for CIFAR-10."""

    name: ClassVar[str] = "wrn"
    usual: ClassVar[Inputs] = Shape((3, 32, 32), 10)
    paper: ClassVar[str] = "wide_resnet"

    depth: int = 28
    widen: int = 2

    @classmethod
    def parse(cls, text: str) -> Settings | None:
        told = re.fullmatch(r"wrn_(\d+)_(\d+)", text)
        return {"depth": int(told[1]), "widen": int(told[2])} if told else super().parse(text)

    def check(self) -> None:
        check_size(self.depth, self.widen)

    def said(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return f"wrn_{self.depth}_{self.widen}"

    @property
    def title(self) -> str:
        return f"WRN-{self.depth}-{self.widen}"

    def build(self, inputs: Inputs, width: float = 1.0) -> WideResNet:
        channels, num_classes = inputs.image_shape[0], inputs.num_classes
        return WideResNet(self.depth, self.widen, width=width, in_channels=channels, num_classes=num_classes)
