"""What the site's pages hold beside what is written by hand: Markdown that is made of the package when it is built.

A page has a line <!-- generated: NAME --> where the text goes; who reads the page's source reads the rest of that line.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial

from docs.generators import api, cases, commands, contracts, documents, laws, operations, packages

#: name in a page -> what makes its Markdown
GENERATORS: Mapping[str, Callable[[], str]] = {
    "api": partial(api.package, "workbench"),
    "testing": partial(api.package, "workbench.testing"),
    "results": api.results,
    "modules": api.modules,
    "commands": commands.commands,
    "exit-codes": commands.exit_codes,
    "contract": contracts.fields,
    "presets": contracts.presets,
    "cases": cases.fields,
    "documents": documents.documents,
    "documents-of-several": documents.plurals,
    "reference-contract": contracts.of_references,
    "laws": laws.forward,
    "gradient-laws": laws.backward,
    "adapters": packages.adapters,
    "operations": operations.operations,
}
MARK = re.compile(r"<!-- generated: ([\w-]+) -->.*\n")


def filled(page: str) -> str:
    """A page with what is generated in the place of its marks. KeyError for an unknown name."""
    return MARK.sub(lambda found: GENERATORS[found[1]](), page)
