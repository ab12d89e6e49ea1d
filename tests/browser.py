"""A headless Chromium for tests, driven over its DevTools protocol, that reaches no host but this
machine.
"""

import asyncio
import json
import shutil
import subprocess
import time
import urllib.request
from contextlib import contextmanager

import pytest
import torch

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
KEYS = {
    "Tab": 9,
    "Escape": 27,
    " ": 32,
    "End": 35,
    "Home": 36,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
}
CANVAS = """(canvas => {
  const {width, height} = canvas, data = canvas.getContext("2d").getImageData(0, 0, width, height).data;
  return [height, width, ...data];
})(document.querySelector(%r))"""
CONTRAST = """((selector) => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgb = (color) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [[r, .2126], [g, .7152], [b, .0722]].reduce((sum, [v, w]) =>
    sum + w * (v / 255 <= .03928 ? v / 255 / 12.92 : ((v / 255 + .055) / 1.055) ** 2.4), 0);
  const behind = (e) => {
    const color = rgb(getComputedStyle(e).backgroundColor);
    return color[3] === 255 ? color : behind(e.parentElement);
  };
  const shown = {opacityProperty: true, visibilityProperty: true};
  const found = [];
  for (const e of document.querySelectorAll(selector)) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || ["OPTION", "SCRIPT", "STYLE"].includes(e.tagName) || !e.checkVisibility(shown)) continue;
    const color = getComputedStyle(e)[e.tagName === "text" ? "fill" : "color"], ground = light(behind(e));
    const [a, b] = [light(rgb(color)), ground].sort((x, y) => y - x);
    found.push([(a + .05) / (b + .05), e.className || e.tagName, ground]);
  }
  return found.sort((x, y) => x[0] - y[0]);
})(%r)"""
needs_chromium = pytest.mark.browser  # see `pytest_runtest_setup` in conftest.py


def written(file, body):
    """The address of a page with this body, written to a file."""
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    file.write_text(f"{head}<title>Page</title><body>{body}</body></html>", encoding="utf-8")
    return file.as_uri()


class Browser:
    """One tab of a headless Chromium that reaches no host but this machine."""

    def __init__(self, folder):
        from tornado.websocket import websocket_connect

        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--remote-allow-origins=*",
        ]
        flags += [
            "--disable-features=BackForwardCache",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        ]
        flags += ["--remote-debugging-port=0", f"--user-data-dir={folder}"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([CHROMIUM, *flags, "about:blank"], **quiet)
        try:
            port = self._port(folder / "DevToolsActivePort")
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
                tabs = json.loads(answer.read())
            address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
            self.loop, self.sent, self.events = asyncio.new_event_loop(), 0, []

            async def connect():
                return await websocket_connect(address, max_message_size=100 << 20)

            self.socket = self.loop.run_until_complete(connect())
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")

    def _port(self, file):
        for _ in range(200):
            if file.exists() and len(lines := file.read_text().split()) > 1:
                return lines[0]
            time.sleep(0.1)
        raise TimeoutError("the browser did not start")

    def __call__(self, method, **parameters):
        self.sent += 1

        async def exchange(number):
            await self.socket.write_message(
                json.dumps({"id": number, "method": method, "params": parameters})
            )
            while (answer := json.loads(await self.socket.read_message())).get("id") != number:
                self.events.append(answer)
            return answer

        answer = self.loop.run_until_complete(asyncio.wait_for(exchange(self.sent), 30))
        assert "error" not in answer, answer
        return answer["result"]

    def js(self, expression):
        found = self(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, expression, seconds=10):
        end = time.monotonic() + seconds
        while not self.js(expression):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.03)

    def open(self, address, ready="document.querySelector('.ats-on')", seconds=30):
        self("Page.navigate", url="about:blank")
        self.until("location.href === 'about:blank' && document.readyState === 'complete'")
        self.events.clear()
        self("Page.navigate", url=address)
        self.until(f"document.readyState === 'complete' && Boolean({ready})", seconds)

    def size(self, width, height, mobile=False):
        self(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )

    def media(self, media="", **features):
        named = [
            {"name": name.replace("_", "-"), "value": value} for name, value in features.items()
        ]
        self("Emulation.setEmulatedMedia", media=media, features=named)

    def key(self, key):
        event = {
            "key": key,
            "code": {" ": "Space"}.get(key, key),
            "windowsVirtualKeyCode": KEYS[key],
        }
        self(
            "Input.dispatchKeyEvent",
            type="keyDown",
            **event,
            **({"text": " "} if key == " " else {}),
        )
        self("Input.dispatchKeyEvent", type="keyUp", **event)

    def centre(self, selector):
        self.js(
            f"document.querySelector({selector!r}).scrollIntoView({{block: 'center', behavior: 'instant'}})"
        )
        box = f"document.querySelector({selector!r}).getBoundingClientRect()"
        return self.js(f"(b => ({{x: b.x + b.width / 2, y: b.y + b.height / 2}}))({box})")

    def click(self, selector):
        at = self.centre(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)

    def hover(self, x, y):
        self("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def tap(self, x, y):
        self("Emulation.setTouchEmulationEnabled", enabled=True)
        self("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        self("Emulation.setTouchEmulationEnabled", enabled=False)

    def choose(self, selector, value):
        self.js(
            f"(s => {{ s.value = {value!r}; s.dispatchEvent(new Event('change', {{bubbles: true}})) }})"
            f"(document.querySelector({selector!r}))"
        )

    def contrast(self, selector):
        """Of every visible text its contrast to what is behind it, whose it is, and how light that is,
        0 to 1; lowest contrast first."""
        return self.js(CONTRAST % selector)

    def picture(self, selector):
        """What a canvas shows, (3, H, W) uint8."""
        height, width, *data = self.js(CANVAS % selector)
        return (
            torch.tensor(data, dtype=torch.uint8).view(height, width, 4)[..., :3].permute(2, 0, 1)
        )

    def text(self, selector):
        return self.js(f"document.querySelector({selector!r}).textContent")

    def style(self, selector, name):
        """The computed value of a style, of each element that the selector finds."""
        return self.js(
            f"[...document.querySelectorAll({selector!r})].map((e) => getComputedStyle(e).{name})"
        )

    def named(self, *roles):
        """Role and name of everything on the page that has one of these roles."""
        nodes = [
            node for node in self("Accessibility.getFullAXTree")["nodes"] if not node["ignored"]
        ]
        found = [(node["role"]["value"], node.get("name", {}).get("value")) for node in nodes]
        return [(role, name) for role, name in found if role in roles]

    def phone(self, width, ready="true"):
        """Become a phone of that width, on which nothing is cut: the heights of the buttons and
        lists, in pixels.
        """
        self.size(width, 800, mobile=True)
        self.until(f"innerWidth === {width} && {ready}")
        assert self.js("document.documentElement.scrollWidth") == width
        every = "[...document.querySelectorAll('.ats-explorer :is(button, select)')].filter((e) => e.checkVisibility())"
        return self.js(f"{every}.map((e) => e.offsetHeight)")

    @contextmanager
    def without_scripts(self):
        self("Emulation.setScriptExecutionDisabled", value=True)
        try:
            yield
        finally:
            self("Emulation.setScriptExecutionDisabled", value=False)

    def heard(self, event):
        return [e["params"] for e in self.events if e["method"] == event]

    def faults(self):
        """What the page said went wrong since it was opened, and every request that left it."""
        self.js("0")
        said = self.heard("Runtime.exceptionThrown") + self.heard("Log.entryAdded")
        said += [
            e
            for e in self.heard("Runtime.consoleAPICalled")
            if e["type"] in ("error", "warning", "assert")
        ]
        asked = [e["request"]["url"] for e in self.heard("Network.requestWillBeSent")]
        outside = [
            address[:80]
            for address in asked
            if not address.startswith(("file:", "data:", "blob:", "about:"))
        ]
        return said + outside

    def close(self):
        try:
            self.socket.close()
            self.loop.run_until_complete(
                asyncio.sleep(0.1)
            )  # the browser answers that it is closed
        finally:
            self.process.terminate()
            self.process.wait(10)
            self.loop.close()
