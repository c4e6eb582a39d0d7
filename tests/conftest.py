"""What all tests share."""

import pytest
import torch
from hypothesis import settings

settings.register_profile("search", max_examples=20_000)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
