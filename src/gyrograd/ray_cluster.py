"""Connect to a Ray cluster, started on this machine for the work or already running. Needs no torch.

Trials of a sweep and workers of a measurement both run here (`training.clusters`, `measurement.clusters`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gyrograd.errors import UserError

LOCAL = "local"
STORE = 80 * 1024 * 1024
"""Bytes of shared memory: the least that Ray accepts."""


def ray_library(what: str) -> Any:
    """The ray module; if it is not installed the error says that `what` needs it."""
    try:
        import ray
    except ImportError:
        raise UserError(f"{what} needs Ray: pip install 'gyrograd[ray]'.") from None
    return ray


@contextmanager
def ray_connection(ray: Any, address: str, cpus: int | None = None, store: int = STORE) -> Iterator[None]:
    """Connect to a cluster for the block; an existing connection is used and left open.

    Args:
        ray: the ray module.
        address: local (a new cluster on this machine), auto (a running one) or its address.
        cpus: processors of a local cluster; default: all.
        store: bytes of shared memory of a local cluster.
    """
    if ray.is_initialized():
        yield
        return
    _connect(ray, address, cpus, max(store, STORE))
    try:
        yield
    finally:
        ray.shutdown()


def _connect(ray: Any, address: str, cpus: int | None, store: int) -> None:
    # Silences Ray's announcement about hiding GPUs from tasks that ask for none.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Output of workers goes to Ray's logs only; the caller reports results.
    how: dict[str, Any] = {"log_to_driver": False, "logging_level": "warning"}
    if address == LOCAL:
        how |= {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": store}
    else:
        how |= {"address": address}
    try:
        ray.init(**how)
    except (ConnectionError, ValueError, RuntimeError) as wrong:
        reason = " ".join(str(wrong).split())[:200].rstrip(".")
        raise UserError(
            f"There is no Ray cluster at '{address}' ({reason}); start one, or give local."
        ) from None
