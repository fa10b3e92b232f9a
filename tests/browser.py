"""Open a page in a headless Chromium, controlled through its debugging pipe."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
DESKTOP = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
IMAGES = """[...document.images].map(i => ({
  loaded: i.complete && i.naturalWidth > 0,
  width: i.getBoundingClientRect().width, height: i.getBoundingClientRect().height,
  shown: i.checkVisibility()}))"""
WIDTHS = "[document.documentElement.scrollWidth, window.innerWidth]"


class Browser:
    """Chromium with an empty profile, as a context manager."""

    def __enter__(self):
        self.profile = tempfile.mkdtemp()
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        # Chromium reads commands from file descriptor 3 and answers on 4.
        script = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        flags += ["--disable-background-networking", "--disable-component-update"]
        flags += ["--disable-dev-shm-usage", f"--user-data-dir={self.profile}"]
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", script, CHROMIUM, *flags, "--remote-debugging-pipe"],
            pass_fds=[theirs_in, theirs_out],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.read, self.write = os.fdopen(ours_in, "rb"), os.fdopen(ours_out, "wb")
        self.number, self.events, self.rest = 0, [], b""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.ask(f"{domain}.enable")
        return self

    def __exit__(self, *_):
        self.send("Browser.close")
        self.process.wait(timeout=20)
        self.read.close()
        self.write.close()
        shutil.rmtree(self.profile, ignore_errors=True)

    def send(self, method, session=None, **params):
        """Send a command, and return the result; keep events that come before it."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        self.write.write(json.dumps(message).encode() + b"\0")
        self.write.flush()
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def ask(self, method, **params):
        """Send a command to the page."""
        return self.send(method, session=self.session, **params)

    def _next(self):
        while b"\0" not in self.rest:
            chunk = self.read.read1(65536)
            assert chunk, "Chromium closed the pipe"
            self.rest += chunk
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def open(self, path, screen):
        """Open a file on a screen, and wait until it is loaded."""
        self.events.clear()
        self.ask("Emulation.setDeviceMetricsOverride", **screen)
        self.ask("Page.navigate", url=Path(path).resolve().as_uri())
        limit = time.monotonic() + 30
        while self.evaluate("document.readyState") != "complete":
            assert time.monotonic() < limit, "the page does not load"
            time.sleep(0.05)

    def evaluate(self, script):
        """Return the value of a JavaScript expression."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        return answer["result"]["value"]

    def requests(self):
        """Return the requested addresses, without data inside the page."""
        urls = [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]
        return [url for url in urls if not url.startswith("data:")]

    def complaints(self):
        """Return all messages of the console."""
        kinds = (
            "Runtime.consoleAPICalled",
            "Runtime.exceptionThrown",
            "Log.entryAdded",
        )
        return [event for event in self.events if event.get("method") in kinds]

    def screenshot(self, path):
        """Write a picture of the whole page."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        picture = self.ask(
            "Page.captureScreenshot",
            captureBeyondViewport=True,
            clip={**size, "x": 0, "y": 0, "scale": 1},
        )
        Path(path).write_bytes(base64.b64decode(picture["data"]))
