"""The pictures of reports in docs/img: ``python docs/img/make_screenshots.py`` (two minutes, needs Chromium).

It runs the two sweeps below into a directory that is thrown away, and photographs the first screen of their reports.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
DIGITS = str(HERE.parents[1] / "experiments" / "digits.toml")
COMPARISON = (
    "model=mlp batch_size=16 rounds=30 local_lr=0.03 method=fedavg,fedexp,fedhyper,fedhyper-g+cl seed=0..2 "
    "fedavg:local_lr=0.03,0.3"  # FedAvg also at a rate that suits it
)
SWEEP = "rounds=30 local_lr=0.0001,0.001,0.01,0.1,1.0 global_lr=0.1,0.5,1.0,2.0,10.0 method=fedavg,fedexp,fedhyper"
PICTURES = {  # file: sweep, width and height of the window, colours
    "report-comparison.png": (COMPARISON, 1200, 1150, "light"),
    "report-sweep-dark.png": (SWEEP, 1200, 1250, "dark"),
    "report-phone.png": (COMPARISON, 390, 900, "light"),
}


def fedhyper(*arguments: str) -> None:
    """Run the command line of this checkout."""
    subprocess.run([sys.executable, "-m", "fedhyper", *arguments], check=True)


def main() -> None:
    """Run, report, photograph."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--headless=new", "--no-sandbox"])
        pages: dict[str, Path] = {}
        for name, (axes, width, height, scheme) in PICTURES.items():
            if axes not in pages:
                runs = Path(scratch) / str(len(pages))
                fedhyper("sweep", DIGITS, *axes.split(), "--out", str(runs), "--quiet")
                pages[axes] = runs / "report.html"
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.goto(pages[axes].as_uri())
            page.wait_for_selector("html[data-drawn]", timeout=60_000)
            page.screenshot(path=str(HERE / name))
        browser.close()


if __name__ == "__main__":
    main()
