"""Vision transformers (Dosovitskiy et al., 2021), with the mean over patches in place of a class token."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from regrow.lab.config.component import component
from regrow.lab.models.model import Inputs, Shape
from regrow.lab.models.transformer import Block, Transformer, initialize, matrices


class VisionTransformer(nn.Module):
    """Cuts images into patches, which look at each other; positions are learned."""

    def __init__(
        self, width: int, depth: int, heads: int, *, patch: int, image_shape: tuple[int, ...], num_classes: int
    ) -> None:
        super().__init__()
        channels, rows, columns = image_shape
        self.embedding = nn.Conv2d(channels, width, patch, stride=patch)
        self.positions = nn.Parameter(torch.empty((rows // patch) * (columns // patch), width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)
        initialize(self, depth)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of images."""
        patches = self.embedding(images).flatten(2).transpose(1, 2)
        features = self.norm(self.blocks(patches + self.positions))
        logits: Tensor = self.head(features.mean(1))
        return logits

    def sparse_layers(self) -> list[str]:
        """The matrices of the blocks; the embedding of patches, norms and the head stay dense."""
        return matrices(self)


@component
class ViT(Transformer):
    """A vision transformer; `patch` is the side of its square patches. As it is, ViT-Ti for images of 32 x 32."""

    name: ClassVar[str] = "vit"
    usual: ClassVar[Inputs] = Shape((3, 32, 32), 10)

    width: int = 192
    depth: int = 12
    heads: int = 3
    patch: int = 4

    def check(self) -> None:
        self.check_counts("patch")
        super().check()

    def build(self, inputs: Inputs, width: float = 1.0) -> VisionTransformer:
        shape = inputs.image_shape
        if len(shape) != 3 or any(side % self.patch for side in shape[1:]):
            raise ValueError(f"patches of {self.patch} do not divide inputs of shape {shape}; say another model.patch")
        return VisionTransformer(
            self.scaled(width),
            self.depth,
            self.heads,
            patch=self.patch,
            image_shape=shape,
            num_classes=inputs.num_classes,
        )
