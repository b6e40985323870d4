"""Adapts the pages of docs/ to the site. They are written for readers of the repository first.

- A link to a file outside docs/ becomes the name of the file, if the file exists.
- The marks of examples (`no-run: why`, `needs-s3`) become a visible note.
"""

import logging
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[1]
LOG = logging.getLogger("mkdocs.hooks.site")

OUTSIDE = re.compile(r"\[([^\]]+)\]\((\.\./[^)#]+)(#[^)]*)?\)")
FENCE = re.compile(r"^```(\w+) (no-run: (?P<why>.+)|needs-s3)$", re.M)


def on_page_markdown(markdown, *, page, config, files):
    """Called by mkdocs with the text of each page."""

    def link(match):
        path = (ROOT / "docs" / match[2]).resolve()
        if not path.exists():
            LOG.warning("%s links to %s, which does not exist", page.file.src_uri, match[2])
        name = path.relative_to(ROOT)
        return match[1] if match[1].strip("`") == str(name) else f"{match[1]} (`{name}`)"

    def fence(match):
        return f"*Not run by the tests of the project: {match['why']}.*\n\n```{match[1]}" if match["why"] else f"```{match[1]}"

    return FENCE.sub(fence, OUTSIDE.sub(link, markdown))
