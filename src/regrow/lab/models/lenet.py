"""LeNet-300-100, the paper's network for MNIST."""

from math import prod
from typing import ClassVar

from torch import Tensor, nn

from regrow.lab.config.component import component
from regrow.lab.models.initialize import initialize
from regrow.lab.models.model import Inputs, Model, Shape
from regrow.lab.models.widths import scaled
from regrow.storage.packed import linear_norm


class LeNet(nn.Module):
    """Three linear layers without biases, each followed by BatchNorm, the logits included."""

    def __init__(self, *, width: float = 1.0, in_features: int = 784, num_classes: int = 10) -> None:
        super().__init__()
        first, second = scaled(300, width), scaled(100, width)
        self.fc1 = nn.Linear(in_features, first, bias=False)
        self.norm1 = nn.BatchNorm1d(first)
        self.fc2 = nn.Linear(first, second, bias=False)
        self.norm2 = nn.BatchNorm1d(second)
        self.fc3 = nn.Linear(second, num_classes, bias=False)
        self.norm3 = nn.BatchNorm1d(num_classes)
        initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of images of any shape with `in_features` values each."""
        hidden = linear_norm(self.fc1, self.norm1, images.flatten(1), relu=True)
        hidden = linear_norm(self.fc2, self.norm2, hidden, relu=True)
        return linear_norm(self.fc3, self.norm3, hidden)

    def sparse_layers(self) -> list[str]:
        """The tensors the paper makes sparse: all three layers."""
        return ["fc1.weight", "fc2.weight", "fc3.weight"]


@component
class LeNet300100(Model):
    """Three linear layers, the hidden ones of 300 and 100 units."""

    name: ClassVar[str] = "lenet_300_100"
    usual: ClassVar[Inputs] = Shape((1, 28, 28), 10)
    paper: ClassVar[str] = "lenet"
    title: ClassVar[str] = "LeNet-300-100"

    def build(self, inputs: Inputs, width: float = 1.0) -> LeNet:
        return LeNet(width=width, in_features=prod(inputs.image_shape), num_classes=inputs.num_classes)
