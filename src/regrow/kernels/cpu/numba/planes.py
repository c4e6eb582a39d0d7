"""Pictures in planes: copied with a margin of zeros to the right and below, wide enough for the kernel on both sides.

A tap that reaches over the left edge reads the margin of the line above. So a tap is the same shift for every pixel,
and all pixels of several images lie side by side. With a stride, every pixel goes to the plane of its phase, where
neighbouring outputs read neighbouring inputs again.
"""

from numba.extending import register_jitable

from regrow.kernels.cpu.numba.simd import ahead


@register_jitable
def plane_size(pictures):
    """Pixels of a plane, margin included."""
    return pictures.plane_depth * pictures.plane_height * pictures.plane_width


@register_jitable
def copy_planes(pictures, x, num_images, num_channels, planes, step, inward):
    """All pixels of some images to their planes, or back; a channel has `step` numbers."""
    for c in range(num_channels):
        for n in range(num_images):
            image = ahead(x, n * pictures.step_image + c * pictures.step_channel)
            _copy_image(pictures, image, ahead(planes, c * step + n * plane_size(pictures)), inward)


@register_jitable
def _copy_image(pictures, image, plane, inward):
    from_phase_to_phase = pictures.images_at_once * plane_size(pictures)
    stride_d, stride_h, stride_w = pictures.stride_depth, pictures.stride_height, pictures.stride_width
    for d in range(pictures.depth):
        for h in range(pictures.height):
            phase = (d % stride_d * stride_h + h % stride_h) * stride_w
            line = (d // stride_d * pictures.plane_height + h // stride_h) * pictures.plane_width
            pixels = ahead(image, d * pictures.step_depth + h * pictures.step_height)
            for w in range(stride_w):
                at = ahead(plane, (phase + w) * from_phase_to_phase + line)
                num = (pictures.width - w + stride_w - 1) // stride_w
                own, step = ahead(pixels, w * pictures.step_width), pictures.step_width * stride_w
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
