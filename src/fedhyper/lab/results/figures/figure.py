"""A chart with the words that stand around it."""

from __future__ import annotations

from dataclasses import dataclass

from fedhyper.lab.results.charts.chart import Chart


@dataclass(frozen=True)
class Figure:
    """A chart with its words. ``section`` is the heading it stands under, ``alt`` what a screen reader says."""

    key: str
    section: str
    title: str
    caption: str
    alt: str
    chart: Chart
    wide: bool = False
    by_series: bool = True  # whether the section's legend applies to it
    part: int = 0  # which part of the page it stands in; a part has its own lines and colours
