"""The page in a browser, opened from disk."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from biprune.report import write_report
from hand_records import realistic

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def browser() -> Iterator:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("report") / "report.html"
    return write_report(realistic(), path).as_uri()


@pytest.fixture
def opened(browser, address: str, request: pytest.FixtureRequest) -> Iterator:
    """The page, drawn; afterwards the console must be clean and the network untouched."""
    options = {"viewport": {"width": 1280, "height": 900}} | getattr(request, "param", {})
    context = browser.new_context(**options)
    page = context.new_page()
    messages: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda sent: requests.append(sent.url))
    page.goto(address)
    page.wait_for_selector("html[data-drawn]")
    yield page
    context.close()
    assert messages == []
    assert requests == [address]


PHONE = {"viewport": {"width": 390, "height": 800}}
both_widths = pytest.mark.parametrize("opened", [{}, PHONE], indirect=True, ids=["wide", "phone"])


def point(page, words: str):
    """A symbol of the first chart by what a screen reader says of it."""
    return page.locator(f"#chart-1-accuracy .mark-symbol path[aria-label='{words}']")


@both_widths
def test_every_chart_is_drawn_and_nothing_is_wider_than_the_page(opened) -> None:
    boxes = opened.locator(".vega")
    assert boxes.count() == 9
    for box in boxes.all():
        assert box.locator("svg.marks").count() == 1
    widest = opened.evaluate(
        "Math.max(...[...document.querySelectorAll('svg.marks')].map("
        "s => s.getBoundingClientRect().width - s.closest('.vega').clientWidth))"
    )
    assert widest <= 1
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_hovering_over_a_point_tells_its_numbers(opened) -> None:
    point(opened, "bip at 90 %: 90.90 %").hover(force=True)
    tooltip = opened.locator("#vg-tooltip-element.visible")
    tooltip.wait_for()
    text = tooltip.inner_text()
    assert "90.90 ± 0.71" in text
    assert "90.40, 91.40" in text


def test_a_click_in_the_legend_hides_a_method_and_another_shows_it(opened) -> None:
    bip = point(opened, "bip at 50 %: 91.50 %")
    imp = point(opened, "imp at 50 %: 90.70 %")
    entry = opened.locator("#chart-1-accuracy .role-legend-label text", has_text="bip")
    expect(bip).to_have_attribute("opacity", "1")
    entry.click(force=True)
    expect(bip).to_have_attribute("opacity", re.compile(r"0\.0\d"))
    expect(imp).to_have_attribute("opacity", "1")
    entry.click(force=True)
    expect(bip).to_have_attribute("opacity", "1")


def test_the_menu_changes_the_sparsity(opened) -> None:
    points = opened.locator("#chart-1-seconds .mark-symbol.role-mark path[aria-label]")
    expect(points).to_have_count(3)
    expect(points.first).to_have_attribute("aria-label", "bip at 90 %: 90.90 %")
    opened.locator("#chart-1-seconds select").select_option("50 %")
    expect(points).to_have_count(2)
    expect(points.first).to_have_attribute("aria-label", "bip at 50 %: 91.50 %")
    opened.locator("#theme").click()  # a choice outlives a change of theme
    opened.wait_for_selector("html[data-drawn=dark]")
    expect(points).to_have_count(2)


def colours(page) -> tuple[str, str, str]:
    """Of the page, of its text, and of the charts' titles of axes."""
    body = "getComputedStyle(document.body)"
    title = "document.querySelector('#chart-1-accuracy .role-axis-title text')"
    return (
        page.evaluate(f"{body}.backgroundColor"),
        page.evaluate(f"{body}.color"),
        page.evaluate(f"{title}.getAttribute('fill')"),
    )


LIGHT = ("rgb(255, 255, 255)", "rgb(28, 32, 36)", "#1c2024")
DARK = ("rgb(22, 25, 29)", "rgb(232, 234, 237)", "#e8eaed")


@pytest.mark.parametrize("opened", [{"color_scheme": "dark"}], indirect=True)
def test_the_page_is_dark_where_the_system_is_and_can_be_made_light(opened) -> None:
    assert colours(opened) == DARK
    bip = point(opened, "bip at 90 %: 90.90 %")
    assert bip.get_attribute("fill") == "#f27a9b"
    opened.locator("#theme").click()
    opened.wait_for_selector("html[data-drawn=light]")
    assert colours(opened) == LIGHT
    bip = point(opened, "bip at 90 %: 90.90 %")
    assert bip.get_attribute("fill") == "#8f1d3f"


def test_the_last_of_two_quick_changes_counts(opened) -> None:
    opened.evaluate("for (const _ of [1, 2, 3]) document.getElementById('theme').click()")
    opened.wait_for_selector("html[data-drawn=dark]")
    assert colours(opened) == DARK
    assert opened.locator("#chart-1-accuracy svg.marks").count() == 1


def test_the_page_follows_the_system(opened) -> None:
    assert colours(opened) == LIGHT
    opened.emulate_media(color_scheme="dark")
    opened.wait_for_selector("html[data-drawn=dark]")
    assert colours(opened) == DARK
