# ruff: noqa: INP001 - mkdocs loads it by its path
"""What mkdocs.yml cannot say: pages of the site that are files outside of docs/, and the command line's reference.

Whatever a page links to outside of docs/ (README.md, examples, ARCHITECTURE.md) becomes a page below repository/, and
links between pages, which are those of the repository, are turned into those of the site.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from mkdocs.structure.files import File
from typer.cli import get_docs_for_click

from onceward.cli.main import app

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
ALWAYS = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")]
LINK = re.compile(r"(\]\()([^)\s#]+)(?=[)#])")
NAMED = re.compile(r"\[(?:docs/)?([\w.-]+\.md)\](?=\(([^)\s#]*\1)(?:#([\w-]+))?\))")
"""A link whose text is a file: the site shows the title of the page or section instead."""
COMMANDS = "reference/command-line.md"
NOTES = "design/README.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    waiting = [*ALWAYS, *sorted(DOCS.rglob("*.md"))]
    for path in waiting:  # grows
        if not path.is_relative_to(DOCS):
            files.append(File.generated(config, _uri(path), content=_content(path)))
        if path.suffix == ".md":
            waiting += [
                found
                for found in dict.fromkeys(_target(path, link) for _, link in LINK.findall(path.read_text()))
                if found and found not in waiting and not found.is_relative_to(DOCS)
            ]
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Turn links of the repository into those of the site, and write what is not in the file."""
    uri = page.file.src_uri
    source = next((path for path in ALWAYS if _uri(path) == uri), None) or DOCS / uri
    if uri.startswith("repository/") and not source.exists():
        source = ROOT / uri.removeprefix("repository/")

    def titled(match: re.Match[str]) -> str:
        target = _target(source, match[2])
        return f"[{_title(target, match[3])}]" if target else match[0]

    def linked(match: re.Match[str]) -> str:
        target = _target(source, match[2])
        return match[1] + (posixpath.relpath(_uri(target), posixpath.dirname(uri)) if target else match[2])

    markdown = NAMED.sub(titled, markdown)
    if uri == NOTES:
        markdown += _notes()
    return LINK.sub(linked, markdown) + (_commands() if uri == COMMANDS else "")


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Turn the names of pages in docstrings into links."""
    if not page.file.src_uri.startswith("reference/"):
        return html
    return re.sub(r"docs/([\w-]+)\.md", r'<a href="../\1.html">\1</a>', html)


def _target(source: Path, link: str) -> Path | None:
    """Return the file that a link of a page leads to; None for an address, or for nothing."""
    path = (source.parent / link).resolve()
    if "://" in link or not path.exists():
        return None
    return path / "README.md" if (path / "README.md").exists() else path


def _uri(path: Path) -> str:
    """Return the page of the site that a file is."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    return f"repository/{path.relative_to(ROOT).as_posix()}{'' if path.suffix == '.md' else '.md'}"


def _title(path: Path, anchor: str | None = None) -> str:
    """Return the heading of a page, or of the section with this anchor."""
    first, *others = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-"): heading for heading in others}
    return slugs.get(anchor or "", first)


def _content(path: Path) -> str:
    if path.suffix == ".md":
        return path.read_text()
    if path.is_dir():
        files = sorted(each.name for each in path.iterdir() if each.is_file())
        return f"# {path.relative_to(ROOT).as_posix()}\n\n" + "".join(f"- `{name}`\n" for name in files)
    return f"# {path.relative_to(ROOT).as_posix()}\n\n````{path.suffix[1:] or 'text'}\n{path.read_text()}````\n"


def _notes() -> str:
    """Return a list of the design notes, by number."""
    notes = sorted((DOCS / "design").glob("0*.md"))
    return "".join(f"\n- {path.name[:4]}: [{_title(path)}]({path.name})" for path in notes)


def _commands() -> str:
    """Return the commands of `onceward`, with their arguments, as `--help` shows them."""
    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="onceward")
    return "\n" + text.partition("\n")[2]
