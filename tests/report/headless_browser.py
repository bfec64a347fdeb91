"""A headless Chromium, driven over a pair of pipes: nothing but the standard library is needed."""

import base64
import json
import os
import select
import shutil
import subprocess
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE = 60
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)


def find_browser():
    """The path of an installed Chromium, or None; pipes are passed on as POSIX does."""
    if os.name != "posix":
        return None
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One browser process; messages of the DevTools protocol end with a zero byte."""

    def __init__(self, executable, profile):
        to_browser, self.sending = os.pipe()
        self.receiving, from_browser = os.pipe()
        # The protocol wants descriptors 3 and 4; the shell puts the pipes there.
        wanted = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        flags = (*FLAGS, f"--user-data-dir={profile}", "about:blank")
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", wanted, "browser", executable, *flags],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self.waiting = b""
        self.count = 0
        self.events = []

    def _message(self):
        while b"\0" not in self.waiting:
            if not select.select([self.receiving], [], [], PATIENCE)[0]:
                raise TimeoutError(f"The browser has said nothing for {PATIENCE} seconds.")
            piece = os.read(self.receiving, 1 << 16)
            if not piece:
                raise RuntimeError("The browser has ended.")
            self.waiting += piece
        text, _, self.waiting = self.waiting.partition(b"\0")
        return json.loads(text)

    def call(self, method, session=None, **params):
        """The result of one command; events that come meanwhile are kept."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self.sending, json.dumps(message).encode() + b"\0")
        while (answer := self._message()).get("id") != self.count:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def close(self):
        """Ends the process that was started here."""
        self.process.terminate()
        self.process.wait(10)
        os.close(self.sending)
        os.close(self.receiving)


class Page:
    """A page in its own tab, with all that it logged, threw and asked the network for."""

    def __init__(self, browser, url, *, width=1280, height=900, dark=False):
        self.browser = browser
        self.target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.resize(width, height)
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def resize(self, width, height):
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def evaluate(self, expression):
        """The value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(str(result["exceptionDetails"]))
        return result["result"].get("value")

    def wait_for(self, condition, seconds=20.0):
        end = time.monotonic() + seconds
        while not self.evaluate(condition):
            if time.monotonic() > end:
                raise TimeoutError(condition)
            time.sleep(0.02)

    def press(self, key, code=0):
        """One key, as a person would press it."""
        known = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **known, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **known)

    def move_mouse(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def seen(self, method):
        """The events of one kind so far."""
        self.evaluate("0")
        return [
            event["params"]
            for event in self.browser.events
            if event.get("method") == method and event.get("sessionId") == self.session
        ]

    def complaints(self):
        """Errors and warnings of the console, and exceptions."""
        logged = [entry["entry"]["text"] for entry in self.seen("Log.entryAdded")]
        called = [
            str(entry["args"])
            for entry in self.seen("Runtime.consoleAPICalled")
            if entry["type"] in ("error", "warning", "assert")
        ]
        thrown = [str(entry["exceptionDetails"]) for entry in self.seen("Runtime.exceptionThrown")]
        return logged + called + thrown

    def requests(self):
        """Addresses that were asked for."""
        return [entry["request"]["url"] for entry in self.seen("Network.requestWillBeSent")]

    def screenshot(self, *, whole=True):
        """PNG bytes of the page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(shot["data"])

    def pdf(self):
        """PDF bytes of the page, as it prints."""
        return base64.b64decode(self.call("Page.printToPDF", preferCSSPageSize=False)["data"])

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)
