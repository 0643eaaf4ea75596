"""A headless browser for pages: Debian's chromium, driven by its chromium-driver through selenium, without a network."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: programs by their names on Debian and elsewhere
BROWSERS, DRIVERS = ("chromium", "chromium-browser", "google-chrome"), ("chromedriver",)


def _program(names: tuple[str, ...]) -> str | None:
    return next((path for name in names if (path := shutil.which(name))), None)


def lacking() -> str:
    """Why there is no browser; empty where there is one."""
    try:
        import selenium  # noqa: F401 - whether it is there
    except ImportError:
        return "pages are tested through selenium, of the extra `dev`, which is not installed"
    if _program(BROWSERS) is None or _program(DRIVERS) is None:
        return "pages are tested in chromium, which is not installed: apt-get install chromium chromium-driver"
    return ""


@contextmanager
def browser() -> Iterator[Any]:
    """A browser of 1280 x 1000 pixels, which keeps what scripts log."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = _program(BROWSERS)
    # root has no sandbox in a container, and /dev/shm is small there
    for word in (
        "headless=new",
        "no-sandbox",
        "disable-dev-shm-usage",
        "disable-gpu",
        "hide-scrollbars",
        "window-size=1280,1000",
    ):
        options.add_argument(f"--{word}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(_program(DRIVERS)))
    try:
        yield driver
    finally:
        driver.quit()


def sized(driver: Any, width: int, height: int, density: float = 1, mobile: bool = False) -> None:
    """Give the page so many pixels."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": density, "mobile": mobile}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def looking(driver: Any, *, scheme: str = "light", media: str = "") -> None:
    """Show the page as one who likes a colour scheme sees it; `media`: print."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})


def scripted(driver: Any, allowed: bool) -> None:
    """Let pages run scripts, or not."""
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not allowed})
