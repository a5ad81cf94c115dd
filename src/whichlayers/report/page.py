"""Render a self-contained HTML page: template, style, script and data in one file.

The figures are drawn by a small script (web/*.js, SVG) rather than by plotly: the page of a large study has a few
hundred kB instead of 5 MB, prints well, follows light and dark mode, and works with a keyboard and with screen
readers. Its content security policy allows only this script and this style, and no network connections.

All text from data is escaped by jinja2, or is JSON that cannot end its script element; the script inserts text only
as text, never as markup.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure

from whichlayers.plots.chart_data import Chart
from whichlayers.plots.style import DARK, LIGHT
from whichlayers.version import __version__

WEB = Path(__file__).with_name("web")
SCRIPTS = ("tools.js", "chart.js", "drawing.js", "layers.js", "page.js")
LIVE_SCRIPTS = (*SCRIPTS[:-1], "live.js", SCRIPTS[-1])  # of the page of `whichlayers watch`
POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data: blob:; "
    "style-src {style}; script-src {script}; connect-src {connect}"
)


@dataclass(frozen=True)
class ReportFigure:
    """A figure on the page: a chart if it has panels, else an image for each theme."""

    key: str
    title: str
    caption: str
    figure: Figure  # in the light theme, for the files
    chart: Chart | None = None
    light: str = ""  # image as a data URL, if there is no chart
    dark: str = ""
    files: bool = True  # whether the figure is also written to figures/

    @property
    def has_chart(self) -> bool:
        return self.chart is not None

    @property
    def alt(self) -> str:
        return f"{self.title}. {self.caption}"


def render(template: str, data: dict[str, Any], live: str | None = None, **context: Any) -> str:
    """Render a template to a page.

    Args:
        template: File in web/.
        data: JSON-serializable data for the script of the page.
        live: Version of the page, if a server keeps it up to date.
        context: Further variables of the template.
    """
    style, script = _style(), _script(SCRIPTS if live is None else LIVE_SCRIPTS)
    policy = POLICY.format(
        style=_hash(style), script=_hash(script), connect="'none'" if live is None else "'self'"
    )
    themes = {
        theme.name: {name: getattr(theme, name) for name in ("ink", "muted", "grid", "background")}
        for theme in (LIGHT, DARK)
    }
    return (
        _environment()
        .get_template(template)
        .render(
            policy=policy,
            style=Markup(style),
            script=Markup(script),
            data=Markup(json_for_html(data | {"themes": themes})),
            live=live,
            written=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            version=__version__,
            **context,
        )
    )


def json_for_html(data: Any) -> str:
    """JSON with all characters escaped that have a meaning in HTML."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@cache
def _environment() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(WEB)
    return jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )


@cache
def _style() -> str:
    return (WEB / "style.css").read_text(encoding="utf-8")


@cache
def _script(names: tuple[str, ...]) -> str:
    parts = [(WEB / name).read_text(encoding="utf-8") for name in names]
    return "\n".join(["(() => {", *parts, "})();"])


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
