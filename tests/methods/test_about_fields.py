"""Docstrings tell what the fields of methods are, each in a line."""

from dataclasses import fields

import pytest

import regrow
from regrow.methods import Method, method
from regrow.methods.about_fields import about_fields


@pytest.mark.parametrize("name", sorted(regrow.METHODS))
def test_every_field_of_every_method_has_a_line(name: str):
    told = about_fields(regrow.METHODS[name])
    for field in fields(regrow.METHODS[name]):
        assert 5 < len(told[field.name]) <= 110, field.name


def test_a_method_tells_of_its_own_fields_and_says_more_of_those_it_inherits():
    @method
    class Mine(Method):
        """Prune something, grow something.

        `share`, `rest`: how much goes,
        and what stays. `until`: the last step, as in `share`.
        """

        share: float = 0.3
        rest: float = 0.7
        more: int = 3

    told = about_fields(Mine)
    assert told["share"] == told["rest"] == "how much goes, and what stays"
    assert told["until"] == "the last step, as in `share`"
    assert told["period"] == about_fields(Method)["period"]
    assert "more" not in told
