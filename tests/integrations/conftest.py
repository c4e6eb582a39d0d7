"""Trainers may warn of some things."""

import pytest

from trainer_warnings import IGNORED


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "integrations" in item.path.parts:
            for ignored in IGNORED:
                item.add_marker(pytest.mark.filterwarnings(ignored))
