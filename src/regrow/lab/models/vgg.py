"""VGG-19 with batch norm and a single linear layer, as it is used for small images (Simonyan & Zisserman, 2015)."""

from typing import ClassVar

from torch import Tensor, nn

from regrow.lab.config.component import component
from regrow.lab.models.initialize import initialize
from regrow.lab.models.model import Inputs, Model, Shape
from regrow.lab.models.widths import scaled

STAGES = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))


class VGG(nn.Module):
    """Stages of 3x3 convolutions, each half as large as the one before, and the mean over what is left."""

    def __init__(self, *, width: float = 1.0, in_channels: int = 3, num_classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        num_in = in_channels
        for stage, (channels, num_convolutions) in enumerate(STAGES):
            if stage:
                layers.append(nn.MaxPool2d(2))
            for _ in range(num_convolutions):
                num_out = scaled(channels, width)
                layers += [nn.Conv2d(num_in, num_out, 3, padding=1, bias=False), nn.BatchNorm2d(num_out), nn.ReLU()]
                num_in = num_out
        self.features = nn.Sequential(*layers)
        self.fc = nn.Linear(num_in, num_classes)
        initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of images of 16 x 16 or more."""
        logits: Tensor = self.fc(self.features(images).mean((2, 3)))
        return logits

    def sparse_layers(self) -> list[str]:
        """All convolutions but the first; that and the linear layer stay dense, as in a Wide ResNet."""
        return [name for name, parameter in self.named_parameters() if parameter.dim() == 4][1:]


@component
class VGG19(Model):
    """Sixteen convolutions in five stages, and a linear layer."""

    name: ClassVar[str] = "vgg_19"
    usual: ClassVar[Inputs] = Shape((3, 32, 32), 10)
    title: ClassVar[str] = "VGG-19"

    def build(self, inputs: Inputs, width: float = 1.0) -> VGG:
        return VGG(width=width, in_channels=inputs.image_shape[0], num_classes=inputs.num_classes)
