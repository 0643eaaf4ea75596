"""Pages in a real browser: what a click opens, what pointing at an element says, and that nothing foreign runs."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.browser import browser, lacking, looking, scripted, sized
from tests.report.page.judged import CASE, HOSTILE, hostile, hostile_stage, wrong
from workbench.report.document import diff_document
from workbench.report.numbers import number, ratio, value
from workbench.report.page.diff import cell, page
from workbench.report.page.page import save
from workbench.report.text import sentences

pytestmark = pytest.mark.skipif(bool(lacking()), reason=lacking())

#: seconds until what a click starts must be there
PATIENCE_S = 10


@dataclass
class Reader:
    """One who reads pages."""

    driver: Any
    folder: Path

    def open(self, name: str) -> None:
        """A page of the folder, in light colours on a wide screen, with scripts."""
        looking(self.driver)
        sized(self.driver, 1280, 1000)
        scripted(self.driver, True)
        self.driver.get((self.folder / name).as_uri())

    def one(self, selector: str) -> Any:
        """The element of a selector, as soon as it is there."""
        from selenium.webdriver.common.by import By
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, PATIENCE_S).until(
            lambda driver: driver.find_element(By.CSS_SELECTOR, selector)
        )

    def choose(self, stage: str) -> Any:
        """A click on a stage of the graph; the canvas of its map."""
        self.one(f'.graph a[data-stage="{stage}"]').click()
        return self.one(f'.panel.shown[data-stage="{stage}"] canvas')

    def point(self, canvas: Any, row: float, column: float, click: bool = False) -> None:
        """The mouse at a share of the height and the width of a map."""
        from selenium.webdriver import ActionChains

        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
        box = canvas.rect
        x, y = (column - 0.5) * box["width"], (row - 0.5) * box["height"]
        actions = ActionChains(self.driver, duration=0).move_to_element_with_offset(canvas, int(x), int(y))
        (actions.click() if click else actions).perform()

    def read(self) -> tuple[str, dict[str, str]]:
        """Which element the page tells of, and its numbers."""
        lines = self.one(".panel.shown .read").text.splitlines()
        rows = [line.rsplit(" ", 1) for line in lines[1:]]
        return lines[0], {heading: cells for heading, cells in rows}

    def complaints(self) -> list[str]:
        """What the console says."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("pages")
    save(page(wrong()), folder / "wrong.html")
    save(page(hostile()), folder / "hostile.html")
    save(hostile_stage(), folder / "stage.html")
    (folder / "notebook.html").write_text(f"<!doctype html><title>notebook</title>{cell(wrong())}")
    with browser() as driver:
        yield Reader(driver, folder)


def told(name: str) -> dict[str, Any]:
    """The worst element of a stage as the JSON document has it, in the words of the page."""
    (stage,) = [stage for stage in json.loads(json.dumps(diff_document(wrong())))["stages"] if stage["name"] == name]
    shown = stage["isolated"] if name != "out" else stage["propagated"]
    error = shown["actual"] - shown["expected"]
    return {
        "worst": shown["worst"],
        "numbers": {
            "actual": value(shown["actual"]),
            "expected": value(shown["expected"]),
            "error": number(error),
            "budget": number(shown["budget"]),
            "error / budget": ratio(shown["over_budget"]),
        },
    }


def test_the_origin_is_open_and_its_worst_element_has_the_numbers_of_the_document(reader: Reader) -> None:
    reader.open("wrong.html")
    should = "exp(partial_max - merge_max); 0 where partial_max is -inf"
    assert reader.one("h1").text == f"bug first wrong stage: merge_weight, should be {should}"
    assert reader.one(".panel.shown summary").text == "merge_weight bug <- origin"
    reader.choose("probs")
    assert reader.one(".panel.shown summary .name").text == "probs"
    canvas = reader.choose("merge_weight")
    worst = told("merge_weight")
    query, split = worst["worst"]["q"], worst["worst"]["s"]
    reader.point(canvas, 0.99, 0.99)
    assert reader.read()[1] != worst["numbers"]
    reader.point(canvas, (query + 0.5) / CASE.seqlen_q, (split + 0.5) / 2)
    place, numbers = reader.read()
    assert place == f"b=0 h=0 s={split} q={query}"
    assert numbers == worst["numbers"] | {"verdict": "bug"}
    assert reader.complaints() == []


def test_a_map_is_zoomed_from_the_stage_to_a_tile_to_an_element(reader: Reader) -> None:
    reader.open("wrong.html")
    canvas = reader.choose("qk")
    worst = told("qk")["worst"]
    at = [worst[axis] / CASE.seqlen_q for axis in "qk"]
    assert reader.one(".panel.shown .way").text == "qk"
    reader.point(canvas, *at)
    assert reader.read()[0] == f"b=0 h=0 q={worst['q']} k={worst['k']}, the worst of 4 x 4 elements"
    reader.point(canvas, *at, click=True)
    tile = [16 * (worst[axis] // 16) for axis in "qk"]
    words = f"tile q={tile[0]}..{tile[0] + 15} k={tile[1]}..{tile[1] + 15}"
    assert reader.one(".panel.shown .way").text.split("\n")[-1].removeprefix("› ") == words
    # any element of the tile, not one of those that are listed
    for i, j in ((3, 5), (12, 1), (15, 15)):
        reader.point(canvas, (i + 0.5) / 16, (j + 0.5) / 16)
        (row,) = wrong()["qk"].select(b=0, h=0, q=tile[0] + i, k=tile[1] + j).rows()
        place, numbers = reader.read()
        assert place == f"b=0 h=0 q={tile[0] + i} k={tile[1] + j}"
        assert numbers == {
            "actual": value(row["actual"]),
            "expected": value(row["expected"]),
            "error": number(row["error"]),
            "budget": number(row["budget"]),
            "error / budget": ratio(row["over_budget"]),
            "verdict": "exact" if row["error"] == 0 else "rounding",
        }
    reader.point(canvas, 0.5, 0.5, click=True)
    pinned = reader.read()
    reader.point(canvas, 0.1, 0.9)
    assert reader.one(".panel.shown .way").text.endswith("element") and reader.read() == pinned
    reader.one(".panel.shown .way button").click()
    assert reader.one(".panel.shown .way").text == "qk"
    assert reader.complaints() == []


def test_the_keyboard_does_what_the_mouse_does(reader: Reader) -> None:
    from selenium.webdriver.common.keys import Keys

    reader.open("wrong.html")
    reader.one('.graph a[data-stage="qk"]').send_keys(Keys.ENTER)
    canvas = reader.one('.panel.shown[data-stage="qk"] canvas')
    canvas.send_keys(Keys.ENTER)
    first = reader.read()[0]
    canvas.send_keys(Keys.ARROW_LEFT)
    before, after = (int(place.rpartition("=")[2]) for place in (first, reader.read()[0]))
    assert after == before - 1
    canvas.send_keys(Keys.ESCAPE)
    assert reader.one(".panel.shown .way").text == "qk" and reader.complaints() == []


def test_the_command_is_copied(reader: Reader) -> None:
    reader.open("wrong.html")
    granted = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    reader.driver.execute_cdp_cmd("Browser.grantPermissions", granted)
    reader.one(".copy").click()
    command = reader.driver.execute_async_script("navigator.clipboard.readText().then(arguments[0])")
    assert command == page(wrong()).commands[0][1] and reader.complaints() == []


@pytest.mark.campaign
def test_without_scripts_all_facts_are_there(reader: Reader) -> None:
    from selenium.webdriver.common.by import By

    reader.open("wrong.html")
    scripted(reader.driver, False)
    reader.driver.refresh()
    for part in reader.driver.find_elements(By.CSS_SELECTOR, "details:not([open]) > summary"):
        part.click()
    said = " ".join(reader.one("body").text.split())
    for line in sentences(wrong(), full=True)[1:]:
        assert " ".join(line.split()) in said, line
    for stage in wrong().stages:
        worst = stage.worst_of(stage.reported, 1)[0]
        assert f"{stage.name} [{' '.join(stage.axes)}] = " in said
        assert (
            worst.over_budget == 0
            or f"{value(worst.actual)} {value(worst.expected)} {number(worst.actual - worst.expected)}" in said
        )
    pictures = reader.driver.find_elements(By.CSS_SELECTOR, ".plot image")
    assert len(pictures) == len(wrong().stages) and all(one.size["width"] > 100 for one in pictures)
    assert not reader.driver.find_elements(By.CSS_SELECTOR, "canvas") and not reader.one(".copy").is_displayed()


def test_hostile_words_are_shown_and_run_nothing(reader: Reader) -> None:
    reader.open("hostile.html")
    reader.choose("out")
    assert reader.driver.execute_script("return typeof ran") == "undefined"
    assert HOSTILE in reader.one(".about").text and HOSTILE in reader.one(".gate").text
    assert HOSTILE in reader.one(".panel.shown .source").text
    assert reader.driver.title == f"{HOSTILE}: bug"
    assert reader.driver.execute_script("return document.querySelectorAll('img, script, style').length") == 3
    assert reader.complaints() == []


def test_a_hostile_stage_is_a_name_in_the_graph(reader: Reader) -> None:
    reader.open("stage.html")
    assert reader.one(".panel.shown summary .name").text == HOSTILE
    assert reader.one(".graph a.chosen .name").text == HOSTILE and reader.one(".panel.shown .way").text == HOSTILE
    assert reader.driver.execute_script("return typeof ran") == "undefined" and reader.complaints() == []


def test_what_is_injected_is_not_run(reader: Reader) -> None:
    """Were a word not escaped, the policy of the page would still stop it."""
    reader.open("wrong.html")
    reader.driver.execute_script(
        "const injected = document.createElement('div'); injected.innerHTML = arguments[0]; document.body.append(injected)",
        '<img src="data:," onerror="window.ran=1">',
    )
    reader.driver.execute_async_script("setTimeout(arguments[0], 200)")
    assert reader.driver.execute_script("return typeof ran") == "undefined"
    assert any("Content Security Policy" in line for line in reader.complaints())


def test_a_cell_of_a_notebook_is_as_interactive(reader: Reader) -> None:
    reader.open("notebook.html")
    reader.driver.switch_to.frame(reader.one("iframe"))
    canvas = reader.choose("merge_weight")
    worst = told("merge_weight")
    reader.point(canvas, (worst["worst"]["q"] + 0.5) / CASE.seqlen_q, (worst["worst"]["s"] + 0.5) / 2)
    assert reader.read()[1] == worst["numbers"] | {"verdict": "bug"}
    reader.driver.switch_to.default_content()
    assert reader.complaints() == []


@pytest.mark.campaign
@pytest.mark.parametrize("width", [1200, 1000])
def test_nothing_is_cut_off(reader: Reader, width: int) -> None:
    """No page wider than the window, and on one of a laptop no table wider than its place, whatever stage is open."""
    reader.open("wrong.html")
    sized(reader.driver, width, 1000)
    wider = "return [...document.querySelectorAll('.scroll')].filter(x => x.scrollWidth > x.clientWidth).length"
    for stage in wrong():
        reader.choose(stage.name)
        assert reader.driver.execute_script("return document.documentElement.scrollWidth") <= width, stage.name
        assert width < 1200 or reader.driver.execute_script(wider) == 0, stage.name


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (1280, "dark")])
def test_it_fits_a_phone_and_a_dark_room(reader: Reader, width: int, scheme: str) -> None:
    reader.open("wrong.html")
    looking(reader.driver, scheme=scheme)
    sized(reader.driver, width, 800, mobile=width < 500)
    reader.choose("merge_weight")
    assert reader.driver.execute_script("return document.documentElement.scrollWidth") <= width
    ground, ink = reader.driver.execute_script(
        "const style = getComputedStyle(document.body); return [style.backgroundColor, style.color]"
    )
    light = [sum(map(int, colour[4:-1].split(","))) for colour in (ground, ink)]
    assert (light[0] > 600 > 300 > light[1]) if scheme == "light" else (light[0] < 200 < 600 < light[1])
