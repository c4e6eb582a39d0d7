"""Reflect-pad, random crop and flip, for a whole batch at once and on the device.

The random numbers are a tensor made beforehand, once per epoch, so that the augmentation itself is a pure gather:
it can be compiled and captured in a CUDA graph, and a resumed run needs nothing saved.
"""

import torch
from torch import Tensor

from regrow.core.random import bits, key

PAD = 4
_CROP = int.from_bytes(b"crop")
_FIELD = 20  # random bits that decide one offset


def draw_crops(num_images: int, *, epoch: int, seed: int, device: torch.device | str = "cpu", pad: int = PAD) -> Tensor:
    """(num_images, 3) whole numbers: top and left of the crop in the padded image, and 1 where it is flipped."""
    random = bits(key(seed, epoch, _CROP), torch.arange(num_images, device=device))
    low = (1 << _FIELD) - 1
    top = (random & low) * (2 * pad + 1) >> _FIELD
    left = ((random >> _FIELD) & low) * (2 * pad + 1) >> _FIELD
    flip = (random >> 2 * _FIELD) & 1
    return torch.stack((top, left, flip), dim=1)


def crop_and_flip(images: Tensor, draws: Tensor, pad: int = PAD) -> Tensor:
    """Each image as if padded by reflection, cropped back to its size at (top, left) and mirrored where flip is 1.

    >>> row = torch.tensor([[[[1, 2, 3, 4]]]])
    >>> crop_and_flip(row.expand(1, 1, 4, 4), torch.tensor([[2, 0, 0]]), pad=2)[0, 0, 0].tolist()
    [3, 2, 1, 2]
    >>> crop_and_flip(row.expand(1, 1, 4, 4), torch.tensor([[2, 2, 1]]), pad=2)[0, 0, 0].tolist()
    [4, 3, 2, 1]
    """
    num_images, num_channels, height, width = images.shape
    if pad >= min(height, width):
        raise ValueError(f"cannot pad {height} x {width} images by {pad} with their reflection; use a smaller pad")
    top, left, flip = draws.unbind(1)
    device = images.device
    columns = torch.arange(width, device=device)
    columns = torch.where(flip[:, None] == 1, width - 1 - columns, columns)
    rows = _reflect(torch.arange(height, device=device) + (top - pad)[:, None], height)
    columns = _reflect(columns + (left - pad)[:, None], width)
    batch = torch.arange(num_images, device=device)[:, None, None, None]
    channels = torch.arange(num_channels, device=device)[:, None, None]
    return images[batch, channels, rows[:, None, :, None], columns[:, None, None, :]]


def _reflect(positions: Tensor, size: int) -> Tensor:
    """Positions beyond the border, folded back into the image without repeating its edge."""
    last = size - 1
    return last - (last - positions.abs()).abs()
