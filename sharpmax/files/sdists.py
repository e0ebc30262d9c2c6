"""Files out of a source package, by name, version and checksum, without running any of its code.

`pip download` asks a source package for its metadata by running its build. Here the archive is only read: the page of
the package on the index names the file, its sha256 must be the one expected, and single members are copied out of it.
The index is the one that pip is configured for; proxies are those of the environment.
"""

import base64
import os
import ssl
import subprocess
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from shutil import copyfileobj
from urllib.parse import unquote, urljoin, urlsplit

from sharpmax.files.checksums import require_sha256
from sharpmax.files.kept import kept
from sharpmax.files.wheels import Downloaded, pip_command

PYPI = "https://pypi.org/simple"
PATIENCE = 60.0  # seconds without an answer after which a download is given up
PIECE = 1 << 20  # bytes read at once


@dataclass(frozen=True)
class Sdist:
    """One source package, exactly, and what we want of it.

    Attributes:
        members: names of files inside the archive, each with the name that it is kept under.
        holds: what they are, for messages.
        size: of the archive, in bytes.
    """

    package: str
    version: str
    sha256: str
    size: int
    members: Mapping[str, str]
    holds: str

    @property
    def file(self) -> str:
        """The archive's name."""
        return f"{self.package}-{self.version}.tar.gz"


def extracted(
    sdist: Sdist, folder: Path, convert: Callable[[Path, Path], None], downloaded: Downloaded = lambda _: None
) -> Path:
    """Return `folder`, made of the package's members first if it is not there.

    `convert(members, target)` makes the wanted folder out of the one that holds the members.

    Raises:
        OSError: the package cannot be had, is not the one expected, or lacks a member; a file of the folder has
            changed; or the cache cannot be written.
    """

    def make(place: Path) -> Path:
        archive = place / sdist.file
        try:
            _download(_address(sdist), archive, downloaded)
        except (OSError, ValueError) as error:
            raise OSError(
                f"could not fetch {sdist.file}, which holds {sdist.holds} ({error}); once it is reachable, "
                f"or its folder is copied to {folder}, this works without a network"
            ) from error
        require_sha256(archive, sdist.sha256)
        (place / "members").mkdir()
        _copy_members(archive, sdist, place / "members")
        archive.unlink()
        convert(place / "members", place / "made")
        return place / "made"

    return kept(folder, make)


def _copy_members(archive: Path, sdist: Sdist, target: Path) -> None:
    with tarfile.open(archive) as opened:
        for name, kept_as in sdist.members.items():
            try:
                source = opened.extractfile(name)
            except KeyError:
                source = None
            if source is None:
                raise OSError(f"{sdist.file} has no file {name}")
            with source, (target / kept_as).open("wb") as file:
                copyfileobj(source, file)


def _address(sdist: Sdist) -> str:
    """Return where the index says that the archive is."""
    page = f"{_setting('index-url') or PYPI}".rstrip("/") + f"/{sdist.package}/"
    links = _Links()
    with _opened(page) as answer:
        links.feed(answer.read().decode("utf-8"))
    for link in links.found:
        address = urljoin(page, link)
        if unquote(urlsplit(address).path).rpartition("/")[2] == sdist.file:
            return address
    raise ValueError(f"{page.rpartition('@')[2]} does not list it")


class _Links(HTMLParser):
    """Gathers the addresses of all links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep a link's address."""
        address = dict(attrs).get("href")
        if tag == "a" and address:
            self.found.append(address)


def _download(address: str, file: Path, downloaded: Downloaded) -> None:
    with _opened(address) as answer, file.open("wb") as target:
        here = 0
        while piece := answer.read(PIECE):
            target.write(piece)
            here += len(piece)
            downloaded(here)


def _opened(address: str):  # type: ignore[no-untyped-def]
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"expected an index at http or https, got {parts.scheme!r}")
    context = ssl.create_default_context(cafile=_setting("cert"))
    named, _, host = parts.netloc.rpartition("@")
    bare = parts._replace(netloc=host).geturl()
    request = urllib.request.Request(bare, headers={"Accept": "text/html, */*;q=0.1"})
    if named:  # as pip takes an index with a name and a password; a redirection does not get them
        told = base64.b64encode(":".join(map(unquote, (named if ":" in named else f"{named}:").split(":", 1))).encode())
        request.add_unredirected_header("Authorization", f"Basic {told.decode()}")
    return urllib.request.urlopen(request, timeout=PATIENCE, context=context)


def _setting(name: str) -> str | None:
    """Return an option of pip: from the environment, or from its configuration."""
    if chosen := os.environ.get(f"PIP_{name.upper().replace('-', '_')}"):
        return chosen
    for section in ("download", "global"):
        asked = subprocess.run([*pip_command(), "config", "get", f"{section}.{name}"], text=True, capture_output=True)
        if asked.returncode == 0 and asked.stdout.strip():
            return asked.stdout.strip()
    return None
