"""Schedules: values that change with the step."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.core.schedules import cosine, cubic, first_step, value_at


def test_a_plain_number_is_the_same_at_every_step():
    assert [value_at(0.5, step) for step in (0, 1, 10**9)] == [0.5] * 3


def test_a_mapping_holds_each_value_from_its_first_step_on():
    temperatures = {0: 1e-3, 4: 1e-5, 6: 1e-8}
    assert [value_at(temperatures, step) for step in range(8)] == [1e-3] * 4 + [1e-5] * 2 + [1e-8] * 2


def test_the_order_of_a_mapping_does_not_matter():
    assert value_at({6: 3.0, 0: 1.0, 4: 2.0}, 5) == 2.0


def test_a_step_is_in_the_part_that_began_last():
    assert [first_step({0: 1, 6: 3, 4: 2}, step) for step in (0, 3, 4, 5, 6, 100)] == [0, 0, 4, 4, 6, 6]


def test_any_function_of_the_step_is_a_schedule():
    assert value_at(lambda step: 1 / (1 + step), 3) == 0.25


def test_cosine_falls_from_its_start_through_a_half_to_nothing():
    assert cosine(0.3, 0, 8) == 0.3
    assert cosine(0.3, 4, 8) == pytest.approx(0.15)
    assert cosine(0.3, 8, 8) == 0.0
    assert cosine(0.3, 9, 8) == 0.0


def test_cosine_without_an_end_stays_at_its_start():
    assert cosine(0.3, 10**6, None) == 0.3


def test_cubic_rises_fast_first():
    # s (1 - (1 - t/T)^3) at t = 0, T/4, T/2, 3T/4, T.
    assert [cubic(0.64, step, 4) for step in range(5)] == pytest.approx([0, 0.37, 0.56, 0.63, 0.64])


def test_cubic_ends_exactly_at_its_end():
    assert cubic(0.9, 0, 20) == 0.0
    assert cubic(0.9, 20, 20) == 0.9
    assert cubic(0.9, 21, 20) == 0.9


@given(st.floats(0, 1), st.integers(0, 1000), st.integers(1, 1000))
@settings(deadline=None)
def test_cosine_never_rises_and_cubic_never_falls(value, step, until):
    assert cosine(value, step + 1, until) <= cosine(value, step, until)
    assert cubic(value, step + 1, until) >= cubic(value, step, until)


@given(st.integers(0, 1000), st.integers(1, 1000))
@settings(deadline=None)
def test_cubic_is_the_formula_of_the_paper(step, until):
    t = min(Fraction(step, until), Fraction(1))
    assert cubic(1.0, step, until) == pytest.approx(float(1 - (1 - t) ** 3), abs=1e-12)
