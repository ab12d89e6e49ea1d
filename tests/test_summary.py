"""What was not run is said in one line, and a browser that CI promises may not be missing."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
HOOKS = Path(__file__).with_name("conftest.py").read_text()


@pytest.fixture
def without_browser(pytester, monkeypatch):
    """A folder with a test in a browser, one that is skipped and one that runs, and no Chromium."""
    start = HOOKS.index("def pytest_runtest_setup")
    end = HOOKS.index("@pytest.fixture", start)
    head = "import os\nfrom collections import Counter\n\nimport pytest\n\nCHROMIUM = None\n"
    pytester.makeconftest(head + HOOKS[start:end])
    pytester.makeini("[pytest]\nmarkers = browser: needs Chromium\n")
    pytester.makepyfile(
        "import pytest\n"
        "@pytest.mark.browser\n"
        "@pytest.mark.parametrize('number', [1, 2])\n"
        "def test_a_page(number): pass\n"
        "@pytest.mark.skip(reason='no such data set')\n"
        "def test_of_data(): pass\n"
        "def test_plain(): pass\n"
    )
    monkeypatch.delenv("ATS_CI", raising=False)
    return pytester


def test_what_was_not_run_is_said_with_its_reason(without_browser):
    done = without_browser.runpytest_inprocess("-p", "no:cacheprovider")
    done.assert_outcomes(passed=1, skipped=3)
    said = "not run: 2 (no chromium here: apt-get install chromium); 1 (no such data set)"
    done.stdout.fnmatch_lines([said])


def test_in_ci_a_missing_browser_is_a_failure(without_browser, monkeypatch):
    monkeypatch.setenv("ATS_CI", "1")
    done = without_browser.runpytest_inprocess("-p", "no:cacheprovider")
    done.assert_outcomes(passed=1, errors=2, skipped=1)
    done.stdout.fnmatch_lines(["*no chromium here: apt-get install chromium*"])
