"""A small network, its optimizer, and some steps of training."""

import torch
from torch import nn


def two_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 10))


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), lr=0.1, **options)


def train(model, optimizer, num_steps=1):
    for _ in range(num_steps):
        model(torch.linspace(-1, 1, 80).view(4, 20)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
