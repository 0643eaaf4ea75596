"""The screens that the documentation shows, and what prints them: `python -m tests.screens` writes them anew.

A screen is a block of code below a line <!-- screen: workbench ... -->, or pytest ..., which is the command that prints
it.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from importlib.metadata import entry_points
from io import BytesIO
from pathlib import Path

from PIL import Image

from tests.browser import browser, lacking, sized

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
SCREEN = re.compile(r"(<!-- screen: ([^>]*) -->\n```\n)(.*?)(```)", re.DOTALL)
#: the command whose pictures are shown below it
PICTURE = re.compile(r"<!-- picture: ([^>]*) -->")
#: lines that a screen does without
AGAIN = ("repeat:", "check for races and uninitialised reads:")
#: first word of a command -> what runs it; the plugin by the name of its entry point, where the installation has that
PROGRAMS: dict[str, list[str]] = {
    "python": [],
    "workbench": ["-c", "from workbench.cli.main import main; main()"],
    "pytest": [
        *("-m", "pytest", "-p", "no:cacheprovider", "-p"),
        "attention" if entry_points(group="pytest11", name="attention") else "workbench.testing.plugin",
    ],
}


def kernels(page: Path, command: str = "") -> dict[str, str]:
    """The files that the commands of a page name: its blocks of Python and TOML that begin with the name of one, as
    blocks of a diff before a command change them.
    """
    text = page.read_text()
    at = text.find(f"screen: {command} -->") if command else len(text)
    found: dict[str, str] = {}
    for block in re.finditer(r"```(python|toml|diff)\n(# ([\w.]+\.\w+)\n.*?)```", text, re.DOTALL):
        kind, source, name = block.groups()
        if kind != "diff":
            found[name] = source
        elif block.start() < at:
            before, after = ("".join(re.findall(rf"^{sign}(.*\n)", source, re.MULTILINE)) for sign in ("-", r"\+"))
            if not before or found[name].count(before) != 1:
                raise ValueError(f"{page.name} changes what {name} does not have once: {before}")
            found[name] = found[name].replace(before, after)
    return found


def printed(page: Path, command: str, folder: Path) -> tuple[str, int]:
    """What a command of a page prints in a folder with the kernels of that page, and its exit code. The lines of
    commands at its end are left out, and paths are those of a user.
    """
    for name, source in kernels(page, command).items():
        (folder / name).write_text(source)
    if "examples/" in command and not (folder / "examples").exists():
        (folder / "examples").symlink_to(ROOT / "examples")
    program, *words = shlex.split(command)
    words = [sys.executable, *PROGRAMS[program], *words]
    # a screen is a user's: where CI is set, pytest writes whole messages into its summary
    ours = ("CI", "BUILD_NUMBER", "PYTEST_ADDOPTS")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{command} exits with {done.returncode}:\n{done.stderr}")
    lines = [line.rstrip() for line in done.stdout.replace(f"{ROOT}/", "").splitlines()]
    return "\n".join(line for line in lines if not line.startswith(AGAIN)) + "\n", done.returncode


def _anew(page: Path, folder: Path, found: re.Match[str]) -> str:
    return found[1] + printed(page, found[2], folder)[0] + found[4]


def photographed(page: Path, picture: Path) -> None:
    """Write the top of a page as one sees it in a browser, with 256 colours."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    with browser() as driver:
        sized(driver, 1280, 960)
        driver.get(page.as_uri())
        WebDriverWait(driver, 10).until(lambda one: one.find_element(By.CSS_SELECTOR, "canvas"))
        whole = Image.open(BytesIO(driver.get_screenshot_as_png())).convert("RGB")
    whole.quantize(256, dither=Image.Dither.NONE).save(picture, optimize=True)


def renew() -> None:
    """Write every screen of every page anew, and the pictures of the command that README.md names."""
    readme = PAGES[0]
    with tempfile.TemporaryDirectory() as folder:
        (command,) = PICTURE.findall(readme.read_text())
        printed(readme, f"{command} --out pictures --html page.html", Path(folder))
        shutil.copy(Path(folder, "pictures/overview.png"), ROOT / "docs/overview.png")
        if why := lacking():
            print(f"docs/page.png is as it was: {why}")
        else:
            photographed(Path(folder, "page.html"), ROOT / "docs/page.png")
    for page in PAGES:
        before = page.read_text()
        with tempfile.TemporaryDirectory() as folder:
            after = SCREEN.sub(partial(_anew, page, Path(folder)), before)
        if after != before:
            page.write_text(after)
            print(f"renewed: {page.relative_to(ROOT)}")


if __name__ == "__main__":
    renew()
