"""A Ray cluster to work on: one of this machine that ends with the work, or one that runs already. No torch.

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
"""Bytes of shared memory, the least Ray takes."""


def ray_library(what: str) -> Any:
    """Ray, or one sentence where it is not installed. `what` needs it, in words."""
    try:
        import ray
    except ImportError:
        raise UserError(f"{what} needs Ray: pip install 'gyrograd[ray]'.") from None
    return ray


@contextmanager
def ray_connection(ray: Any, address: str, cpus: int | None = None, store: int = STORE) -> Iterator[None]:
    """Connected for the block; a cluster somebody else connected to is left alone.

    `address`: local (a cluster of this machine with so many `cpus`, all by default, and a `store` of so many bytes),
    auto (one that runs already) or its address.
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
    # Without it Ray announces at each start that it will one day stop hiding GPUs from tasks that ask for none.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # What workers print goes to Ray's logs; who asked for the work says what there is to say.
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
