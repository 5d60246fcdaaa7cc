"""What processors of other libraries return is no tensor: every method says which of its parts to give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# In a process of its own: the tests' own type checks would refuse a dict before the methods see it.
ASK_ALL = """
import torch, gyrograd as gg
from every_method import small
from nets import net

x, y = {"pixel_values": torch.rand(2, 3, 32, 32)}, torch.tensor([0, 1])
model, map = net("lenet"), gg.attribution("gradient")
asked = {f"attribution {n}": lambda n=n: small("attribution", n)(model, x, y) for n in gg.available("attribution")}
for kind in ("attack", "metric"):
    for n in gg.available(kind):
        asked[f"{kind} {n}"] = lambda kind=kind, n=n: small(kind, n)(model, map, x, y)
for n in gg.available("regularizer"):
    teacher = {"teacher": model} if n == "atex" else {}
    asked[f"regularizer {n}"] = lambda n=n, teacher=teacher: small("regularizer", n, **teacher)(model, x, y)
asked["audit"] = lambda: gg.audit(model, x, y)
asked["predicted"] = lambda: gg.predict(model, x)
for name, ask in asked.items():
    try:
        ask()
        answer = "an answer"
    except Exception as wrong:
        answer = f"{type(wrong).__name__}: {wrong}"
    wanted = "UserError: The inputs are a dict, as processors return; give its tensor: x['pixel_values']."
    if answer != wanted:
        print(name, "gave", answer)
print(len(asked), "asked")
"""


def test_everything_refuses_a_dict_of_inputs_with_the_sentence_that_names_its_tensor():
    ran = subprocess.run(
        [sys.executable, "-c", ASK_ALL], capture_output=True, text=True, cwd=Path(__file__).parents[1]
    )
    assert not ran.returncode, ran.stderr
    *others, count = ran.stdout.splitlines()
    assert others == []
    assert int(count.split()[0]) > 55
