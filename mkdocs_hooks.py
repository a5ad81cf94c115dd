"""Hooks of the documentation site: the reference of the command line, and links that leave docs/.

The pages in docs/ are also read in the repository, where they link to figures, examples and folders outside docs/. On
the site, figures are copied, and links to other files become plain text with their path.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent
DOCS = ROOT / "docs"
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
FIGURE = re.compile(r'(<img[^>]* src="([^"]+)"[^>]*>)')
IMAGES = (".png", ".svg", ".jpg")
CLI_PAGE = "reference/cli.md"


def on_files(files: Files, config: Any) -> Files:
    """Add the generated page of the command line, and the images outside docs/ that pages show."""
    files.append(File.generated(config, CLI_PAGE, content=cli_reference()))
    for page in sorted(DOCS.rglob("*.md")):
        for _, _, target, _ in LINK.findall(page.read_text(encoding="utf-8")):
            path = outside(page.relative_to(DOCS).as_posix(), target)
            if path is not None and path.endswith(IMAGES) and files.get_file_from_path(path) is None:
                files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links that leave docs/, and name pages by their titles instead of their files."""
    source = page.file.src_uri

    def rewrite(match: re.Match[str]) -> str:
        image, text, target, _anchor = match.groups()
        path = outside(source, target)
        if path is None:
            linked = DOCS / posixpath.dirname(source) / target
            if text.endswith(".md") and linked.is_file():
                title = linked.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
                return match[0].replace(f"[{text}]", f"[{title}]", 1)
            return match[0]
        if path.endswith(IMAGES):
            return f"{image}[{text}]({posixpath.relpath(path, posixpath.dirname(source) or '.')})"
        return f"{text} (`{path}` in the repository)" if text.strip("`/") != path else f"`{path}`"

    return LINK.sub(rewrite, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Link each figure to its file: with several panels, a figure is too small to read on a phone."""
    return FIGURE.sub(r'<a href="\2">\1</a>', html)


def outside(page: str, target: str) -> str | None:
    """The path from the root of the repository that a link in a page of docs/ leads to; None if it stays in docs/."""
    if "://" in target or target.startswith(("/", "mailto:")):
        return None
    path = os.path.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    return None if path.split(os.sep)[0] == "docs" or path.startswith("..") else Path(path).as_posix()


def cli_reference() -> str:
    """Usage, arguments and options of every command, as Markdown."""
    import typer

    from whichlayers.cli import app

    group: Any = typer.main.get_command(app)
    parts = [
        "# Command line\n",
        "Generated from the help texts; `whichlayers COMMAND --help` prints them. `whichlayers --install-completion` "
        "installs completion of commands, options, presets and study folders for your shell; `--show-completion` "
        "prints the script.\n",
    ]
    for name, command in group.commands.items():
        context = typer.Context(command, info_name=f"whichlayers {name}")
        usage = " ".join([context.info_name or "", *command.collect_usage_pieces(context)])
        parts.append(f"## `{name}`\n\n{_paragraph(command.help)}\n\n```text\n{usage}\n```\n")
        rows = [_row(parameter) for parameter in command.params]
        parts.append("| parameter | meaning | default |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _row(parameter: Any) -> str:
    """A row of the table of parameters."""
    is_option = parameter.param_type_name == "option"
    names = ", ".join(parameter.opts) if is_option else (parameter.metavar or parameter.name.upper())
    default = parameter.default
    shown = "required" if parameter.required else "" if default in (None, False, ()) else f"`{default}`"
    meaning = _paragraph(getattr(parameter, "help", "") or "").replace("|", "\\|")
    return f"| `{names}` | {meaning} | {shown} |"


def _paragraph(text: str | None) -> str:
    return " ".join((text or "").split())
