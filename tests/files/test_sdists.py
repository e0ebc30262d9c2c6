"""A source package's files: the right ones or none, by an index over HTTP, and none of its code is run."""

import base64
import dataclasses
import hashlib
import io
import os
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from sharpmax.files.sdists import Sdist, extracted

SETUP = "import pathlib; pathlib.Path(__file__).with_name('ran').touch(); raise SystemExit('was run')"


class Quiet(SimpleHTTPRequestHandler):
    password: ClassVar = None  # what it asks for, as a header has it

    def log_message(self, *_):
        pass

    def send_head(self):
        if self.password is None or self.headers["Authorization"] == self.password:
            return super().send_head()
        return self.send_error(401)


@pytest.fixture
def sdist(tmp_path, monkeypatch):
    """A package on an index of its own; its setup.py must not be run."""
    archive = tmp_path / "index" / "files" / "weights-1.0.tar.gz"
    archive.parent.mkdir(parents=True)
    with tarfile.open(archive, "w:gz") as opened:
        for name, content in {"weights-1.0/setup.py": SETUP, "weights-1.0/weights/model.txt": "numbers"}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            opened.addfile(member, io.BytesIO(content.encode()))
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    page = tmp_path / "index" / "weights" / "index.html"
    page.parent.mkdir()
    page.write_text(
        '<a href="../files/weights-0.9.tar.gz">old</a>'
        f'<a href="../files/weights-1.0.tar.gz#sha256={sha256}" data-yanked="why">weights-1.0.tar.gz</a>'
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path / "index"))
    threading.Thread(target=partial(server.serve_forever, poll_interval=0.01)).start()
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("PIP_CERT", "")
    yield Sdist(
        "weights", "1.0", sha256, archive.stat().st_size, {"weights-1.0/weights/model.txt": "model"}, "a few numbers"
    )
    server.shutdown()
    server.server_close()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache" / "made"


def copy(members, target):
    members.rename(target)


def test_members_become_a_folder_once(sdist, folder, monkeypatch):
    told = []
    assert extracted(sdist, folder, copy, told.append) == folder
    assert (folder / "model").read_text() == "numbers"
    assert told == [sdist.size]
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/")  # nobody is there
    assert extracted(sdist, folder, copy) == folder
    assert list(folder.parent.iterdir()) == [folder]


def test_an_index_may_ask_for_a_name_and_a_password_as_it_may_of_pip(sdist, folder, monkeypatch):
    monkeypatch.setattr(Quiet, "password", f"Basic {base64.b64encode(b'me:to:ken@').decode()}")
    address = os.environ["PIP_INDEX_URL"]
    with pytest.raises(OSError, match="401"):
        extracted(sdist, folder, copy)
    monkeypatch.setenv("PIP_INDEX_URL", address.replace("//", "//me:to%3Aken%40@"))
    assert (extracted(sdist, folder, copy) / "model").read_text() == "numbers"


def test_another_file_under_the_same_name_is_refused(sdist, folder):
    with pytest.raises(OSError, match=r"weights-1\.0\.tar\.gz has sha256 .* expected 0000"):
        extracted(dataclasses.replace(sdist, sha256="0" * 64), folder, copy)
    assert not list(folder.parent.iterdir())


def test_a_version_that_is_not_there_is_named(sdist, folder):
    with pytest.raises(OSError, match=r"could not fetch weights-2\.0\.tar\.gz, which holds a few numbers .*cache/made"):
        extracted(dataclasses.replace(sdist, version="2.0"), folder, copy)


def test_a_member_that_is_not_there_is_named(sdist, folder):
    with pytest.raises(OSError, match=r"weights-1\.0\.tar\.gz has no file other"):
        extracted(dataclasses.replace(sdist, members={"other": "other"}), folder, copy)


def test_a_file_that_has_changed_since_is_refused(sdist, folder):
    extracted(sdist, folder, copy)
    (folder / "model").write_text("others")
    with pytest.raises(OSError, match="its sha256 differs; delete the folder"):
        extracted(sdist, folder, copy)


def test_an_index_of_another_kind_is_refused(sdist, folder, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "file:///srv/index")
    with pytest.raises(OSError, match="expected an index at http or https, got 'file'"):
        extracted(sdist, folder, copy)
