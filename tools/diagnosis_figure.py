"""Draw docs/figures/diagnosis.png, the page of a committed diagnosis in a browser: `python -m tools.diagnosis_figure`.

The record holds no right answers, so the figure shows none. It needs Chromium.
"""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

from sharpmax.dispersion import Dispersion
from sharpmax.hf.verbs.diagnose import DiagnosisResult, verdict
from sharpmax.tasks.prompts import draw
from tools.tables.records import ROOT

RECORD = ROOT / "results" / "diagnose" / "smollm2-maximum" / "metrics.json"
FIGURE = ROOT / "docs" / "figures" / "diagnosis.png"
WIDTH, HEIGHT, SCALE = 1150, 680, 1.25  # pixels of the window, and dots per pixel


def page(folder: Path) -> Path:
    """Write the page of the committed diagnosis, as `sharpmax diagnose` writes it."""
    metrics = json.loads(RECORD.read_text(encoding="utf-8"))
    found, config = Dispersion.from_json(metrics["dispersion"]), metrics["config"]
    asked = draw(config["task"], found.lengths[0], seed=config["seed"], index=0).text
    metrics |= {**verdict(found), "generates": True}
    return DiagnosisResult(metrics, folder, config["model"], found, asked).save_page(folder / "diagnosis.html")


def main() -> None:
    """Photograph the page."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        raise SystemExit("tools.diagnosis_figure needs Chromium on the PATH")
    with tempfile.TemporaryDirectory() as folder:
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={folder}/profile", "--blink-settings=preferredColorScheme=1"]
        command += [f"--window-size={WIDTH},{HEIGHT}", f"--force-device-scale-factor={SCALE}"]
        command += ["--virtual-time-budget=2000", f"--screenshot={FIGURE}"]
        subprocess.run([*command, page(Path(folder)).as_uri()], check=True, capture_output=True)


if __name__ == "__main__":
    main()
