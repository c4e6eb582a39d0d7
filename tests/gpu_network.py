"""A small network on a GPU, its data, and some steps of training."""

import warnings
from contextlib import contextmanager

import torch
from torch import nn

import regrow

DEVICE = "cuda"


def small_network(memory_format=torch.contiguous_format):
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 16, 10)
    )
    return network.to(DEVICE, memory_format=memory_format)


def a_batch():
    generator = torch.Generator(DEVICE).manual_seed(1)
    images = torch.randn(32, 3, 8, 8, device=DEVICE, generator=generator)
    return images, torch.randint(10, (32,), device=DEVICE, generator=generator)


def train(model, optimizer, num_steps):
    images, labels = a_batch()
    for _ in range(num_steps):
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()


def step_without_waiting(method):
    """Take the third step of a training, which raises if anything in it waits for the device."""
    model = small_network(torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1, device=DEVICE), momentum=0.9, fused=True)
    regrow.attach(model, optimizer, method)
    train(model, optimizer, 2)
    torch.cuda.synchronize()
    images, labels = a_batch()
    nn.functional.cross_entropy(model(images), labels).backward()
    with never_waiting():
        optimizer.step()


@contextmanager
def never_waiting():
    """Whatever waits for the device raises."""
    with warnings.catch_warnings(action="ignore"):  # torch calls this mode a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def warm_up(step, num_steps):
    """Take the steps before a capture, on a stream of their own, as torch wants them."""
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(num_steps):
            step()
    torch.cuda.synchronize()


def captured(step):
    """A step as a graph; it is not taken yet."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph
