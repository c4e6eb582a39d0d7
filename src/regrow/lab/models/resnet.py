"""ResNet-50 v1.5, the paper's network for ImageNet."""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from regrow.lab.config.component import Settings, component
from regrow.lab.models.initialize import initialize
from regrow.lab.models.model import Inputs, Model, Shape
from regrow.lab.models.widths import scaled

STEM = 64
EXPANSION = 4


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolution beside a shortcut; the stride sits on the 3x3, which makes it v1.5."""

    def __init__(self, num_in: int, num_inner: int, stride: int) -> None:
        super().__init__()
        num_out = EXPANSION * num_inner
        self.conv1 = nn.Conv2d(num_in, num_inner, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(num_inner)
        self.conv2 = nn.Conv2d(num_inner, num_inner, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(num_inner)
        self.conv3 = nn.Conv2d(num_inner, num_out, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(num_out)
        self.shortcut: nn.Sequential | None = None
        if stride != 1 or num_in != num_out:
            projection = nn.Conv2d(num_in, num_out, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(num_out))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """The activated residual sum."""
        beside = x if self.shortcut is None else self.shortcut(x)
        inner = self.relu(self.norm1(self.conv1(x)))
        inner = self.relu(self.norm2(self.conv2(inner)))
        out: Tensor = self.relu(beside + self.norm3(self.conv3(inner)))
        return out


class ResNet(nn.Module):
    """A bottleneck residual network; the default numbers of blocks make it ResNet-50.

    `width` scales the channels of all blocks, inner and outer alike; the stem keeps its 64. A small stem is for small
    images: it halves them, where the usual one leaves a quarter of each side.
    """

    def __init__(
        self,
        num_blocks: Sequence[int] = (3, 4, 6, 3),
        *,
        width: float = 1.0,
        in_channels: int = 3,
        num_classes: int = 1000,
        has_small_stem: bool = False,
    ) -> None:
        super().__init__()
        side = 3 if has_small_stem else 7
        convolution = nn.Conv2d(in_channels, STEM, side, stride=2, padding=side // 2, bias=False)
        pooling = [] if has_small_stem else [nn.MaxPool2d(3, stride=2, padding=1)]
        self.stem = nn.Sequential(convolution, nn.BatchNorm2d(STEM), nn.ReLU(), *pooling)
        groups, num_in = [], STEM
        for group, num_blocks_here in enumerate(num_blocks):
            num_inner = scaled(64 * 2**group, width)
            num_out = EXPANSION * num_inner
            first = Bottleneck(num_in, num_inner, stride=1 if group == 0 else 2)
            groups.append(
                nn.Sequential(first, *(Bottleneck(num_out, num_inner, 1) for _ in range(num_blocks_here - 1)))
            )
            num_in = num_out
        self.groups = nn.Sequential(*groups)
        self.fc = nn.Linear(num_in, num_classes)
        initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of images."""
        features = self.groups(self.stem(images))
        logits: Tensor = self.fc(features.mean((2, 3)))
        return logits

    def sparse_layers(self) -> list[str]:
        """The tensors the paper makes sparse: the convolutions of the bottlenecks and the final linear weight."""
        ends = ("conv1.weight", "conv2.weight", "conv3.weight", "fc.weight")
        return [name for name, _ in self.named_parameters() if name.endswith(ends)]


@component
class ResNet50(Model):
    """Sixteen bottleneck blocks; `stem`: "usual", or "small" (3x3, stride 2, no pooling) for small images."""

    name: ClassVar[str] = "resnet_50"
    usual: ClassVar[Inputs] = Shape((3, 224, 224), 1000)
    paper: ClassVar[str] = "resnet"

    stem: str = "usual"

    @classmethod
    def parse(cls, text: str) -> Settings | None:
        return {"stem": "small"} if text == "resnet_50_small" else super().parse(text)

    def check(self) -> None:
        if self.stem not in ("usual", "small"):
            raise ValueError(f"model.stem must be one of usual, small, got {self.stem!r}")

    def said(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return self.name if self.stem == "usual" else f"{self.name}_{self.stem}"

    @property
    def title(self) -> str:
        return "ResNet-50" if self.stem == "usual" else f"ResNet-50 ({self.stem} stem)"

    def build(self, inputs: Inputs, width: float = 1.0) -> ResNet:
        channels, num_classes, is_small = inputs.image_shape[0], inputs.num_classes, self.stem == "small"
        return ResNet(width=width, in_channels=channels, num_classes=num_classes, has_small_stem=is_small)
