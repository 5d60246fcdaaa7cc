"""Worker processes on this machine, which hold the cells and receive one shard after another.

Workers only measure; the process that started them writes the folder. A shard is measured by one worker, so its numbers
are those of a single process with the same number of threads (which affects rounding). A worker that dies is replaced,
and its shard is given out again.
"""

from __future__ import annotations

import gc
import io
import itertools
import os
import pickle
import signal
import subprocess
import sys
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

import cloudpickle
import torch
from torch import Tensor

from gyrograd.attacks.looks import shared_clean_looks
from gyrograd.errors import UserError, check_counts
from gyrograd.measurement.cells import Cell, Finished, Task, in_this_process
from gyrograd.measurement.machine import free_memory, usable_cores
from gyrograd.metrics.insertion import shared_curves
from gyrograd.numerics.modes import denormals_are_zero, keep_freed_memory
from gyrograd.progress import without_bars

MAX_DEATHS = 3
"""A shard that ends this many workers is not tried again: it is the cause."""
CHEAP = 0.1
"""Share of a round's work, its cheapest tasks, that is done first."""
START = """import gc, pickle, sys
gc.disable()
sys.path[:] = pickle.load(sys.stdin.buffer)
from gyrograd.measurement.workers import serve
serve()"""
"""A fresh interpreter: a fork would share locks and CUDA's state, multiprocessing would rerun the user's script.

To look for garbage among what its imports make takes a sixth of their time, and there is none."""


class Reply(NamedTuple):
    """A message of a worker. kind: ready, done (value: a record), failed (an exception) or lost (its exit code)."""

    slot: int
    kind: str
    value: Any = None


@dataclass(frozen=True)
class Processes:
    """Workers as processes of this machine, each with its share of the processors or, for a model on a GPU, one GPU."""

    count: int

    def __post_init__(self) -> None:
        check_counts(workers=self.count)

    def __call__(self, cells: Sequence[Cell], tasks: Sequence[Task]) -> Finished:
        """Yield each task's number with its record, in the order in which they finish."""
        content = packed(cells)
        pool = Pool(min(self.count, len(tasks)), lambda slot, say: _Process(slot, self.count, content, say))
        return pool.finished(tasks)


@dataclass(frozen=True)
class ProcessesIfLong:
    """One process per core if the work takes long enough to pay for starting them, else this process alone.

    `pass_s`: CPU seconds of what a cell counts as one unit of effort, a forward pass of one example.
    """

    pass_s: float

    def __call__(self, cells: Sequence[Cell], tasks: Sequence[Task]) -> Finished:
        """Yield each task's number with its record, in the order in which they finish."""
        expected_s = self.pass_s * sum(task.guess[1] for task in tasks)
        count = min(
            usable_cores(), len(tasks), int(expected_s / LEAST_PER_WORKER_S), free_memory() // WORKER_BYTES
        )
        if expected_s < LONG_S or count < 2:
            yield from in_this_process(cells, tasks)
            return
        results = None
        try:
            results = Processes(count)(cells, tasks)
            # The first record shows that the workers can rebuild the cells; until then this process can take over.
            first = next(results)
        except UserError:
            # A model that cannot be sent to another process; any other mistake is made here too, and speaks for itself.
            yield from in_this_process(cells, tasks)
            return
        print(
            f"gyrograd: {count} processes measure (--workers 1: only this one).", file=sys.stderr, flush=True
        )
        with closing(results):
            yield first
            yield from results


LONG_S, LEAST_PER_WORKER_S = 90.0, 20.0
"""CPU seconds from which on `ProcessesIfLong` starts processes, and the least work of each: starting one takes five."""
WORKER_BYTES = 3 << 29
"""Memory that a worker needs: 0.9 GB with torch, and the activations of a pass."""


@dataclass
class Pool:
    """Distributes tasks to workers and replaces workers that die.

    `start(slot, report)` makes the worker of a slot, which has `ask(task)` and `stop()` and sends replies to `report`.
    """

    count: int
    start: Callable[[int, Callable[[Reply], None]], Any]
    workers: dict[int, Any] = field(default_factory=dict)
    busy: dict[int, int] = field(default_factory=dict)
    """The number of the task that each slot is working on."""
    deaths: Counter[int | None] = field(default_factory=Counter)

    def finished(self, tasks: Sequence[Task]) -> Finished:
        waiting = deque(long_first(tasks))
        replies: SimpleQueue[Reply] = SimpleQueue()
        idle: set[int] = set()
        left = len(tasks)
        try:
            for slot in range(self.count):
                self.workers[slot] = self.start(slot, replies.put)
            while left:
                slot, kind, value = replies.get()
                number = self.busy.pop(slot, None)
                if kind == "failed":
                    raise value
                if kind == "lost":
                    self._replace(slot, number, value, replies.put)
                    # In front, so that the round of the lost task is not held up.
                    waiting.extendleft([] if number is None else [number])
                else:
                    idle.add(slot)
                # Before the record is yielded: no worker waits while the caller writes it.
                while waiting and idle:
                    ready = idle.pop()
                    self.busy[ready] = waiting.popleft()
                    self.workers[ready].ask(tasks[self.busy[ready]])
                if kind == "done":
                    assert number is not None
                    left -= 1
                    yield number, value
        finally:
            for worker in self.workers.values():
                worker.stop()

    def _replace(self, slot: int, number: int | None, code: int | None, say: Callable[[Reply], None]) -> None:
        # Counted per task: many workers may die of other causes in a long run, and it goes on.
        self.deaths[number] += 1
        self.workers[slot].stop()
        if self.deaths[number] >= MAX_DEATHS:
            when = "before it had begun" if number is None else "on the same images"
            raise UserError(
                f"A worker died {MAX_DEATHS} times {when} ({_cause(code)}); give fewer --workers, so that each has "
                "more memory. Finished results are kept."
            )
        self.workers[slot] = self.start(slot, say)


class _Process:
    """The starting process's handle of a worker."""

    def __init__(self, slot: int, of: int, content: bytes, say: Callable[[Reply], None]) -> None:
        self.slot, self.say = slot, say
        threads = max(1, torch.get_num_threads() // of)
        self.child = subprocess.Popen(
            [sys.executable, "-c", START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **_gpu(slot), "OMP_NUM_THREADS": str(threads)},
        )
        # In a thread: the model does not fit the pipe, so writing waits until the worker has started and reads.
        Thread(target=self._listen, args=(content, Numerics.here(threads)), daemon=True).start()

    def ask(self, task: Task) -> None:
        with suppress(OSError):  # the worker is dead; `_listen` reports it
            _send(self.child.stdin, task)

    def stop(self) -> None:
        # At once: a worker writes no files, so nothing is left half done.
        self.child.kill()
        self.child.wait()
        for pipe in (self.child.stdin, self.child.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def _listen(self, content: bytes, numerics: Numerics) -> None:
        try:
            assert self.child.stdin is not None
            assert self.child.stdout is not None
            # First, because the cells may refer to modules beside the script of the user.
            _send(self.child.stdin, sys.path)
            _send(self.child.stdin, numerics)
            self.child.stdin.write(content)
            self.child.stdin.flush()
            while True:
                self.say(Reply(self.slot, *pickle.load(self.child.stdout)))
        # ValueError: `stop` has closed the pipe.
        except (EOFError, OSError, ValueError, pickle.UnpicklingError):
            self.say(Reply(self.slot, "lost", self.child.wait()))


@dataclass(frozen=True)
class Numerics:
    """torch settings that affect rounding; a worker uses those of the process that started it."""

    threads: int
    denormals_are_zero: bool
    dtype: torch.dtype
    matmul: str
    deterministic: bool
    cudnn: tuple[bool, bool, bool]

    @staticmethod
    def here(threads: int | None = None) -> Numerics:
        """The settings of this process, with this number of threads."""
        cudnn = torch.backends.cudnn
        return Numerics(
            threads or torch.get_num_threads(),
            denormals_are_zero(),
            torch.get_default_dtype(),
            torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(),
            (cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32),
        )

    def apply(self) -> None:
        """Take them over, in a worker; its memory is its own to keep."""
        keep_freed_memory()
        torch.set_num_threads(self.threads)
        torch.set_flush_denormal(self.denormals_are_zero)
        torch.set_default_dtype(self.dtype)
        torch.set_float32_matmul_precision(self.matmul)
        torch.use_deterministic_algorithms(self.deterministic)
        cudnn = torch.backends.cudnn
        cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32 = self.cudnn


def serve() -> None:
    """Runs in the worker: measure tasks until the starting process is gone."""
    # Ctrl-C reaches every process of the terminal; the starting process decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asked = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output that a model prints must not mix with the replies
    try:
        pickle.load(asked).apply()
        cells: list[Cell] = unpacked(asked)
    except BaseException as wrong:
        return _send(answers, ("failed", portable(wrong)))
    gc.freeze()
    gc.enable()
    tasks: SimpleQueue[Task] = SimpleQueue()
    Thread(target=_hear, args=(asked, tasks), daemon=True).start()
    _send(answers, ("ready",))
    with shared_clean_looks(), shared_curves(), without_bars():
        while True:
            task = tasks.get()
            try:
                answer: tuple[Any, ...] = ("done", cells[task.cell].record(list(task.positions)))
            except BaseException as wrong:
                answer = ("failed", portable(wrong))
            _send(answers, answer)


def _hear(asked: Any, tasks: SimpleQueue[Task]) -> None:
    """Read tasks into the queue; end this process if the pipe closes, because its starter is gone."""
    try:
        while True:
            tasks.put(pickle.load(asked))
    except Exception:
        os._exit(0)


def packed(cells: Sequence[Cell]) -> bytes:
    """The cells as bytes, with model and images, even if they are defined in a script or a notebook."""
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(list(cells))
    except Exception as wrong:
        reason = " ".join(str(wrong).split())[:200]
        raise UserError(
            f"This model or data cannot be sent to other processes ({reason}); leave out --workers."
        ) from wrong
    return buffer.getvalue()


def unpacked(file: Any) -> list[Cell]:
    """The inverse of `packed`."""
    try:
        cells: list[Cell] = pickle.load(file)
    except Exception as wrong:
        reason = f"{type(wrong).__name__}: {' '.join(str(wrong).split())[:200]}"
        raise UserError(
            f"A worker cannot rebuild the model or the data ({reason}); leave out --workers."
        ) from wrong
    return cells


class _Pickler(cloudpickle.Pickler):
    """Moves tensors of any GPU to the one GPU that the worker sees; sends a TorchScript module as its file."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Tensor and obj.is_cuda:
            return _on_gpu, (obj.detach().cpu(), obj.requires_grad)
        if isinstance(obj, torch.device) and obj.type == "cuda":
            return torch.device, ("cuda", 0)
        if isinstance(obj, torch.jit.ScriptModule):
            file = io.BytesIO()
            with _jit_without_warnings():
                torch.jit.save(obj, file)
            return _script, (file.getvalue(),)
        return super().reducer_override(obj)


def _on_gpu(tensor: Tensor, requires_grad: bool) -> Tensor:
    return tensor.to("cuda").requires_grad_(requires_grad)


def _script(content: bytes) -> Any:
    with _jit_without_warnings():
        return torch.jit.load(io.BytesIO(content))


@contextmanager
def _jit_without_warnings() -> Iterator[None]:
    """Silence the warning that torch.jit is deprecated."""
    with warnings.catch_warnings():
        for kind in (FutureWarning, DeprecationWarning):
            warnings.simplefilter("ignore", kind)
        yield


def portable(wrong: BaseException) -> BaseException:
    """The error, or its text if it cannot be pickled."""
    try:
        # Both ways: some errors are pickled without trouble, and then cannot be built again from their arguments.
        return pickle.loads(pickle.dumps(wrong)) or wrong
    except Exception:
        return RuntimeError(f"{type(wrong).__name__}: {wrong}")


def _send(pipe: Any, value: Any) -> None:
    pickle.dump(value, pipe)
    pipe.flush()


def long_first(tasks: Sequence[Task]) -> list[int]:
    """Order of the tasks: by round, so that the first images are complete early.

    Within a round the cheapest tasks come first, so that `watch` soon shows something, then the longest before the
    shorter ones, so that no worker ends with a long task.
    """
    order: list[int] = []
    for turn in sorted({task.turn for task in tasks}):
        rising = sorted((i for i, t in enumerate(tasks) if t.turn == turn), key=lambda i: tasks[i].guess[1])
        so_far = list(itertools.accumulate(tasks[i].guess[1] for i in rising))
        cheap = sum(effort <= CHEAP * so_far[-1] for effort in so_far)
        order += rising[:cheap] + rising[cheap:][::-1]
    return order


def _gpu(slot: int) -> dict[str, str]:
    """Environment that shows a worker its one GPU; workers beyond the number of GPUs share them."""
    if not torch.cuda.is_available():
        return {}
    seen = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
    # Names from the variable itself, which may be UUIDs or a part of the GPUs of the machine.
    gpus = seen.split(",")
    return {"CUDA_VISIBLE_DEVICES": gpus[slot % len(gpus)]}


def _cause(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"{name}, perhaps for lack of memory" if -code == 9 else name
