"""A page as a file: what comes from outside is text in it, and nothing runs or loads but what is its own."""

import hashlib
import html
import json
import re
from base64 import b64encode
from pathlib import Path

import pytest

import workbench
from tests.refusals import refusal
from tests.report.page.judged import HOSTILE, hostile, hostile_stage, right, wrong
from workbench.report.page import diff as pages
from workbench.report.page.page import Page, Part, cell, rendered, save
from workbench.report.tables import Table

PLAIN = Page(
    title="title",
    verdict="bug",
    kind="origin",
    lines=["3 groups of failures", "  the first"],
    about=["what was run"],
    gates=["not what was built"],
    commands=[("repeat", "workbench diff mine.py:attention")],
    parts=[
        Part("groups", ["  set in"], Table(("a", "b"), [["1", "2"]], ["origin"], left=("a",)), "workbench faults"),
        Part("more", parts=[Part("inner", ["deep"])], opened=True),
    ],
)


def text_of(document: str) -> str:
    """What a page says, without tags, scripts and styles."""
    bare = re.sub(r"<(style|script|svg|head)\b.*?</\1>", "", document, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", bare)).split())


def test_a_page_is_made_of_sentences_tables_and_what_folds_away() -> None:
    assert text_of(rendered(PLAIN)) == (
        "not what was built what was run bug 3 groups of failures the first repeat workbench diff mine.py:attention copy "
        "groups set in a b 1 2 workbench faults copy more inner deep made by attention-workbench"
    )


@pytest.mark.parametrize("whole", [True, False], ids=["page", "cell"])
def test_nothing_from_outside_is_more_than_text(whole: bool) -> None:
    document = rendered(pages.page(hostile()))
    if not whole:
        document = html.unescape(re.search(r"srcdoc='([^']*)'", cell(pages.page(hostile())))[1])  # type: ignore[index]
    assert document.count("<script") == document.count("</script") == 2, "its data and its own"
    assert document.count("<style") == document.count("</style") == 1
    assert "<img" not in document
    assert html.escape(HOSTILE, quote=False) in document.replace("&#34;", '"').replace("&#39;", "'")
    assert not re.search(r"<[^>]* on\w+=", re.sub(r"<script.*?</script>", "", document, flags=re.DOTALL))


def test_its_policy_lets_nothing_run_but_its_own() -> None:
    document = rendered(pages.page(wrong()))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', document)
    script, style = (
        re.search(r"<script>(.*?)</script>", document, re.DOTALL),
        re.search(r"<style>(.*?)</style>", document, re.DOTALL),
    )
    assert policy and script and style
    own = {
        f"{name}-src": b64encode(hashlib.sha256(one[1].encode()).digest()).decode()
        for name, one in (("script", script), ("style", style))
    }
    assert html.unescape(policy[1]) == (
        "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"style-src 'sha256-{own['style-src']}'; script-src 'sha256-{own['script-src']}'"
    )
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", document) and " style=" not in document


def test_data_is_json_in_which_no_tag_ends() -> None:
    document = rendered(pages.page(hostile()))
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', document, re.DOTALL)
    assert data and not {*"<>&"} & {*data[1]}
    assert {*json.loads(data[1])["maps"]} == {stage.name for stage in hostile().stages}
    assert rendered(hostile_stage()).count("</script") == 2 and "<img" not in rendered(hostile_stage())


def test_a_trace_with_a_hostile_stage_is_refused(tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.numpy import save_file

    trace = tmp_path / "trace.safetensors"
    workbench.save(wrong().trace, trace)
    with safe_open(trace, "np") as file:
        arrays, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    (key,) = metadata
    manifest = {name: x for name, x in json.loads(metadata[key]).items() if name != "checksum"}
    name = "<script>alert(1)</script>"
    arrays[name], manifest["stages"][name] = arrays.pop("lse"), manifest["stages"].pop("lse")
    save_file(arrays, trace, {key: json.dumps(manifest)})
    assert f"unknown stage {name!r}" in refusal(workbench.load, trace)


def test_the_same_run_gives_the_same_bytes_and_fits() -> None:
    document = rendered(pages.page(wrong()))
    assert document == rendered(pages.page(wrong()))
    assert 100_000 < len(document.encode()) < 2_000_000


@pytest.mark.parametrize("judged", [wrong, right], ids=["wrong", "right"])
def test_a_cell_of_a_notebook_is_a_frame_of_its_own_and_small(judged) -> None:  # noqa: ANN001
    shown = judged()._repr_html_()
    assert len(shown.encode()) < 200 * 1024
    assert shown.count("<iframe sandbox='allow-scripts' title='split_k: ") == 1
    assert "<table" in shown.split("<iframe", 1)[0], "where nothing runs, the table is there"


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "new" / "page.html"
    save(PLAIN, target)
    assert target.read_text() == rendered(PLAIN) and [*target.parent.iterdir()] == [target]
    (tmp_path / "file").write_text("")
    message = refusal(save, PLAIN, tmp_path / "file" / "page.html")
    assert message.startswith(f"{tmp_path}/file/page.html cannot be written: ")
