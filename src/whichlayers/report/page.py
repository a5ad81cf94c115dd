"""One HTML page that needs nothing but itself: template, style and script put together, and nothing let in.

The figures are drawn by a small script of our own (web/*.js, SVG) rather than by plotly: the page of a large study
then has some hundred kB in place of 5 MB, prints, follows light and dark, can be walked by keyboard and read
aloud, and runs under a policy that allows this one script, this one style, and no connection anywhere.

All text from data goes through jinja2's escaping, or through JSON that cannot end its script element; the script
writes text as text and never as markup.
"""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from whichlayers import __version__
from whichlayers.plots.display_names import number
from whichlayers.plots.layer_diagram import SHADES
from whichlayers.plots.style import DARK, LIGHT

WEB = Path(__file__).with_name("web")
SCRIPTS = ("tools.js", "chart.js", "drawing.js", "layers.js", "page.js")
POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data: blob:; "
    "style-src {style}; script-src {script}; connect-src {connect}"
)


def render(template: str, data: dict[str, Any], live: str | None = None, **facts: Any) -> str:
    """The page; `data` is for its script. `live`: the version of a page that asks its server for news."""
    style, script = _style(), _script()
    policy = POLICY.format(
        style=_hash(style), script=_hash(script), connect="'none'" if live is None else "'self'"
    )
    themes = {
        theme.name: {
            **{name: getattr(theme, name) for name in ("ink", "muted", "grid", "background")},
            "shades": SHADES[theme.name],
        }
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
            **facts,
        )
    )


def json_for_html(data: Any) -> str:
    """JSON in which no character can be taken for markup, wherever it stands in a page."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(WEB),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    made.filters["number"] = number
    return made


@cache
def _style() -> str:
    return (WEB / "style.css").read_text(encoding="utf-8")


@cache
def _script() -> str:
    parts = [(WEB / name).read_text(encoding="utf-8") for name in SCRIPTS]
    return "\n".join(["(() => {", *parts, "})();"])


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
