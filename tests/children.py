"""Child processes that begin clean: `CLEAN.Process(target=function, args=...)`.

torch refuses to differentiate in a fork of a process whose autograd has used threads, which other tests in the same
process may have made it do. These children are forked from a server that computes nothing.
"""

from __future__ import annotations

import multiprocessing

CLEAN = multiprocessing.get_context("forkserver")
# Imported once, in the server. torch._dynamo is what an optimizer imports.
CLEAN.set_forkserver_preload(
    ["torch._dynamo", "gyrograd.audit", "gyrograd.hardening", "hypothesis", "pytest"]
)
