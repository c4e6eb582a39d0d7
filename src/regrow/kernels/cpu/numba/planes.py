"""Pictures in planes: copied with a margin of zeros to the right and below, wide enough for the kernel on both sides.

A tap that reaches over the left edge reads the margin of the line above. So a tap is the same shift for every pixel,
and all pixels of several images lie side by side. With a stride, every pixel goes to the plane of its phase, where
neighbouring outputs read neighbouring inputs again.
"""

from numba.extending import register_jitable

from regrow.kernels.cpu.numba.simd import ahead


@register_jitable
def plane_size(picture):
    """Pixels of a plane, margin included."""
    return picture[11] * picture[12] * picture[13]


@register_jitable
def copy_planes(picture, x, num_images, num_channels, planes, step, inward):
    """All pixels of some images to their planes, or back; a channel has `step` numbers.

    `picture` is: 0 step in memory from image to image, 1 from channel to channel; 2-4 depth, height and width, 5-7 the
    steps along them; 8-10 the strides; 11-13 depth, height and width of a plane; 14 images side by side.
    """
    for c in range(num_channels):
        for n in range(num_images):
            image = ahead(x, n * picture[0] + c * picture[1])
            _copy_image(picture, image, ahead(planes, c * step + n * plane_size(picture)), inward)


@register_jitable
def _copy_image(picture, image, plane, inward):
    from_phase_to_phase = picture[14] * plane_size(picture)
    for d in range(picture[2]):
        for h in range(picture[3]):
            phase = (d % picture[8] * picture[9] + h % picture[9]) * picture[10]
            line = (d // picture[8] * picture[12] + h // picture[9]) * picture[13]
            pixels = ahead(image, d * picture[5] + h * picture[6])
            for w in range(picture[10]):
                at = ahead(plane, (phase + w) * from_phase_to_phase + line)
                num = (picture[4] - w + picture[10] - 1) // picture[10]
                own, step = ahead(pixels, w * picture[7]), picture[7] * picture[10]
                if inward:
                    _copy(own, step, at, 1, num)
                else:
                    _copy(at, 1, own, step, num)


@register_jitable
def _copy(source, step, target, step_target, num):
    if step == 1 and step_target == 1:
        for i in range(num):
            target[i] = source[i]
    else:
        for i in range(num):
            target[i * step_target] = source[i * step]


@register_jitable
def fill_zeros(target, num):
    for i in range(num):
        target[i] = 0
