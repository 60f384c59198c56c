"""Files that are whole or absent, and directories that one process at a time may write.

Everything that is written to be read again goes through ``replace``: checkpoints, summaries, reports, figures, tables.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fedhyper.errors import StorageError

PATIENCE = 2.0  # seconds to wait for a lock whose holder is dead


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system says about ``path`` into one line and exit code 74."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StorageError(f"{path}: {reason}; free space, check the permissions, or choose another place") from error


def replace(path: Path, *pieces: bytes | memoryview) -> None:
    """``replace_by`` for what is at hand."""
    replace_by(path, pieces)


def replace_by(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Put a file of these pieces where ``path`` is, whole or not at all; OSError leaves what was there.

    A temporary file beside it, flushed, renamed over it, and the directory flushed: a kill at any instant leaves the
    old file or the new one. One writer a file; what killed writers left behind is removed first.
    """
    if not path.name:  # "." and "/"
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    remove_stale(path)
    # never the training's random numbers: saving must not disturb a run
    temporary = path.with_name(f"{_temporary_prefix(path)}{os.getpid()}-{secrets.token_hex(4)}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        try:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(fd, stat.S_IMODE(os.stat(path).st_mode))
            for piece in pieces:
                write_all(fd, piece)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except BaseException:  # Ctrl-C too must not leave the temporary file behind
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)  # without it a power cut can undo the rename
    finally:
        os.close(directory)


def write_new(path: Path, content: bytes | str) -> Path:
    """``replace`` for a person's file: its directory is made, and an error is one line. ``path`` comes back.

    What is no file is written into: root would put a file in the place of /dev/stdout, /dev/full or a pipe.
    """
    data = content.encode("utf-8", "replace") if isinstance(content, str) else content
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_relative_to("/dev") or (path.exists() and not path.is_file() and not path.is_dir()):
            with open(path, "wb", buffering=0) as special:
                write_all(special.fileno(), data)
        else:
            replace(path, data)
    return path


def write_all(fd: int, piece: bytes | memoryview) -> None:
    """All of ``piece``: the system may take less of it than it was given."""
    view = memoryview(piece)
    while view:
        view = view[os.write(fd, view) :]


def _temporary_prefix(path: Path) -> str:
    # of the name only its hash: the name itself may already be as long as a file system allows
    return f".fedhyper-{hashlib.blake2b(path.name.encode('utf-8', 'replace'), digest_size=6).hexdigest()}-"


def remove_stale(path: Path | str) -> list[Path]:
    """Delete the temporary files that killed writers of ``path`` left behind; the ones deleted come back.

    Our own pid counts as dead: a container's process has the same pid in every life, and a file has one writer.
    """
    path = Path(path)
    removed = []
    for stale in _temporaries(path):
        pid = stale.name.removeprefix(_temporary_prefix(path)).partition("-")[0]
        if pid.isdigit() and (int(pid) == os.getpid() or not alive(int(pid))):
            with contextlib.suppress(OSError):
                stale.unlink()
                removed.append(stale)
    return removed


def _temporaries(path: Path) -> Iterator[Path]:
    prefix = _temporary_prefix(path)
    with os.scandir(path.parent) as entries:
        for entry in entries:
            if entry.name.startswith(prefix) and entry.name.endswith(".tmp"):
                yield Path(entry.path)


def alive(pid: int) -> bool:
    """Whether there is a process of this number, ours or not."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's, and there
        pass
    return True


def lock(directory: Path) -> int:
    """Hold ``directory`` until the descriptor that comes back is closed, or refuse because another process does."""
    # flock and not a file with a pid in it: the kernel lets go of it when its holder dies, however it dies.
    fd = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    give_up = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
            # A process killed while it was starting another one leaves the lock with that one until it has started.
            if holder.isdigit() and not alive(int(holder)) and time.monotonic() < give_up:
                time.sleep(0.02)
                continue
            os.close(fd)
            who = f"process {holder}" if holder.isdigit() else "another process"
            raise StorageError(f"{directory} is in use by {who}; wait for it, or choose another --out") from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None when it is absent or is not one."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}; check its permissions") from error
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
