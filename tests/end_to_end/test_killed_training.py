"""kill -9, eight times, at random moments: the run that goes on afterwards ends bit for bit like the whole one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]

# One process imports torch and forks the runs; it never computes a gradient itself, so forking is safe.
WORKER = """
import json, os, random, signal, sys, time
import torch
from pathlib import Path
from safetensors.torch import load_file, save_file
from small_training import net, pictures, settings
from gyrograd.training import fit
from gyrograd.training.snapshots import NAME
import torch._dynamo  # which an optimizer imports: here once, instead of in every fork

folder, kills = Path(sys.argv[1]), int(sys.argv[2])
chance = random.Random(int(sys.argv[3]))


def run(out):
    model = net()
    done = fit(model, pictures(), settings(epochs=40, checkpoint_seconds=0), test=pictures(12, 1), out=folder / out)
    save_file(model.state_dict(), folder / out / "final.safetensors")
    history = [{k: v for k, v in entry.items() if k != "seconds"} for entry in done.history]
    (folder / out / "history.json").write_text(json.dumps([history, done.best]))


def started(out):
    pid = os.fork()
    if pid == 0:
        try:
            run(out)
            os._exit(0)
        except BaseException as wrong:
            print(repr(wrong), file=sys.stderr, flush=True)
            os._exit(1)
    return pid


def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def written(path):
    try:
        return path.stat().st_mtime_ns, path.stat().st_ino
    except FileNotFoundError:
        return None


assert ended(started("whole")) == 0
codes = []
for _ in range(kills):
    pid = started("killed")
    # some checkpoints later, and then at any moment of a step or of a write
    seen, changes = written(folder / "killed" / NAME), chance.randrange(4)
    while changes and os.waitpid(pid, os.WNOHANG)[0] == 0:
        now = written(folder / "killed" / NAME)
        changes, seen = changes - (now != seen), now
        time.sleep(0.0005)
    time.sleep(chance.random() * 0.01)
    os.kill(pid, signal.SIGKILL)
    codes.append(ended(pid))
assert ended(started("killed")) == 0
whole, killed = (load_file(folder / out / "final.safetensors") for out in ("whole", "killed"))
print(json.dumps({
    "codes": codes,
    "different": [key for key in whole if not torch.equal(whole[key], killed[key])],
    "weights": len(whole),
    "temporary": [p.name for p in (folder / "killed").iterdir() if p.name.startswith(".")],
}))
"""


def test_eight_kills_lose_nothing(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    result = subprocess.run(
        [sys.executable, "-c", WORKER, str(tmp_path), "8", "1"],
        env=environment | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["codes"] == [-9] * 8  # each kill met a run that was still going
    assert found["different"] == []
    assert found["weights"] > 5
    assert found["temporary"] == []
    histories = [json.loads((tmp_path / out / "history.json").read_text()) for out in ("whole", "killed")]
    assert histories[0] == histories[1]
    lines = (tmp_path / "killed" / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == list(range(1, 41))
