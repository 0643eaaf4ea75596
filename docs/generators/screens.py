"""What a command prints, with the command above it: a page has that in a comment, from which tests print it anew."""

import re

SCREEN = re.compile(r"<!-- screen: (.*) -->\n```\n")


def shown(page: str) -> str:
    """A page with the command of each screen as its first line, behind a prompt."""
    return SCREEN.sub(lambda found: f"```\n$ {found[1]}\n", page)
