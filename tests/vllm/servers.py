"""A real `vllm serve` on loopback: started, asked over HTTP, ended."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

NAME = "smollm2"
STARTS_WITHIN = 600  # seconds; a busy machine of two processors takes two minutes
OPTIONS = (
    "--host", "127.0.0.1", "--dtype", "float32", "--max-model-len", "2048", "--served-model-name", NAME,
    "--enable-prefix-caching", "--enable-chunked-prefill", "--max-num-batched-tokens", "256", "--enforce-eager",
)  # fmt: skip


def command(model, port, card=None):
    vllm = Path(sys.executable).parent / "vllm"
    extra = [] if card is None else ["--additional-config", json.dumps({"sharpmax": {"card": str(card)}})]
    return [vllm, "serve", str(model), "--port", str(port), *OPTIONS, *extra]


def environment(**changes):
    own = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    return {**os.environ, **own, **changes}


def free_port():
    with socket.socket() as waiting:
        waiting.bind(("127.0.0.1", 0))
        return waiting.getsockname()[1]


@contextmanager
def serving(model, log, card=None, **changes):
    """Serve a model until the block ends; yields its address. What the server says goes to the file `log`."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with log.open("w") as said:
        server = subprocess.Popen(
            command(model, port, card), env=environment(**changes), stdout=said, stderr=said, start_new_session=True
        )
        try:
            _wait(url, server, log)
            yield url
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(timeout=60)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()


def _wait(url, server, log):
    deadline = time.monotonic() + STARTS_WITHIN
    while time.monotonic() < deadline:
        assert server.poll() is None, f"the server ended: {log.read_text()[-3000:]}"
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
        except (urllib.error.URLError, OSError):
            time.sleep(1)
        else:
            return
    raise AssertionError(f"the server does not answer: {log.read_text()[-3000:]}")


def start_and_fail(model, card):
    """Start a server that must not start; returns its exit status and what it said."""
    ended = subprocess.run(
        command(model, free_port(), card), env=environment(), capture_output=True, text=True, timeout=STARTS_WITHIN
    )
    return ended.returncode, ended.stdout + ended.stderr


def complete(url, prompt, tokens=16):
    body = {"model": NAME, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    asked = urllib.request.Request(
        f"{url}/v1/completions", data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=600) as answer:
        return json.load(answer)["choices"][0]["text"]


def complete_all(url, prompts, tokens=16):
    """Ask everything at once, and return the answers in order."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda prompt: complete(url, prompt, tokens), prompts))


def metric(url, name):
    """Return the sum of a counter over its labels."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))
