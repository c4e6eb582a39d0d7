"""What torch.compile is told to compute by kernels of our own."""

from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

from regrow.lab.run import convolution


class OwnWeightGradients(CustomGraphPass):
    """Splits the gradient of the weights off the backward passes of convolutions, where our kernel is faster."""

    def __call__(self, graph: fx.Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.convolution_backward.default):
            if _suits(*node.args) and any(_is_weight_gradient(user) for user in node.users):
                _split(graph, node)

    def uuid(self) -> Any:
        """Networks are taken from torch's cache of compiled ones only if these files were the same then."""
        return get_hash_for_files((__file__, convolution.__file__))


def _suits(
    slopes: Any,
    images: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    is_transposed: Any,
    out_padding: Any,
    groups: Any,
    wanted: Any,
) -> bool:
    """The arguments are those of torch's convolution_backward."""
    num_out, num_in, *size = weight.meta["val"].shape
    return (
        not is_transposed
        and groups == 1
        and list(dilation) == [1, 1]
        and list(stride) in ([1, 1], [2, 2])
        and (size, list(padding)) in (([3, 3], [1, 1]), ([1, 1], [0, 0]))
        and list(wanted)[1:] == [True, False]
        and num_in in convolution.CHANNELS_IN
        and num_out in convolution.CHANNELS_OUT
        and all(_is_well_stored(each.meta["val"]) for each in (slopes, images))
    )


def _is_well_stored(images: torch.Tensor) -> bool:
    """16 bits, channels innermost, and few enough for 32-bit offsets."""
    is_small = images.dtype in (torch.bfloat16, torch.float16) and images.numel() < 2**31
    return is_small and images.is_contiguous(memory_format=torch.channels_last)


def _is_weight_gradient(user: fx.Node) -> bool:
    """Of what a backward pass gives: the second."""
    return bool(user.args[1] == 1)


def _split(graph: fx.Graph, node: fx.Node) -> None:
    slopes, images, weight, _, stride = node.args[:5]
    size = weight.meta["val"].shape[-1]  # type: ignore[union-attr]
    with graph.inserting_before(node):
        new = graph.call_function(
            torch.ops.regrow.weight_gradient.default,
            (slopes, images, size, stride[0]),  # type: ignore[index]
        )
    new.meta["val"] = node.meta["val"][1]
    for old in list(filter(_is_weight_gradient, node.users)):
        old.replace_all_uses_with(new)
        graph.erase_node(old)
    if node.users:
        node.args = (*node.args[:-1], [True, False, False])
        node.meta["val"] = (node.meta["val"][0], None, None)
    else:
        graph.erase_node(node)


OWN_WEIGHT_GRADIENTS = OwnWeightGradients()
"""The one there is: torch takes functions that are compiled with different objects for different functions."""
