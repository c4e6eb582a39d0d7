"""What all tests share."""

import os
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
import torch
from hypothesis import settings

import regrow
from regrow.lab.config import component, imports

settings.register_profile("search", max_examples=60_000)

# Networks of tests are small, and processes side by side: a second thread of each would only be in the way.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)

REGISTRIES: list[dict[Any, Any]] = [
    regrow.METHODS,
    import_module("regrow.methods.method")._FILES,
    component.KINDS,
    component._FILES,
    imports._BROUGHT,
]


@pytest.fixture(autouse=True)
def _forget_what_a_test_registers() -> Iterator[None]:
    """Methods and components of files that tests write, and that these were imported."""
    known = [_copied(registry) for registry in REGISTRIES]
    yield
    for registry, own in zip(REGISTRIES, known, strict=True):
        registry.clear()
        registry.update(own)


def _copied(registry: dict[Any, Any]) -> dict[Any, Any]:
    return {key: dict(own) if isinstance(own, dict) else own for key, own in registry.items()}


def pytest_configure() -> None:
    for kind in component.HOMES:
        component.components(kind)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
