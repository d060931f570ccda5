"""Check the links of the built documentation and list those that leave it: `tools/links.py`.

Each link to a page, a picture or an anchor of the documentation has to lead to one; it exits with 1
if one does not. Links elsewhere are printed with the pages that have them, and nobody is asked for
them, for that needs a network: `python tools/links.py | cut -f1 | xargs -n1 curl -sfIo /dev/null`.
"""

from __future__ import annotations

import argparse
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

BUILD_FOLDER = Path(__file__).parents[1] / "docs" / "_build"


class Page(HTMLParser):
    """Links and anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the links and names of a tag."""
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif value and name in ("href", "src") and tag in ("a", "img", "link", "script"):
                self.links.add(value)


def links_of(folder: Path) -> tuple[dict[str, set[str]], list[str]]:
    """Return external links by address with their pages, and messages about broken links."""
    pages = {path.resolve(): Page(path) for path in sorted(folder.rglob("*.html"))}
    external_links: dict[str, set[str]] = {}
    wrong: list[str] = []
    for path, page in pages.items():
        name = str(path.relative_to(folder.resolve()))
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                external_links.setdefault(link, set()).add(name)
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                wrong.append(f"{name}: {link} leads to no file")
            elif target in pages and unquote(parts.fragment) not in {"", *pages[target].anchors}:
                wrong.append(f"{name}: {link} leads to no anchor")
    return external_links, wrong


def main() -> int:
    """Print external links and broken links; return 1 if a link is broken."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--built", type=Path, default=BUILD_FOLDER)
    external_links, wrong = links_of(parser.parse_args().built)
    for link, names in sorted(external_links.items()):
        sys.stdout.write(f"{link}\t{', '.join(sorted(names)[:3])}\n")
    sys.stderr.write("".join(f"{message}\n" for message in wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
