"""The report in a real Chromium: it draws, it answers, it asks nobody for anything, and it runs nobody's strings."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))  # importlib mode: test modules are no package
from fake_runs import HOSTILE, write_comparison, write_hostile, write_run, write_sweep

from fedhyper.lab.results.report import write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGS = [
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH; apt-get install chromium"),
]


@dataclass
class Opened:
    """A page that was opened, and everything it did that a report must not do."""

    page: Any
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def charts(self) -> list[dict[str, Any]]:
        """Id and size of the drawing of every chart, (0, 0) where nothing was drawn."""
        return self.page.evaluate(  # type: ignore[no-any-return]
            """() => [...document.querySelectorAll("[data-chart]")].map((box) => {
                 const svg = box.querySelector("svg");
                 const size = svg ? svg.getBoundingClientRect() : { width: 0, height: 0 };
                 const marks = box.querySelectorAll("svg :is(.mark-line, .mark-rect, .mark-symbol) path").length;
                 return { id: box.id, width: size.width, height: size.height, marks };
               })"""
        )

    def strokes(self, chart: str, colour: str) -> int:
        """Lines of ``colour`` in a chart."""
        return self.page.locator(f'#{chart} .mark-line path[stroke="{colour}"]').count()  # type: ignore[no-any-return]

    def is_clean(self) -> None:
        assert self.console == []
        assert self.requests == [self.page.url], "the file itself and nothing else"
        assert self.dialogs == []
        assert self.page.evaluate("window.pwned") is None


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        yield browser
        browser.close()


def visit(browser: Any, path: Path, width: int = 1200, scheme: str = "light") -> Opened:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    opened = Opened(page)
    page.on("console", lambda message: opened.console.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: opened.console.append(f"error: {error}"))
    page.on("request", lambda request: opened.requests.append(request.url))

    def dismiss(dialog: Any) -> None:
        opened.dialogs.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", dismiss)
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-drawn]", timeout=60_000)
    return opened


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("comparison")
    return write_report([write_comparison(root / "runs", seeds=2, rounds=20)], root / "report.html")


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (1200, "dark"), (390, "light")])
def test_draws_every_chart_in_silence(browser: Any, comparison: Path, width: int, scheme: str) -> None:
    opened = visit(browser, comparison, width, scheme)
    charts = opened.charts()
    assert len(charts) == 15
    for chart in charts:
        assert min(chart["width"], chart["height"]) > 50, chart
        assert chart["width"] <= width, chart
        assert chart["marks"] > 0, chart
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width, "nothing sticks out"
    opened.is_clean()
    opened.page.close()


def test_draws_one_run_a_sweep_and_a_crash(browser: Any, tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", rounds=10)
    crashed = write_run(tmp_path / "crashed", rounds=10)
    (crashed / "summary.json").unlink()
    (crashed / "metrics.jsonl").write_bytes((crashed / "metrics.jsonl").read_bytes()[:2000])
    sweep = write_sweep(tmp_path / "sweep", rounds=10)
    for runs, fewest in ((one, 11), (crashed, 8), (sweep, 15)):
        opened = visit(browser, write_report([runs], tmp_path / "report.html"))
        charts = opened.charts()
        assert len(charts) >= fewest
        assert all(min(chart["width"], chart["height"]) > 30 for chart in charts), charts
        opened.is_clean()
        opened.page.close()


def test_a_click_in_the_legend_hides_a_series_everywhere(browser: Any, comparison: Path) -> None:
    opened = visit(browser, comparison)
    blue, orange = "#0072B2", "#D55E00"
    chip = opened.page.locator('[data-series="0"]').first
    assert opened.strokes("accuracy-by-round", blue) == 1
    chip.click()
    opened.page.wait_for_selector(f'#test-loss-by-round .mark-line path[stroke="{blue}"]', state="detached")
    assert opened.strokes("accuracy-by-round", blue) == 0
    assert opened.strokes("accuracy-by-round", orange) == 1, "the others stay, in their colours"
    assert opened.page.locator('[data-series="0"][aria-pressed="false"]').count() > 1, "every legend says so"
    chip.focus()
    opened.page.keyboard.press("Enter")
    opened.page.wait_for_selector(f'#test-loss-by-round .mark-line path[stroke="{blue}"]', state="attached")
    assert opened.strokes("accuracy-by-round", blue) == 1
    opened.is_clean()
    opened.page.close()


def test_hover_tells_values_and_ctrl_wheel_zooms(browser: Any, comparison: Path) -> None:
    opened = visit(browser, comparison)
    x, y = _middle(opened.page, "accuracy-by-round")
    opened.page.mouse.move(x, y)
    opened.page.mouse.move(x + 5, y + 5)
    tip = opened.page.locator("#vg-tooltip-element.visible")
    tip.wait_for()
    assert "test accuracy" in tip.inner_text()
    seen = set()
    for offset in range(-160, 160, 8):
        opened.page.mouse.move(x - 200, y + offset)
        seen.add(tip.inner_text().split()[1])
    assert len(seen & {"fedavg", "fedexp", "fedhyper-g", "fedhyper-g+cl"}) >= 3, (
        "the nearest line answers, not the last"
    )
    labels = "#accuracy-by-round .role-axis-label text"
    before = opened.page.locator(labels).all_inner_texts()
    opened.page.mouse.wheel(0, -300)
    opened.page.wait_for_timeout(300)
    assert opened.page.locator(labels).all_inner_texts() == before, "a plain wheel scrolls the page"
    x, y = _middle(opened.page, "accuracy-by-round")
    opened.page.mouse.move(x, y)
    opened.page.keyboard.down("Control")
    opened.page.mouse.wheel(0, -300)
    opened.page.keyboard.up("Control")
    opened.page.wait_for_timeout(200)
    assert opened.page.locator(labels).all_inner_texts() != before
    opened.page.mouse.dblclick(x, y)
    opened.page.wait_for_timeout(200)
    assert opened.page.locator(labels).all_inner_texts() == before
    opened.is_clean()
    opened.page.close()


def test_follows_a_change_of_the_colour_scheme(browser: Any, comparison: Path) -> None:
    opened = visit(browser, comparison)
    assert opened.strokes("accuracy-by-round", "#0072B2") == 1
    opened.page.emulate_media(color_scheme="dark")
    opened.page.wait_for_selector('#partition.dark svg rect.background[fill="#14171c"], #partition.dark svg')
    assert opened.strokes("accuracy-by-round", "#56B4E9") == 1
    opened.is_clean()
    opened.page.close()


def test_saves_a_chart(browser: Any, comparison: Path, tmp_path: Path) -> None:
    opened = visit(browser, comparison)
    figure = opened.page.locator("figure", has=opened.page.locator("#accuracy-by-round"))
    for kind, begin in (("svg", b"<svg"), ("png", b"\x89PNG")):
        with opened.page.expect_download() as download:
            figure.locator(f'[data-save="{kind}"]').click(force=True)
        assert download.value.suggested_filename == f"accuracy-by-round.{kind}"
        download.value.save_as(tmp_path / "saved")
        assert (tmp_path / "saved").read_bytes().startswith(begin)
    assert [line for line in opened.console if "error" in line] == []
    opened.page.close()


def test_prints_in_light_with_every_chart(browser: Any, comparison: Path) -> None:
    opened = visit(browser, comparison, scheme="dark")
    assert len(opened.page.pdf()) > 50_000
    opened.page.emulate_media(media="print", color_scheme="dark")
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert "invert" in opened.page.evaluate("getComputedStyle(document.querySelector('.chart svg')).filter")
    opened.page.close()


@pytest.mark.parametrize("start", range(0, len(HOSTILE), 8))
def test_hostile_strings_run_nothing(browser: Any, tmp_path: Path, start: int) -> None:
    texts = HOSTILE[start : start + 8]  # eight, so that each is a series of its own
    for index, text in enumerate(texts):
        write_hostile(tmp_path / "runs" / str(index), text, one_problem=True)
    opened = visit(browser, write_report([tmp_path / "runs"], tmp_path / "report.html", title=texts[0]))
    charts = opened.charts()
    assert len(charts) >= 13
    assert all(chart["marks"] > 0 for chart in charts), charts
    chips = opened.page.locator(".legend").first.locator(".chip")
    assert chips.count() == len(texts)
    for chart in ("accuracy-by-round", "guard", "client-accuracy"):
        _sweep_over(opened.page, chart)
    chips.first.click()
    opened.page.wait_for_timeout(100)
    opened.is_clean()
    opened.page.close()


def test_hostile_strings_in_heat_maps_run_nothing(browser: Any, tmp_path: Path) -> None:
    for index, text in enumerate((HOSTILE[2], "__proto__")):
        for local_lr in (0.01, 0.1):
            for global_lr in (0.5, 1.0):
                rates = {"local_lr": local_lr, "global_lr": global_lr}
                write_hostile(tmp_path / "runs" / f"{index} {local_lr} {global_lr}", text, one_problem=True, **rates)
    opened = visit(browser, write_report([tmp_path / "runs"], tmp_path / "report.html"))
    assert "accuracy-map-2" in [chart["id"] for chart in opened.charts()]
    _sweep_over(opened.page, "accuracy-map-1")
    opened.is_clean()
    opened.page.close()


def test_parts_of_a_page_have_their_own_legends(browser: Any, tmp_path: Path) -> None:
    for text in HOSTILE[2:4]:  # another task each
        for method in ("fedavg", "fedexp"):
            write_run(tmp_path / "runs" / f"{HOSTILE.index(text)}{method}", task=text, method=method, rounds=4)
    opened = visit(browser, write_report([tmp_path / "runs"], tmp_path / "report.html"))
    blue = "#0072B2"
    assert opened.strokes("part1-accuracy-by-round", blue) == opened.strokes("part2-accuracy-by-round", blue) == 1
    opened.page.locator('[data-part="1"][data-series="0"]').first.click()
    gone = f'#part2-accuracy-by-round .mark-line path[stroke="{blue}"]'
    opened.page.wait_for_selector(gone, state="detached")
    assert opened.strokes("part1-accuracy-by-round", blue) == 1, "the other part keeps its line"
    opened.is_clean()
    opened.page.close()


def test_a_table_wider_than_the_phone_says_so(browser: Any, comparison: Path) -> None:
    for width, says in ((390, True), (1200, False)):
        opened = visit(browser, comparison, width)
        assert opened.page.locator(".more").first.is_visible() == says
        opened.page.close()


def _middle(page: Any, chart: str) -> tuple[float, float]:
    page.evaluate("id => document.getElementById(id).scrollIntoView({ block: 'center' })", chart)
    box = page.locator(f"#{chart} svg").bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def _sweep_over(page: Any, chart: str) -> None:
    """Move the pointer over a chart, so that tooltips with every label come up."""
    _middle(page, chart)
    box = page.locator(f"#{chart} svg").bounding_box()
    for step in range(1, 12):
        page.mouse.move(box["x"] + box["width"] * (0.35 + step / 20), box["y"] + box["height"] * step / 12)
