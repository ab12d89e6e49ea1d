"""The live explorer where a reader meets it: JupyterLab's own server and kernel, in a real browser.

What is looked at is what the canvases show. Without chromium or JupyterLab the tests are skipped.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request

import pytest
import torch
from browser import needs_chromium
from checks import free_port
from PIL import Image

from atsbook.networks import dataset
from atslib.files import project_root
from atslib.measures.metrics import psnr
from atslib.policies.policy import Policy

pytestmark = [
    needs_chromium,
    pytest.mark.skipif(
        importlib.util.find_spec("jupyterlab") is None
        or importlib.util.find_spec("anywidget") is None,
        reason="no JupyterLab with anywidget here: pip install -r requirements.txt",
    ),
    pytest.mark.jupyter,
    pytest.mark.usefixtures("one_thread"),
]

RUN, STOP, STATUS, STEP = ".ats-run .ats-play", ".ats-stop", ".ats-status", ".ats-step"
STEPS = ".ats-own input[type=number]"
# the whole form is there: its parts are not drawn all at once
FORM = " && ".join(
    f"Boolean(document.querySelector('{part}'))"
    for part in (RUN, STOP, STATUS, STEPS, ".ats-own > label:nth-of-type(4) select")
)


def asked(address, method="GET"):
    """The answer of the server's own interface, as JSON."""
    with urllib.request.urlopen(
        urllib.request.Request(address, method=method), timeout=30
    ) as answer:
        return json.loads(answer.read() or "null")


@pytest.fixture(scope="module")
def lab(tmp_path_factory, smoke_store):
    """A JupyterLab of its own: the address and the process.

    It and its kernels are gone afterwards.
    """
    import psutil

    folder = tmp_path_factory.mktemp("jupyterlab")
    work = folder / "work"
    work.mkdir()
    shutil.copy(project_root() / "notebooks/explorer.ipynb", work)
    page = folder / "config/labconfig/page_config.json"
    page.parent.mkdir(parents=True)
    page.write_text(
        '{"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": true}}'
    )
    own = {
        f"JUPYTER_{name.upper()}_DIR": str(folder / name) for name in ("config", "data", "runtime")
    }
    own |= {
        "IPYTHONDIR": str(folder / "ipython"),
        "ATS_STORE": str(smoke_store),
        "OMP_NUM_THREADS": "1",
    }
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": port,
        "ServerApp.port_retries": 0,
        "ServerApp.root_dir": work,
        "ServerApp.allow_root": True,
        "ServerApp.terminals_enabled": False,
        "IdentityProvider.token": "",
        "ServerApp.disable_check_xsrf": True,  # so that `asked` may delete a kernel
        "LabApp.extension_manager": "readonly",
        "LabApp.expose_app_in_browser": True,
    }
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        *(f"--{k}={v}" for k, v in options.items()),
    ]
    log = folder / "log"
    with log.open("wb") as file:
        process = psutil.Popen(
            command, cwd=work, env=os.environ | own, stdout=file, stderr=subprocess.STDOUT
        )
    try:
        end = time.monotonic() + 120
        while True:
            try:
                asked(f"{address}/api/status")
                break
            except OSError:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.2)
        yield address, process
    finally:
        family = [process, *process.children(recursive=True)] if process.is_running() else [process]
        process.terminate()  # it ends its kernels itself
        for left in psutil.wait_procs(family, 20)[1]:
            left.kill()
        process.wait()


@pytest.fixture(scope="module")
def opened(browser, lab):
    """The notebook, all its cells run from the menu's own command; the form is there."""
    address, _ = lab
    browser.size(1300, 1000)
    browser.media(prefers_color_scheme="light")
    browser(
        "Emulation.setFocusEmulationEnabled", enabled=True
    )  # JupyterLab's commands are for what has the focus
    ready = "document.querySelector('.jp-Notebook .jp-CodeCell')"
    browser.open(f"{address}/lab/tree/explorer.ipynb", ready=ready, seconds=180)
    browser.until(
        "jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'", 60
    )
    browser.js("void jupyterapp.commands.execute('notebook:run-all-cells')")
    browser.until(FORM, 180)
    return browser


WATCH = """((status, step, canvas) => {
  const now = { frames: [], said: [], clicked: [] };
  const pixels = () => canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.join();
  let last = pixels();
  const look = () => {
    if (window.watched !== now) return;
    const found = pixels();
    if (found !== last) now.frames.push([performance.now(), parseInt(step.textContent)]);
    last = found;
    requestAnimationFrame(look);
  };
  new MutationObserver(() => now.said.push([performance.now(), status.textContent])).observe(status, {childList: true});
  for (const button of document.querySelectorAll(".ats-run button"))
    button.addEventListener("click", () => now.clicked.push(performance.now()), true);
  window.watched = now;
  look();
})(...[%r, %r, ".ats-slot-a .ats-found canvas"].map((selector) => document.querySelector(selector)))"""


def watch(page):
    """From now on the page notes the time of each click, of each new picture with its step, and of
    each new status.
    """
    page.js(WATCH % (STATUS, STEP))

    def noted():
        return page.js("(({frames, said, clicked}) => ({frames, said, clicked}))(window.watched)")

    return noted


def wait_for(page, words, seconds=60):
    page.until(f"document.querySelector('{STATUS}').textContent.includes({words!r})", seconds)


def set_steps(page, steps):
    page.js(f"document.querySelector('{STEPS}').value = {steps}")


def field(number):
    return f".ats-own > label:nth-of-type({number}) select"


def canvas(page, which):
    """A canvas of the first slot as (1, C, H, W) uint8."""
    return page.picture(f".ats-slot-a .ats-{which} canvas")[None]


@pytest.fixture
def page(opened):
    """The notebook with no attack going on; another test's choices are taken back."""
    opened.until(FORM, 30)
    opened.js(f"document.querySelector('{STOP}').click()")
    opened.until(f"document.querySelector('{STOP}').disabled", 30)
    set_steps(opened, 2000)
    for number, value in ((1, ""), (2, ""), (4, "lenet")):
        opened.choose(field(number), value)
    return opened


def give(page, file):
    """Take a file as the reader's own image."""
    found = page(
        "Runtime.evaluate", expression="document.querySelector('.ats-own input[type=file]')"
    )
    page("DOM.setFileInputFiles", files=[str(file)], objectId=found["result"]["objectId"])
    page.js(
        "document.querySelector('.ats-own input[type=file]').files[0].arrayBuffer().then(() => 0)"
    )  # read by now


# --- a reader's attack --------------------------------------------------------------------------------------


def test_frames_arrive_until_stop_and_another_run_ends_by_itself(page):
    page.choose(field(4), "convnet-4")
    page.choose(field(5), "trained")
    noted = watch(page)
    page.click(RUN)
    page.until("window.watched.frames.length >= 15", 90)
    assert page.js(f"document.querySelector('{RUN}').disabled")
    page.click(STOP)
    wait_for(page, "Stopped after step")
    found = noted()
    (ran, stopped), (frames, steps) = found["clicked"], zip(*found["frames"], strict=True)
    assert "adam-cosine-tv on convnet-4 (trained, policy none)" in page.text(STATUS)
    assert list(steps) == sorted(set(steps))  # each picture is of a later step
    assert steps[-1] < 2000
    first, ended = (frames[0] - ran) / 1000, (found["said"][-1][0] - stopped) / 1000
    during = [at for at in frames if at <= stopped]
    rate = 1000 * (len(during) - 1) / (during[-1] - during[0])
    print(
        f"first frame {first:.2f} s after Run, {rate:.1f} new pictures a second, Stop took {ended:.2f} s"
    )
    assert len(during) >= 15  # a quiet machine: after 2 s, 8 a second, and Stop within a second
    assert ended > 0
    still, step = canvas(page, "found"), page.text(STEP)
    time.sleep(0.5)
    assert torch.equal(canvas(page, "found"), still)
    assert page.text(STEP) == step

    set_steps(page, 40)
    page.click(RUN)
    wait_for(page, "Finished: 40 steps")
    assert page.text(STEP) == "40 / 40"
    assert not page.js(f"document.querySelector('{RUN}').disabled")
    assert not torch.equal(canvas(page, "found"), still)


def test_the_canvases_show_the_image_the_policy_and_the_recovered_image(page):
    page.choose(field(1), "3")
    page.choose(field(2), "0")
    set_steps(page, 60)
    page.click(RUN)
    wait_for(page, "Finished: 60 steps")
    image = dataset("shapes", "test")[0].pixels
    assert page.js("document.querySelector('.ats-slot-a select').value") == "-1"
    operations = page.text(".ats-slot-a .ats-operations")
    assert operations.startswith("translate X ")
    sign = 1 if "+" in operations else -1
    assert torch.equal(canvas(page, "original"), image)
    assert torch.equal(
        canvas(page, "target"), Policy((3, 0)).apply_signs(image, torch.tensor([[sign, 1]]))
    )
    decibels = float(
        psnr(canvas(page, "found").float() / 255, canvas(page, "target").float() / 255)
    )
    assert float(page.text(".ats-slot-a .ats-psnr").removesuffix(" dB")) == pytest.approx(
        decibels, abs=0.1
    )


def test_a_wrong_number_and_a_file_that_is_no_image_are_said_and_the_next_run_works(page, tmp_path):
    text, image = tmp_path / "notes.txt", tmp_path / "grey.png"
    text.write_text("no image")
    Image.new("RGB", (60, 60), (90, 120, 200)).save(image)
    set_steps(page, 9999)
    page.click(RUN)
    wait_for(page, "must be a whole number from 2 to 2000")
    set_steps(page, 5)
    give(page, text)
    page.click(RUN)
    wait_for(page, "the file is no image that can be read")
    assert page.js(f"document.querySelector('{STATUS}').classList.contains('ats-fault')")
    give(page, image)
    page.click(RUN)
    wait_for(page, "Finished: 5 steps")
    assert not page.js(f"document.querySelector('{STATUS}').classList.contains('ats-fault')")
    assert canvas(page, "original")[0, :, 5, 5].tolist() == [90, 120, 200]


ENDED = """(async () => {
  const { kernel } = jupyterapp.shell.currentWidget.sessionContext.session;
  const code = "print(shown['explorer'].session.wait(5))";
  const future = kernel.requestExecute({ code });
  let text = "";
  future.onIOPub = (message) => { text += message.content.text ?? ""; };
  await future.done;
  return text.trim();
})()"""


def test_an_attack_that_nobody_sees_any_more_is_stopped(page):
    page.click(RUN)
    watch(page)
    page.until("window.watched.frames.length >= 3", 60)
    page.js("void jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
    page.until("!document.querySelector('.ats-explorer')")
    assert page.js(ENDED) == "True"
    page.js("void jupyterapp.commands.execute('notebook:run-all-cells')")  # for the next test
    page.until(FORM, 180)


def test_the_attack_ends_with_its_kernel_and_no_other_host_was_asked(page, lab):
    """The last test: it leaves the notebook without a kernel."""
    address, process = lab
    page.click(RUN)
    noted = watch(page)
    page.until("window.watched.frames.length >= 3", 60)
    (kernel,) = asked(f"{address}/api/kernels")
    before = process.children(recursive=True)
    assert before
    asked(f"{address}/api/kernels/{kernel['id']}", "DELETE")
    assert process.children(recursive=True) == []
    count = len(noted()["frames"])
    time.sleep(1)
    assert len(noted()["frames"]) <= count + 1
    requests = [e["request"]["url"] for e in page.heard("Network.requestWillBeSent")]
    assert len(requests) > 10
    assert [
        r[:80] for r in requests if not r.startswith((address, "data:", "blob:", "about:"))
    ] == []
