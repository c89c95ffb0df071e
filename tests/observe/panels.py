"""The panels of a Grafana board: what their queries give, and a picture of them, for as much of Grafana's format as our board uses."""

from __future__ import annotations

import html
import json
import tempfile
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# The path has the other tests' folders already.
from report import browser

VARIABLES = {"$instance": ".*", "$__rate_interval": "10s"}
COLOURS = ("#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#8ab8ff", "#96d98d")
COLUMN, ROW, GAP = 60, 38, 8
"""Pixels of the grid, which has 24 columns."""
Series = dict[str, list[tuple[float, float]]]


@dataclass
class Panel:
    """One panel, and what Prometheus knows for it."""

    definition: dict[str, Any]
    series: Series = field(default_factory=dict)
    rows: dict[tuple[str, ...], dict[str, float]] = field(default_factory=dict)
    empty: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """As the board has it."""
        return str(self.definition["title"])

    def unit(self, column: str = "") -> str:
        """Of its values, or of a column's."""
        config = self.definition["fieldConfig"]
        for override in config["overrides"]:
            if override["matcher"]["options"] == column:
                return str(override["properties"][0]["value"])
        return str(config["defaults"]["unit"])


def shown(value: float, unit: str) -> str:
    """A value in its unit, as short as Grafana writes it."""
    if unit == "percentunit":
        return f"{value:.1%}" if 0 < value < 0.1 else f"{value:.0%}"
    step, names = (1024, ("B", "KiB", "MiB", "GiB")) if unit == "bytes" else (1000, ("", " K", " M", " G"))
    power = 0
    while abs(value) >= step and power < 3:
        value, power = value / step, power + 1
    text = f"{value:.3g}" + (" " if unit == "bytes" else "") + names[power]
    return text + (" c/s" if unit == "cps" else "")


class Board:
    """The board with the answers to all its queries."""

    def __init__(self, path: Path, prometheus: str, seconds: int) -> None:
        """Asks about the last `seconds`."""
        self.prometheus, self.seconds, self.now = prometheus, seconds, time.time()
        self.panels = [Panel(definition) for definition in json.loads(path.read_text())["panels"]]
        for panel in self.panels:
            for target in panel.definition["targets"]:
                expression = target["expr"]
                for name, value in VARIABLES.items():
                    expression = expression.replace(name, value)
                if not (self._instant(panel, target, expression) if target.get("instant") else self._range(panel, target, expression)):
                    panel.empty.append(expression)

    def _ask(self, what: str, **words: object) -> list[dict[str, Any]]:
        query = urllib.parse.urlencode(words)
        with urllib.request.urlopen(f"{self.prometheus}/api/v1/{what}?{query}") as answer:
            return list(json.load(answer)["data"]["result"])

    def _range(self, panel: Panel, target: dict[str, Any], expression: str) -> bool:
        found = self._ask("query_range", query=expression, start=self.now - self.seconds, end=self.now, step=1)
        for one in found:
            legend = target["legendFormat"]
            for label, value in one["metric"].items():
                legend = legend.replace("{{" + label + "}}", value)
            panel.series[legend] = [(float(at), float(value)) for at, value in one["values"]]
        return bool(found)

    def _instant(self, panel: Panel, target: dict[str, Any], expression: str) -> bool:
        found = self._ask("query", query=expression, time=self.now)
        for one in found:
            row = panel.rows.setdefault(tuple(one["metric"].values()), {})
            row[f"Value #{target['refId']}"] = float(one["value"][1])
        return bool(found)

    def draw(self, path: Path) -> None:
        """Writes the picture."""
        program = browser.find()
        assert program is not None, "a picture needs a browser"
        bottom = max(panel.definition["gridPos"]["y"] + panel.definition["gridPos"]["h"] for panel in self.panels)
        size = 24 * COLUMN + GAP, bottom * ROW + GAP
        with tempfile.TemporaryDirectory(prefix="millrace-board-") as directory:
            page = Path(directory) / "board.html"
            page.write_text(self._page(size))
            chromium = browser.Browser(program)
            try:
                chromium.width(*size)
                chromium.open(page)
                chromium.settle()
                chromium.screenshot(path, whole=False)
            finally:
                chromium.close()

    def _page(self, size: tuple[int, int]) -> str:
        style = (
            "body{margin:0;background:#111217;color:#ccccdc;font:12px sans-serif;position:relative}"
            ".p{position:absolute;background:#181b1f;border:1px solid #2c3035;border-radius:3px;box-sizing:border-box;padding:7px 10px}"
            "b{font-weight:500;font-size:13px}.v{text-align:center;font-size:42px;color:#73bf69;margin-top:18px}"
            "table{width:100%;border-collapse:collapse;margin-top:8px}td,th{text-align:left;padding:6px;border-bottom:1px solid #2c3035}"
            "span{margin-right:14px}i{display:inline-block;width:12px;height:4px;border-radius:2px;margin:0 5px 2px 0}"
        )
        boxes = "".join(map(self._box, self.panels))
        return f"<!doctype html><meta charset=utf-8><style>{style}</style><body style='width:{size[0]}px;height:{size[1]}px'>{boxes}"

    def _box(self, panel: Panel) -> str:
        place = panel.definition["gridPos"]
        width, height = place["w"] * COLUMN - GAP, place["h"] * ROW - GAP
        inner = {"stat": self._stat, "table": self._table, "timeseries": self._curves}[panel.definition["type"]]
        at = f"left:{place['x'] * COLUMN + GAP}px;top:{place['y'] * ROW + GAP}px;width:{width}px;height:{height}px"
        return f"<div class=p style='{at}'><b>{html.escape(panel.title)}</b>{inner(panel, width - 22, height - 62)}</div>"

    def _stat(self, panel: Panel, _width: int, _height: int) -> str:
        last = [points[-1][1] for points in panel.series.values() if points]
        return f"<div class=v>{shown(last[0], panel.unit()) if last else 'No data'}</div>"

    def _table(self, panel: Panel, _width: int, _height: int) -> str:
        names = panel.definition["transformations"][1]["options"]["renameByName"]
        columns = [f"Value #{target['refId']}" for target in panel.definition["targets"]]
        head = "".join(f"<th>{html.escape(name)}</th>" for name in names.values())
        lines = []
        for labels, row in sorted(panel.rows.items()):
            cells = [*labels, *(shown(row[column], panel.unit(names[column])) if column in row else "" for column in columns)]
            lines.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
        return f"<table><tr>{head}</tr>{''.join(lines)}</table>"

    def _curves(self, panel: Panel, width: int, height: int) -> str:
        values = [value for points in panel.series.values() for _, value in points]
        top = max([*values, 0.0]) * 1.08 or 1.0
        left, drawn = 58, []

        def place(at: float, value: float) -> str:
            x = left + (at - self.now + self.seconds) / self.seconds * (width - left)
            return f"{x:.1f},{height - 18 - value / top * (height - 26):.1f}"

        for share in (0, 0.25, 0.5, 0.75, 1):
            x, y = place(self.now, top * share / 1.08).split(",")
            drawn.append(f"<path d='M{left} {y}H{x}' stroke='#2c3035'/><text x={left - 6} y={float(y) + 4} fill='#8e8e9c' font-size=11")
            drawn.append(f" text-anchor=end>{shown(top * share / 1.08, panel.unit())}</text>")
        for tick in range(0, self.seconds + 1, max(self.seconds // 5, 1)):
            x = place(self.now - self.seconds + tick, 0).split(",")[0]
            clock = time.strftime("%H:%M:%S", time.gmtime(self.now - self.seconds + tick))
            anchor = "end" if tick == self.seconds else "middle" if tick else "start"
            drawn.append(f"<text x={x} y={height - 2} fill='#8e8e9c' font-size=11 text-anchor={anchor}>{clock}</text>")
        legend = []
        for number, (name, points) in enumerate(sorted(panel.series.items())):
            colour = COLOURS[number % len(COLOURS)]
            line = " ".join(place(*point) for point in points)
            drawn.append(f"<polyline points='{line}' fill=none stroke='{colour}' stroke-width=1.5 />")
            legend.append(f"<span><i style='background:{colour}'></i>{html.escape(name)}</span>")
        return f"<svg width={width} height={height} style='display:block'>{''.join(drawn)}</svg><div>{''.join(legend)}</div>"
