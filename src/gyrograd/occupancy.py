"""One writer per folder, by a lock that the kernel releases when its process ends, also by a kill. Needs no torch.

A hidden file is locked (`flock`; on Windows one byte of it) and names its holder. A killed process leaves the file but
not the lock, so there are no stale locks to detect. Readers need no lock, because files are replaced atomically. See
docs/decisions/0010-one-writer-per-folder.md.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from threading import get_ident
from typing import TypeVar

from gyrograd.errors import UserError
from gyrograd.renames import keep_old_names

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

T = TypeVar("T")
NAME = ".writer"
"""The file that is locked in a folder."""
BUSY = {errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK}
"""Errors that mean that another process has the lock."""
WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
"""Errors that mean that the file system has no locks (Lustre, NFS and FUSE mounted without them)."""
PAUSE_S = 0.2
"""Seconds between two attempts to take a lock."""
LOCKED_BYTE = 1 << 20
"""The byte that Windows locks, beyond those that are read: its locks keep readers out, too."""

_held: dict[tuple[int, Path], int] = {}
"""Open files by thread and path: a thread may take its own lock again (`harden` trains in its own folder)."""


@contextmanager
def exclusive_folder(folder: Path | str, *, ranks: bool = False) -> Iterator[None]:
    """Create the folder and lock it for the block; a folder that another process uses is an error.

    A block that writes nothing (because of an error, for example) leaves no new folder behind.

    Args:
        folder: the folder.
        ranks: rank 0 of the processes that torchrun started takes the lock for all of them.
    """
    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    started = int(os.environ.get("WORLD_SIZE", 1)) if by_torchrun else 1
    path = Path(folder).absolute() / NAME
    if _key(path) in _held or (ranks and started > 1 and os.environ.get("RANK") != "0"):
        yield
        return
    missing = [place for place in path.parents if not place.exists()]
    with _os_error_as_user_error(Path(folder)):
        if not _take(path):
            raise UserError(f"{folder} is in use: {_holder(path)}; {_fix(1 if ranks else started)}.")
    try:
        yield
    finally:
        _release(path)
        with suppress(OSError):
            for place in missing:
                place.rmdir()


@contextmanager
def wait_for_lock(path: Path | str, what: str) -> Iterator[None]:
    """Hold this lock file for the block; if another process has it, print a line and wait. `what` is for the line."""
    path = Path(path).absolute()
    if _key(path) in _held:
        yield
        return
    with _os_error_as_user_error(path.parent):
        if not _take(path):
            print(f"gyrograd: waiting for {what}: {_holder(path)}.", file=sys.stderr, flush=True)
            while not _take(path):
                time.sleep(PAUSE_S)
    try:
        yield
    finally:
        _release(path)


def free_first(items: Iterable[T], lock_of: Callable[[T], Path]) -> Iterator[T]:
    """Yield each item with its lock held; items that another process holds come last, without the lock.

    Processes with the same work share it if each works on an item inside `wait_for_lock(lock_of(item), ...)`.
    """
    later = []
    for item in items:
        path = lock_of(item).absolute()
        with _os_error_as_user_error(path.parent):
            free = _take(path)
        if not free:
            later.append(item)
            continue
        try:
            yield item
        finally:
            _release(path)
    yield from later


def _key(path: Path) -> tuple[int, Path]:
    return get_ident(), path.resolve()


def _take(path: Path) -> bool:
    """Take the lock; False if another process or thread holds it."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            if path.is_symlink():
                raise  # a link to a missing folder
            continue  # its last holder removed the empty folder
        had = False
        try:
            had = _try_lock(file, path)
            if had and _is_at(file, path):
                _sign(file)
                _held[_key(path)] = file
                return True
        except BaseException:
            # For example, a full disk has no room for the holder's name: leave nothing behind.
            with suppress(OSError):
                if had and _is_at(file, path):
                    path.unlink()
            os.close(file)
            raise
        os.close(file)
        if not had:
            return False
        # The last holder removed the file before we had the lock: the next process would lock a new file, so try again.


def _try_lock(file: int, path: Path) -> bool:
    """Lock the open file without waiting; on a file system without locks, warn and return True."""
    try:
        if sys.platform == "win32":
            os.lseek(file, LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as trouble:
        if trouble.errno in BUSY:
            return False
        if trouble.errno not in WITHOUT_LOCKS:
            raise
        _say_once(
            f"{path.parent} is on a file system without locks ({trouble.strerror}); see to it that no second run "
            "writes there."
        )
    return True


def _release(path: Path) -> None:
    """Remove the file, then release it: a process that opens it in between finds that it is gone."""
    file = _held.pop(_key(path), None)
    if file is None:
        return  # a fork of the process that holds it
    # On Windows an open file cannot be removed; it may stay, because it is not locked.
    with suppress(OSError):
        if _is_at(file, path):
            path.unlink()
    os.close(file)


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def _sign(file: int) -> None:
    """Write into the file who holds it, and since when."""
    since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    words = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since})
    os.lseek(file, 0, os.SEEK_SET)
    os.truncate(file, 0)
    os.write(file, words.encode())


def _holder(path: Path) -> str:
    """A sentence that names the holder of the lock; it may not have written its name yet."""
    try:
        note = json.loads(path.read_text(encoding="utf-8"))
        return f"process {note['pid']} on {note['host']} has been at work there since {note['since']}"
    except (OSError, ValueError, KeyError):
        return "another process has just begun to work there"


def _fix(started: int) -> str:
    """The end of the "in use" sentence: what to do."""
    if started > 1:
        return f"torchrun started {started} copies of what one process does: start it without torchrun"
    copies = os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    if copies == "1" or "TORCHELASTIC_RUN_ID" in os.environ:
        return "wait until it ends, stop it, or give another folder (--out)"
    return (
        f"srun started {copies} copies of this command: start one (srun --ntasks 1 gyrograd ..., or for training in "
        f"several processes srun --ntasks 1 torchrun --nproc-per-node {copies} --no-python gyrograd train ...), or "
        "give each a folder of its own (--out)"
    )


@contextmanager
def _os_error_as_user_error(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as trouble:
        raise UserError(
            f"{folder} cannot be written ({trouble.strerror}); make room or give another folder."
        ) from trouble


@lru_cache(maxsize=64)
def _say_once(sentence: str) -> None:
    print(f"gyrograd: {sentence}", file=sys.stderr, flush=True)


def _let_go_in_a_fork() -> None:
    """Close the parent's lock files in a fork: it inherits them, and they would outlive the parent."""
    for file in _held.values():
        os.close(file)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_a_fork)

keep_old_names(
    __name__,
    sole_writer="gyrograd.occupancy.exclusive_folder",
    in_turn="gyrograd.occupancy.wait_for_lock",
)
