"""The page in a real browser: nothing fetched, nothing complained about, tables sort, phones do not scroll sideways."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import NAMES, Page, browse, find_browser
from example_runs import write_examples, write_run

from regrow.lab.report.write import write_report

BROWSER = find_browser()
pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"no browser: none of {', '.join(NAMES)} is on the PATH")
METHODS = (
    "Array.from(document.querySelectorAll('main table')[0].tBodies[0].rows, "
    "row => (row.cells[0].innerText + ' ' + row.cells[1].innerText).trim())"
)
SORTED = "Array.from(document.querySelectorAll('th[aria-sort$=ending]'), th => [th.dataset.key, th.ariaSort])"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    write_examples(runs)
    write_run(runs, 88.0, model="wrn_10_1", data="synthetic_colour", method="DSR", sparsity=0.9, epochs=3)
    write_run(runs, 88.0, method="DSR", sparsity=0.98, epochs=10, finished=False)
    return write_report([runs], tmp_path_factory.mktemp("report")).page


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    assert BROWSER is not None
    with browse(BROWSER, tmp_path_factory.mktemp("profile")) as page:
        yield page


def test_the_page_opens_without_a_complaint_or_a_request(page: Page, report: Path) -> None:
    page.open(report)
    assert "DSR comes first" in page.evaluate("document.body.innerText")
    assert page.evaluate("document.querySelectorAll('figure svg').length") == 7 + 8
    assert page.complaints() == []
    assert page.requests() == [report.as_uri()]


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_the_page_does_not_scroll_sideways(page: Page, report: Path, width: int) -> None:
    page.open(report, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    widest = "Math.max(...Array.from(document.querySelectorAll('figure svg'), e => e.getBoundingClientRect().right))"
    assert page.evaluate(widest) <= width


def test_a_click_sorts_and_a_second_one_turns_round(page: Page, report: Path) -> None:
    page.open(report)
    assert page.evaluate(METHODS)[:3] == ["Full dense", "Static 0.99", "SET 0.99"]
    best_first = ["Full dense", "DSR 0.95", "DSR 0.99", "SET 0.95", "SET 0.99", "Static 0.95", "Static 0.99"]
    page.evaluate("document.querySelector('th[data-key=accuracy] button').click()")
    assert page.evaluate(METHODS) == best_first
    assert page.evaluate(SORTED) == [["accuracy", "descending"]]
    page.evaluate("document.querySelector('th[data-key=accuracy] button').click()")
    assert page.evaluate(METHODS) == best_first[::-1]
    assert page.evaluate(SORTED) == [["accuracy", "ascending"]]
    assert page.evaluate("location.hash") == "#sort=accuracy"


def test_nothing_sorts_last_both_ways(page: Page, report: Path) -> None:
    for fragment in ("#sort=sparsity", "#sort=-sparsity"):
        page.open(report, fragment)
        assert page.evaluate(METHODS)[-1] == "Full dense"


def test_a_sorted_view_can_be_shared(page: Page, report: Path) -> None:
    page.open(report, "#sort=method")
    methods = ["DSR 0.99", "DSR 0.95", "Full dense", "SET 0.99", "SET 0.95", "Static 0.99", "Static 0.95"]
    assert page.evaluate(METHODS) == methods
    page.open(report, "#sort=<odd>")
    assert page.complaints() == []


def test_headers_are_reached_and_pressed_with_the_keyboard(page: Page, report: Path) -> None:
    page.open(report)
    page.evaluate("document.querySelector('th[data-key=parameters] button').focus()")
    page.press("Enter")
    assert page.evaluate(SORTED) == [["parameters", "descending"]]


def test_dark_mode_is_dark(page: Page, report: Path) -> None:
    colours = {}
    for dark in (False, True):
        page.open(report, dark=dark)
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        text = page.evaluate("getComputedStyle(document.querySelector('figure svg text')).fill")
        colours[dark] = (ground, text)
    assert colours == {
        False: ("rgb(255, 255, 255)", "rgb(27, 31, 36)"),
        True: ("rgb(20, 23, 27)", "rgb(232, 234, 237)"),
    }
