"""Fetch a dataset through pooch: https only, pinned SHA-256 before anything is parsed, retries, progress."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import urljoin, urlsplit

import pooch
import requests

from fedhyper.errors import DataError, StorageError
from fedhyper.sim.data.files import file_status
from fedhyper.sim.data.published import DataFile, Dataset, Download

RETRIES = 2
TIMEOUT = 30.0  # seconds without a byte
CHUNK = 1 << 16
MAX_MEMBERS = 64  # CIFAR-10's archive has 10
MAX_MEMBER = 64 << 20  # its largest member has 30.7 MB


def download(wanted: Dataset, directory: Path, progress: bool) -> None:
    """Bring every file of ``wanted`` that is missing or damaged into ``directory``."""
    lacking = [f for f in wanted.files if file_status(directory, f).state in ("missing", "corrupt")]
    if not lacking:
        return
    paths = {file.path for file in lacking}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _bars(progress) as bars:
            for item in wanted.downloads:
                if wanted.archive:
                    _fetch_archive(wanted, item, directory, lacking, bars)
                elif item.path in paths:
                    _retrieve(wanted, item, directory, lacking, bars)
    except OSError as error:
        # requests' own errors are OSErrors too and were turned into DataError by _retrieve.
        raise StorageError(
            f"cannot write to {directory} ({error.strerror or error}); free some space or change FEDHYPER_DATA"
        ) from error


def _retrieve(wanted: Dataset, item: Download, directory: Path, lacking: list[DataFile], bars: Any) -> None:
    pooch.get_logger().setLevel("WARNING")  # the progress bar says what its messages say
    keeper = pooch.create(
        path=directory,
        base_url="",
        registry={item.path: f"sha256:{item.sha256}"},
        urls={item.path: item.url},
        retry_if_failed=RETRIES,
    )
    try:
        keeper.fetch(item.path, downloader=_Downloader(item, bars))
    except requests.exceptions.RequestException as error:
        if error.response is not None:
            error.response.close()
        names = ", ".join(file.path for file in lacking)
        raise DataError(
            f"{wanted.name}: cannot download {item.url} ({_reason(error)}); put {names} into {directory}, "
            "or set FEDHYPER_DATA to a directory that has them"
        ) from error
    except ValueError as error:  # pooch's word for a wrong hash, after the retries; it has removed the file
        raise DataError(
            f"{wanted.name}: what {item.url} serves does not have the pinned SHA-256 {item.sha256}; "
            f"nothing was kept; try again later, or put a good {item.path} into {directory}"
        ) from error


def _reason(error: requests.exceptions.RequestException) -> str:
    if isinstance(error, requests.exceptions.HTTPError) and error.response is not None:
        return f"the server answers {error.response.status_code}"
    if isinstance(error, requests.exceptions.Timeout):
        return f"no answer for {TIMEOUT:g} s"
    if isinstance(error, _Refused | requests.exceptions.TooManyRedirects):
        return str(error)
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the connection broke off"
    return "no connection"


class _Refused(requests.exceptions.RequestException):
    """The server asks for something we do not do."""


def _check_url(url: str, response: requests.Response | None = None) -> None:
    """https, or a mirror on this very machine."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1")):
        raise _Refused(f"refused {url}: not https", response=response)


def _check_redirect(response: requests.Response, *_: Any, **__: Any) -> None:
    if response.is_redirect:
        _check_url(urljoin(response.url, response.headers["location"]), response)


class _Downloader:
    """What pooch calls to get one file.

    Its own HTTPDownloader follows a redirect to http, stops at no size, and wants tqdm for its bar.
    """

    def __init__(self, item: Download, bars: Any) -> None:
        self.item, self.bars = item, bars

    def __call__(self, url: str, output_file: str | IO[bytes], _: Any) -> None:
        _check_url(url)
        task = self.bars.add_task(self.item.path, total=self.item.size) if self.bars else None
        with requests.get(
            url,
            stream=True,
            timeout=TIMEOUT,
            hooks={"response": _check_redirect},
            headers={"Accept-Encoding": "identity"},
        ) as response:
            response.raise_for_status()
            with open(output_file, "wb") if isinstance(output_file, str) else output_file as out:
                received = 0
                for chunk in response.iter_content(CHUNK):
                    received += len(chunk)
                    if received > self.item.size:
                        raise _Refused(f"it is longer than its {self.item.size:,} bytes")
                    out.write(chunk)
                    if self.bars:
                        self.bars.update(task, completed=received)


@contextmanager
def _bars(show: bool) -> Iterator[Any]:
    if not show:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        yield bars


def _fetch_archive(wanted: Dataset, item: Download, directory: Path, lacking: list[DataFile], bars: Any) -> None:
    """Download the archive unless it lies there, and unpack what is lacking, and nothing else, from it."""
    archive = directory / item.path
    was_there = archive.exists()
    _retrieve(wanted, item, directory, lacking, bars)
    try:
        unpack(archive, directory, {file.path for file in lacking})
    finally:
        if not was_there:
            archive.unlink()


def unpack(archive: Path, directory: Path, paths: set[str]) -> None:
    """Extract the members named ``paths``: each appears whole under its name, or not at all."""
    broken = f"{archive} is damaged: {{}}; delete it and run `fedhyper data fetch` again"
    scratch = Path(tempfile.mkdtemp(prefix=".unpack-", dir=directory))
    try:
        found = set()
        with tarfile.open(archive, "r:*") as tar:
            for count, member in enumerate(tar):
                if count >= MAX_MEMBERS:
                    raise DataError(broken.format(f"it has more than {MAX_MEMBERS} members"))
                if member.name not in paths:
                    continue
                if not member.isreg() or member.size > MAX_MEMBER:
                    raise DataError(broken.format(f"its member {member.name} is no file of a sensible size"))
                tar.extract(member, scratch, filter="data")
                found.add(member.name)
        if found != paths:
            raise DataError(broken.format(f"it lacks {', '.join(sorted(paths - found))}"))
        for path in sorted(paths):
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            os.replace(scratch / path, directory / path)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(broken.format("it cannot be unpacked")) from error
    finally:
        shutil.rmtree(scratch)
