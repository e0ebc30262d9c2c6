"""Packages of Debian: what is unpacked, and what is refused."""

import hashlib
import io
import tarfile

import pytest

from sharpmax.files.debian import Package, files_of

CONTENT = {
    "./usr/share/doc/tales/a.md": b"one",
    "./usr/share/doc/tales/b.html": b"two",
    "./usr/share/doc/tales/copyright": b"GPL",
}


def deb(members):
    """Return a .deb: an ar archive of a version and a tar."""
    files = io.BytesIO()
    with tarfile.open(fileobj=files, mode="w:xz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    out = b"!<arch>\n"
    for name, content in (("debian-binary", b"2.0"), ("data.tar.xz", files.getvalue())):
        header = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n"
        out += header.encode() + content + b"\n" * (len(content) % 2)
    return out


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    monkeypatch.setenv("SHARPMAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SHARPMAX_DEBIAN", tmp_path.as_uri())

    def serve(content):
        (tmp_path / "tales.deb").write_bytes(content)
        return Package("tales", "tales.deb", hashlib.sha256(content).hexdigest())

    return serve


def test_the_wanted_files_and_the_licence_are_kept_and_fetched_once(mirror, tmp_path):
    package = mirror(deb(CONTENT))
    folder = files_of(package, lambda path: path.endswith(".md"))
    assert {file.name for file in folder.iterdir()} == {"a.md", "copyright", "checksums.json"}
    assert (folder / "a.md").read_bytes() == b"one"
    (tmp_path / "tales.deb").unlink()
    assert files_of(package, lambda path: path.endswith(".md")) == folder


def test_a_file_that_changed_in_the_cache_is_refused(mirror):
    package = mirror(deb(CONTENT))
    folder = files_of(package, lambda path: path.endswith(".md"))
    (folder / "a.md").write_text("another")
    with pytest.raises(OSError, match="not as it was written"):
        files_of(package, lambda path: path.endswith(".md"))


def test_another_file_than_the_tested_one_is_refused_and_leaves_nothing(mirror, tmp_path):
    package = mirror(deb(CONTENT))
    (tmp_path / "tales.deb").write_bytes(deb({**CONTENT, "./usr/share/doc/tales/c.md": b"three"}))
    with pytest.raises(OSError, match=r"not the file that was tested.*your mirror"):
        files_of(package, lambda path: True)
    assert not list((tmp_path / "cache").rglob("*.md"))


@pytest.mark.parametrize("content", [b"", b"no archive", b"!<arch>\n"])
def test_what_is_no_package_is_refused(mirror, content):
    with pytest.raises(OSError, match=r"tales\.deb is no package of Debian"):
        files_of(mirror(content), lambda path: True)


def test_a_mirror_that_does_not_have_it_is_named(mirror, tmp_path):
    package = mirror(deb(CONTENT))
    (tmp_path / "tales.deb").unlink()
    with pytest.raises(OSError, match=r"could not fetch file://.*set SHARPMAX_DEBIAN"):
        files_of(package, lambda path: True)
