"""gyrograd verify: check a submission, and measure a sample of it again."""

from __future__ import annotations

from pathlib import Path

from gyrograd.errors import printable


def verify(folder: Path, images: int = 4, seed: int = 0, device: str = "auto") -> int:
    """Check a submission and measure a sample of its numbers again.

    A submission is a folder that `gyrograd submit` wrote; its files and its card are checked, too.

    Args:
        folder: the submission.
        images: number of images to measure again.
        seed: for the choice of images; take a number that the submitter did not know.
        device: auto, cpu, cuda or cuda:INDEX.
    """
    from gyrograd.audit.submission import verify as checks

    for check in checks(folder, sample=images, seed=seed, device=device):
        print(f"{'ok  ' if check.wrong is None else 'no  '}{printable(check.what)}", flush=True)
        if check.wrong is not None:
            print(f"    {printable(check.wrong)}")
            print(f"{printable(folder)} does not hold.")
            return 1
    print(f"{printable(folder)} holds.")
    return 0
