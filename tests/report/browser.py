"""A page in a real browser, as the tests of pages see it."""

import json
import os
import re
import shutil
import subprocess

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def browse(file, profile, width, *switches):
    """Return the page's document after its scripts ran, and what the browser had to say."""
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command += [
        "--disable-component-update",
        "--disable-sync",
        f"--user-data-dir={profile}",
        "--enable-logging=stderr",
        *switches,
    ]
    command += [f"--window-size={width},900", "--virtual-time-budget=2000", "--dump-dom", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


needs_browser = pytest.mark.skipif(
    BROWSER is None and "CI" not in os.environ, reason="no Chromium on this machine; CI requires it"
)


def as_seen(document):
    return json.loads(re.search(r'<pre id="seen">(.*?)</pre>', document).group(1).replace("&quot;", '"'))
