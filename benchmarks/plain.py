"""A rewiring as one writes it first: a loop over layers, keys and top-k. What the library is measured against."""

import torch
from torch import Tensor


class PlainLoop:
    """Weights, masks, gradients and momentum of every layer, rewired layer by layer."""

    def __init__(self, shapes: list[tuple[int, ...]], density: float, device: torch.device) -> None:
        self.masks = [torch.rand(shape, device=device) < density for shape in shapes]
        self.weights = [torch.zeros(shape, device=device) for shape in shapes]
        self.gradients = [torch.zeros(shape, device=device) for shape in shapes]
        self.momenta = [torch.zeros(shape, device=device) for shape in shapes]

    def redraw(self) -> None:
        for weight, gradient, momentum, mask in zip(
            self.weights, self.gradients, self.momenta, self.masks, strict=True
        ):
            torch.mul(weight.normal_(), mask, out=weight)
            torch.mul(momentum.normal_(), mask, out=momentum)
            gradient.normal_()

    def dsr(self, threshold: float) -> None:
        gone = [(w.abs() < threshold) & mask for w, mask in zip(self.weights, self.masks, strict=True)]
        pruned = [int(flags.sum()) for flags in gone]
        left = [int(mask.sum()) - k for mask, k in zip(self.masks, pruned, strict=True)]
        for i, flags in enumerate(gone):
            self._replace(i, flags, self._random_places(i, round(sum(pruned) * left[i] / sum(left))))

    def set(self, fraction: float) -> None:
        for i, mask in enumerate(self.masks):
            k = int(fraction * int(mask.sum()))
            self._replace(i, self._smallest(i, k), self._random_places(i, k))

    def rigl(self, fraction: float) -> None:
        for i, (mask, gradient) in enumerate(zip(self.masks, self.gradients, strict=True)):
            k = int(fraction * int(mask.sum()))
            places = torch.where(mask, -1.0, gradient.abs()).flatten().topk(k).indices
            self._replace(i, self._smallest(i, k), places)

    def _smallest(self, i: int, k: int) -> Tensor:
        scores = torch.where(self.masks[i], self.weights[i].abs(), torch.inf).flatten()
        flags = torch.zeros_like(scores, dtype=torch.bool)
        flags[scores.topk(k, largest=False).indices] = True
        return flags.view_as(self.masks[i])

    def _random_places(self, i: int, k: int) -> Tensor:
        keys = torch.rand(self.masks[i].shape, device=self.masks[i].device)
        return torch.where(self.masks[i], -1.0, keys).flatten().topk(k).indices

    def _replace(self, i: int, gone: Tensor, places: Tensor) -> None:
        self.masks[i] &= ~gone
        self.masks[i].view(-1)[places] = True
        self.weights[i] *= self.masks[i]
        self.weights[i].view(-1)[places] = 0
        self.momenta[i] *= self.masks[i]
        self.momenta[i].view(-1)[places] = 0
