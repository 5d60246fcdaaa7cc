"""Every method on a real device beside the CPU: `PYTHONPATH=src:tests python tests/on_device.py cuda`.

The tests need no GPU and emulate one (`elsewhere`); this shows, where there is one, what an emulation cannot: its own
kernels, autocast and half precision. Prints a line for each failure, and how many checks were made.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator

import torch
from every_method import EVERY, Run
from nets import batch, halved, net

Check = Callable[[Run, str], None]


def same_as_on_the_cpu(run: Run, device: str) -> None:
    x, y = batch(3)
    expected = run(net("residual"), x, y)
    found = run(net("residual").to(device), x.to(device), y.to(device))
    for mine, its in zip(found, expected, strict=True):
        assert mine.device.type == torch.device(device).type, f"a result is on {mine.device}"
        torch.testing.assert_close(mine.cpu(), its, rtol=1e-6, atol=1e-9, equal_nan=True)


def same_without_grad(run: Run, device: str) -> None:
    x, y = (part.to(device) for part in batch(3))
    model = net("residual").to(device)
    expected = run(model, x, y)[0]
    with torch.no_grad():
        found = run(net("residual").to(device), x, y)[0]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9, equal_nan=True)


def finite_in_half_precision(run: Run, device: str) -> None:
    x, y = (part.to(device) for part in batch(3))
    result = run(halved(torch.bfloat16).to(device), x.bfloat16(), y)[0]
    assert result.dtype == torch.bfloat16, f"the result is {result.dtype}"
    assert result.isfinite().all(), "the result is not finite"


def single_under_autocast(run: Run, device: str) -> None:
    x, y = (part.to(device) for part in batch(3))
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        results = run(net("residual").float().to(device), x.float(), y)
    kinds = {r.dtype for r in results if r.is_floating_point()}
    assert kinds <= {torch.float32}, f"results are {kinds}"
    assert results[0].isfinite().all(), "the result is not finite"


CHECKS: tuple[Check, ...] = (
    same_as_on_the_cpu,
    same_without_grad,
    finite_in_half_precision,
    single_under_autocast,
)
# The others ask for derivatives of what they get, which has no graph there.
WITHOUT_GRAD = {"map", "metric", "attack"}


def cases(methods: Iterable[str]) -> list[tuple[str, Check]]:
    """Which method meets which check."""
    return [
        (name, check)
        for name in methods
        for check in CHECKS
        if check is not same_without_grad or name.split()[0] in WITHOUT_GRAD
    ]


def failures(device: str, methods: dict[str, Run]) -> Iterator[str]:
    for name, check in cases(methods):
        try:
            check(methods[name], device)
        except Exception as fault:
            yield f"{name}, {check.__name__}: {type(fault).__name__}: {' '.join(str(fault).split())[:300]}"


def main() -> int:
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    found = 0
    for line in failures(device, EVERY):
        found += 1
        print(line, flush=True)
    print(f"{len(EVERY)} methods on {device}, {len(cases(EVERY))} checks: {found} failures")
    return min(found, 1)


if __name__ == "__main__":
    sys.exit(main())
