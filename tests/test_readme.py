"""What README.md and docs/ show is what a reader gets: screens are printed again, Python is run, links lead somewhere."""

import re
from functools import cache

import pytest

from docs.generators import filled
from tests.screens import PAGES, PICTURE, ROOT, SCREEN, kernels, printed

README = (ROOT / "README.md").read_text()
SCREENS = [
    (str(page.relative_to(ROOT)), found[2], found[3]) for page in PAGES for found in SCREEN.finditer(page.read_text())
]
README_SCREENS = [page for page, *_ in SCREENS].count("README.md")
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)

#: digits differ between machines, whose exp and sums of NumPy's do
NUMBER = re.compile(r"-?\d[\d.e+-]*|[bhqkdst]=\d+")


def without_numbers(text):
    return [re.sub(r"\s+", " ", NUMBER.sub("", line)).strip() for line in text.splitlines() if line.strip()]


@pytest.mark.campaign(but=README_SCREENS)
@pytest.mark.parametrize(("page", "command", "screen"), SCREENS, ids=[f"{page}: {line}" for page, line, _ in SCREENS])
def test_screen(page, command, screen, tmp_path):
    said, code = printed(ROOT / page, command, tmp_path)
    assert code == any(word in said for word in ("bug", "finding", "proof", "first wrong stage", "BROKEN"))
    assert without_numbers(said) == without_numbers(screen), "python -m tests.screens writes it anew"
    assert len(screen.splitlines()) >= 4


def test_a_diff_of_a_page_changes_a_file_for_what_is_below_it(tmp_path):
    page = tmp_path / "page.md"
    change = "```diff\n# k.py\n-x = 1\n+x = 2\n```\n"
    page.write_text(f"```python\n# k.py\nx = 1\n```\n<!-- screen: a -->\n{change}<!-- screen: b -->\n")
    assert (kernels(page, "a"), kernels(page, "b")) == ({"k.py": "# k.py\nx = 1\n"}, {"k.py": "# k.py\nx = 2\n"})
    page.write_text(page.read_text() + change)
    with pytest.raises(ValueError, match="page.md changes what k.py does not have once: x = 1"):
        kernels(page)


def test_there_are_screens_in_readme_and_docs():
    assert {page for page, *_ in SCREENS} >= {"README.md", "docs/how-to/reading-a-report.md", "docs/how-to/check.md"}


def test_python():
    (example,) = (block for block in PYTHON if block.startswith("from workbench import"))
    names = {}
    exec(example, names)
    found = names["d"]
    assert repr((found.verdict, found.origin, found.victims)) in example


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page):
    links = [link.partition("#") for link in re.findall(r"\]\(([^)]+)\)", prose(page)) if "://" not in link]
    for file, _, heading in links:
        led = page.parent / file if file else page
        assert led.exists() and (not heading or heading in headings(led)), f"{file}#{heading}"


def prose(page):
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


@cache
def headings(page):
    """What a link may name of a page, generated headings among them."""
    return {
        re.sub(r"[^\w -]", "", x.lower()).replace(" ", "-")
        for x in re.findall(r"^#+ (.*)$", filled(prose(page)), re.MULTILINE)
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_one_title_and_is_of_a_length_that_is_read(page):
    assert len(re.findall("^# ", prose(page), re.MULTILINE)) == 1
    assert len(page.read_text().splitlines()) <= 350


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_table_has_a_head(page):
    """A blank line in a table makes text of the rows below it."""
    tables = re.findall(r"(?:^\|.*\n)+", prose(page), re.MULTILINE)
    assert [table for table in tables if not re.match(r"\|.*\n\|(---\|)+\n\|", table)] == []


def links(page):
    """The pages of the documentation that one links to, its toctree included."""
    trees = re.findall(r"```{toctree}\n(?::\w+:.*\n)*\n?(.*?)```", page.read_text(), re.DOTALL)
    named = [
        *re.findall(r"\]\(([^)#]+\.md)", prose(page)),
        *(f"{one}.md" for tree in trees for one in re.findall(r"([\w/-]+)>?$", tree, re.MULTILINE)),
    ]
    return {path for name in named if (path := (page.parent / name).resolve()) in PAGES}


def test_every_page_is_within_two_clicks_of_the_index_and_the_index_in_readme():
    index = ROOT / "docs/index.md"
    sections = links(index)
    assert {
        ROOT / "docs" / f"{name}/index.md" for name in ("tutorial", "how-to", "reference", "explanation", "trust")
    } <= sections
    reached = {index, *sections}.union(*map(links, sections))
    assert [str(page.relative_to(ROOT)) for page in PAGES if page.parent != ROOT and page not in reached] == []
    assert "](docs/index.md)" in README


def test_readme_is_short_and_opens_with_a_run():
    """First what it is, a picture, how to install it, a kernel and its report; then questions, masks and caches among them."""
    assert len(README.splitlines()) <= 100
    parts = ["<!-- picture:", "docs/overview.png", "\n## Install\n", "```python\n# my_kernel.py", "<!-- screen:"]
    found = [README.index(part) for part in [*parts, "\n| question |", "(docs/reference/cases.md)"]]
    assert found == sorted(found)
    assert README[: found[5]].count("\n") < 55
    opening = README[: README.index("<!--")].split("\n\n")[1]
    assert opening.count(". ") == 1 and len(opening.split()) <= 40


def test_the_picture_is_of_the_command_beside_it():
    """The bug that `make demo` finds."""
    (command,) = PICTURE.findall(README)
    demo = re.sub(r"\\\n\s*", "", (ROOT / "Makefile").read_text())
    assert f"$(BIN)/{command} --out demo" in demo


# --- reading a report

READING = (ROOT / "docs/how-to/reading-a-report.md").read_text()


def explained(line):
    """Whether a row of the page explains a line: its words, with anything in the place of the dots."""
    words = re.findall(r"`([^`]*\.\.\.[^`]*|nothing was judged)`", READING)
    patterns = [re.escape(said).replace(r"\.\.\.", ".*") for said in words]
    return any(re.fullmatch(pattern, line.strip()) for pattern in patterns)


def test_reading_a_report_opens_with_a_report():
    assert READING.index("<!-- screen:") < READING.index("\n|")


def test_reading_a_report_has_a_line_for_every_word():
    from workbench.judge.diff import SEVERITY
    from workbench.report.text import COLUMNS

    words = {*COLUMNS, *SEVERITY, "not judged", "origin", "victim", "victim?", "isolated", "propagated", "poisoned"}
    words |= {"statistical", "bits lost", "contract", "budget", "gate failed", "never written"}
    bold = {*re.findall(r"\*\*([^*]+)\*\*", READING)}
    assert words <= bold


@pytest.mark.campaign
def test_reading_a_report_explains_every_line_of_one():
    import numpy as np

    from workbench import Case, diff, run
    from workbench.report.words import findings

    def of(judged):
        return [line for full in (False, True) for line in findings(judged, full=full)]

    def one_key(q, k, v, *, scale, causal):
        return np.repeat(v, q.shape[2], axis=2)

    small = Case(seqlen=20, head_dim=8, block_q=16, block_k=16)
    no_keys = Case(seqlen_q=4, seqlen_k=1, head_dim=8, causal=True)
    out_alone = run("flash", small, probes="output", backend="emulator")
    lines = [
        *of(diff(run("split_k", small, faults=["reduce-double-counts-sum"], backend="emulator"))),
        *of(diff(run("split_k", small, backend="emulator"))),
        *of(diff(out_alone)),
        *of(diff(run(lambda q, k, v, *, scale, causal: (2 * q, q[..., 0].astype(np.float32)), small))),
        *of(diff(run(lambda q, k, v, *, scale, causal: q * np.nan, small))),
        *(line for said in ("empty_out=0", "empty_out=any") for line in of(diff(run(one_key, no_keys, contract=said)))),
        *of(diff(run("flash", small.but(input_std=3e37), backend="emulator"))),
    ]
    assert len(lines) > 40
    left = [line for line in lines if not explained(line)]
    assert left == [], "\n".join(left)
