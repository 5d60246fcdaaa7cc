"""Draw faults by rule and see the tests go red: `make drawn-mutants SEED=0`.

A fault is one small edit at one place: a comparison, a constant, an operator, a condition, a call or a keyword
argument. The draw is seeded and uniform over all such places in the folders named below. The tests of its file (TESTS)
run with each fault until the first fails; that one must pass without the fault. Prints a table: fault, place, caught
by, CPU seconds. `--workers` takes that many cores, and `--out FILE` keeps every row at once and goes on where it ended.

Left out is what no test could or should see: annotations, docstrings and messages (`raise`, formatted strings), the
guard `strict=` of zip, decorators, and `numerics/kernels.py`, which runs on CUDA alone.

To be quick, the tests are collected once. For a fault inside a function the process is forked and the function given
its new code; a fault outside (a default, a table) is written into a copy of the sources, which is imported anew.
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib
import inspect
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, TypeAlias

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "numerics": "unit/test_attacks_loop unit/test_models_first_tried contracts/test_attributions",
    "attributions": (
        "unit/test_attributions_memory unit/test_attributions_targets contracts/test_attributions "
        "contracts/test_precisions"
    ),
    "attacks": "unit/test_attacks_memory contracts/test_attacks",
    "metrics": "contracts/test_metrics",
    "regularizers": "contracts/test_regularizers contracts/test_precisions",
    "measurement": "unit/test_audit_engine",
}
"""The folders that faults are drawn from, and the tests of everything in them."""
CPU_SECONDS, WALL_SECONDS = 120, 1200
"""A test that works longer hangs: none takes a quarter as long without a fault. A run that waits longer says nothing:
the machine may have other work.
"""

# The tests of a file, or of the other files of a folder; the nearest first.
TESTS = {
    "numerics": "oracles/test_gradient_maps contracts/test_attributions",
    "attributions": "oracles/test_gradient_maps contracts/test_attributions",
    "attacks": "unit/test_attacks_settings contracts/test_attacks",
    "numerics/autograd.py": "oracles/test_numerics_autograd",
    "numerics/balls.py": "oracles/test_numerics_balls unit/test_attacks_loop",
    "numerics/checks.py": "unit/test_numerics_checks unit/test_attributions_targets oracles/test_gradient_maps",
    "numerics/convolution.py": "oracles/test_numerics_convolution oracles/test_numerics_second_order",
    "numerics/maps.py": "unit/test_numerics_maps oracles/test_attacks_objectives",
    "numerics/normalization.py": "contracts/test_batch_of_one",
    "numerics/modes.py": "unit/test_attacks_loop contracts/test_attributions",
    "numerics/quantities.py": "oracles/test_gradient_maps contracts/test_precisions",
    "numerics/random.py": "oracles/test_numerics_random",
    "numerics/second_order.py": "oracles/test_numerics_second_order contracts/test_precisions",
    "numerics/softplus.py": "oracles/test_numerics_softplus oracles/test_numerics_second_order",
    "numerics/cpu_layers.py": "oracles/test_numerics_softplus contracts/test_batch_of_one",
    "numerics/similarity.py": "oracles/test_numerics_similarity",
    "numerics/statistics.py": "oracles/test_numerics_statistics",
    "numerics/tangents.py": (
        "oracles/test_tangent_rules oracles/test_numerics_tangents oracles/test_regularizers_joint "
        "unit/test_training_fast"
    ),
    "attributions/baselines.py": "unit/test_lime_shap_segments oracles/test_gradient_maps",
    "attributions/batching.py": "unit/test_batching_rows oracles/test_smoothing oracles/test_gradient_maps",
    "attributions/gradient.py": (
        "oracles/test_gradient_maps unit/test_attributions_layout unit/test_batching_rows "
        "oracles/test_second_order"
    ),
    "attributions/guided_backprop.py": (
        "oracles/test_guided_without_replay oracles/test_replay_guided_backprop"
    ),
    "attributions/layout.py": "unit/test_attributions_layout",
    "attributions/lime.py": "oracles/test_lime_closed_form unit/test_lime_shap_segments",
    "attributions/decompositions.py": "oracles/test_replay_lrp_operations",
    "attributions/lrp.py": (
        "oracles/test_replay_lrp oracles/test_replay_lrp_operations unit/test_lrp_conserves "
        "oracles/test_replay_second_order"
    ),
    "attributions/relevance.py": (
        "oracles/test_replay_lrp_operations oracles/test_replay_lrp unit/test_lrp_conserves "
        "oracles/test_replay_second_order"
    ),
    "attributions/variants.py": "oracles/test_replay_lrp_operations oracles/test_replay_lrp",
    "attributions/path.py": "oracles/test_gradient_maps unit/test_attributions_layout unit/test_batching_rows",
    "attributions/replay.py": (
        "unit/test_replay_record oracles/test_replay_guided_backprop oracles/test_replay_lrp "
        "oracles/test_replay_lrp_operations"
    ),
    "attributions/rules.py": (
        "oracles/test_replay_lrp oracles/test_replay_lrp_operations oracles/test_replay_guided_backprop "
        "oracles/test_replay_second_order"
    ),
    "attributions/segments.py": (
        "unit/test_lime_shap_segments oracles/test_lime_closed_form oracles/test_shap_enumeration"
    ),
    "attributions/settings.py": "unit/test_lime_shap_segments contracts/test_attributions",
    "attributions/shap.py": "oracles/test_shap_enumeration unit/test_lime_shap_segments",
    "attributions/smooth.py": "oracles/test_smoothing oracles/test_gradient_maps unit/test_batching_rows",
    "attributions/targets.py": "unit/test_attributions_targets oracles/test_gradient_maps",
    "attacks/auto.py": "unit/test_attacks_auto",
    "attacks/self_checks.py": "unit/test_attacks_auto",
    "attacks/squares.py": "unit/test_attacks_squares unit/test_attacks_auto",
    "attacks/loop.py": "unit/test_attacks_loop oracles/test_attacks_loops",
    "attacks/named.py": (
        "unit/test_attacks_settings oracles/test_attacks_objectives oracles/test_attacks_loops"
    ),
    "attacks/objectives.py": "oracles/test_attacks_objectives oracles/test_attacks_loops",
    "attacks/settings.py": "unit/test_attacks_settings oracles/test_attacks_loops",
    "attacks/result.py": "unit/test_attacks_loop unit/test_attacks_settings",
    "attacks/engine.py": (
        "unit/test_attacks_loop unit/test_attacks_settings unit/test_attacks_memory unit/test_attacks_twin "
        "oracles/test_attacks_loops"
    ),
    "attacks/twin.py": "unit/test_attacks_twin unit/test_attacks_settings",
    "metrics/adapters.py": "unit/test_metrics_adapters contracts/test_metrics",
    "metrics/sanity_checks.py": "unit/test_metrics_sanity_checks",
    "metrics": (
        "oracles/test_metrics_formulas unit/test_metrics_settings unit/test_metrics_lengths "
        "oracles/test_metrics_peers"
    ),
    "regularizers/distillation.py": "oracles/test_regularizers_found unit/test_regularizers_teacher",
    "regularizers/triplet.py": "oracles/test_regularizers_found",
    "regularizers/joint.py": "oracles/test_regularizers_joint",
    "regularizers/passes.py": (
        "unit/test_regularizers_passes oracles/test_regularizers_joint oracles/test_regularizers_others"
    ),
    "regularizers/alignment.py": "oracles/test_regularizers_alignment oracles/test_regularizers_joint",
    "regularizers": "oracles/test_regularizers_others oracles/test_regularizers_found",
    "measurement": "unit/test_measurement_cells unit/test_measurement",
}

COMPARISONS = {
    ast.Lt: "<= >=", ast.LtE: "< >", ast.Gt: ">= <=", ast.GtE: "> <", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is_not", ast.IsNot: "is", ast.In: "not_in", ast.NotIn: "in",
}  # fmt: skip
OPERATORS = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "/", ast.Mod: "*", ast.Pow: "*",
    ast.BitAnd: "|", ast.BitOr: "&", ast.LShift: ">>", ast.RShift: "<<", ast.MatMult: "*",
}  # fmt: skip


@dataclass(frozen=True)
class Edit:
    """One fault: the text between two places of a file, and what stands there instead."""

    file: str
    start: int
    end: int
    line: int
    old: str
    new: str

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"`{old}` -> `{new}`" if new else f"without `{old}`"


class Edits(ast.NodeVisitor):
    """All faults that can be written into one file."""

    def __init__(self, file: str, text: str) -> None:
        self.file, self.text, self.found = file, text, list[Edit]()
        self.lines = [0]
        for line in text.encode().splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))
        self.visit(ast.parse(text))

    def place(self, line: int, column: int) -> int:
        """A place in the text; the parser counts columns in bytes."""
        return len(self.text.encode()[: self.lines[line - 1] + column].decode())

    def span(self, node: ast.AST) -> tuple[int, int]:
        return self.place(node.lineno, node.col_offset), self.place(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def add(self, start: int, end: int, new: str) -> None:
        line = self.text.count("\n", 0, start) + 1
        self.found.append(Edit(self.file, start, end, line, self.text[start:end], new))

    def between(self, left: ast.AST, right: ast.AST, new: str) -> None:
        """An operator stands between two operands, perhaps with brackets and spaces around it."""
        start, end = self.span(left)[1], self.span(right)[0]
        middle = self.text[start:end]
        if "#" in middle:
            return
        bare = middle.strip("() \n\\")
        first = start + middle.index(bare)
        self.add(first, first + len(bare), new)

    def negate(self, test: ast.expr) -> None:
        start, end = self.span(test)
        self.add(start, end, f"(not ({self.text[start:end]}))")

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
            for new in COMPARISONS[type(operator)].split():
                self.between(left, right, new.replace("_", " "))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self.between(node.left, node.right, OPERATORS[type(node.op)]) if type(node.op) in OPERATORS else None
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in zip(node.values, node.values[1:], strict=False):
            self.between(left, right, "or" if isinstance(node.op, ast.And) else "and")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub | ast.Invert):
            start, inner = self.span(node)[0], self.span(node.operand)[0]
            self.add(start, inner, "") if "(" not in self.text[start:inner] else None
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self.add(*self.span(node), str(not value))
        elif isinstance(value, int):
            self.add(*self.span(node), str(value + 1))
        elif isinstance(value, float):
            self.add(*self.span(node), repr(2 * value or 1.0))

    def visit_If(self, node: ast.If) -> None:
        self.negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.negate(node.test)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        method, bare = node.func, not node.args and not node.keywords
        # `torch.cat(x)` is no method of a value; `x.detach()` is.
        if isinstance(method, ast.Attribute) and (bare or not isinstance(method.value, ast.Name | ast.Call)):
            self.add(self.span(method.value)[1], self.span(node)[1], "")
        strict = [k for k in node.keywords if k.arg == "strict"]
        for word in node.keywords:
            if word.arg is not None and word not in strict:
                start, end = self.span(word)
                comma = self.text[end : end + 1] == ","
                self.add(start, end + comma, "")
        node.keywords = [word for word in node.keywords if word not in strict]
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Messages are not looked at."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Nor what is written into them."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for part in (*node.args.defaults, *node.args.kw_defaults, *node.body):
            if part is not None:
                self.visit(part)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in node.body:
            self.visit(part)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)


def every_edit(folders: Iterable[str]) -> list[Edit]:
    """All faults in these folders."""
    package = ROOT / "src" / "gyrograd"
    found: list[Edit] = []
    for folder in folders:
        for path in sorted((package / folder).glob("*.py")):
            if path.name not in ("__init__.py", "kernels.py"):
                found += Edits(str(path.relative_to(package)), path.read_text(encoding="utf-8")).found
    return found


def edited(text: str, edit: Edit) -> str:
    return text[: edit.start] + edit.new + text[edit.end :]


def compiles(edit: Edit) -> bool:
    text = (ROOT / "src" / "gyrograd" / edit.file).read_text(encoding="utf-8")
    try:
        compile(edited(text, edit), edit.file, "exec")
    except SyntaxError:
        return False
    return True


def tests_of(file: str) -> list[str]:
    """The test files of a source file: the nearest first, then those of its whole folder and those that import it."""
    folder = file.partition("/")[0]
    names = f"{TESTS.get(file) or TESTS[folder]} unit/test_defaults {FOLDERS[folder]}"
    near = [f"tests/{name}.py" for name in names.split()]
    return list(dict.fromkeys([*near, *(importers(file) if FOLDERS[folder] else [])]))


@cache
def importers(file: str) -> list[str]:
    """The test files that import a source file by its name."""
    folder, _, name = file.removesuffix(".py").partition("/")
    named = re.compile(rf"gyrograd\.{folder}\.{name}\b|from gyrograd\.{folder} import .*\b{name}\b")
    places = [ROOT / "tests" / place for place in ("oracles", "unit", "theory", "contracts")]
    files = [path for place in places for path in sorted(place.glob("test_*.py"))]
    return [str(path.relative_to(ROOT)) for path in files if named.search(path.read_text(encoding="utf-8"))]


def preload() -> None:
    """What the tests import besides the package itself, once for all runs; what is missing is missed there."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a process that has looked for an accelerator cannot be forked
    import pytest  # noqa: F401
    import torch

    for name in ("captum.attr", "scipy.stats", "skimage.segmentation", "torchvision", "matplotlib.pyplot"):
        with suppress(ImportError):
            importlib.import_module(name)
    torch.set_num_threads(1)


def functions(code: CodeType) -> Iterator[CodeType]:
    """The code of the functions that can be called from outside; those inside them are part of theirs."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            if _is_function(inner):
                yield inner
            else:
                yield from functions(inner)  # the body of a class


def outside(code: CodeType) -> tuple[object, ...]:
    """What runs when the module is imported: all but the bodies of its functions."""
    consts = [const for const in code.co_consts if not isinstance(const, CodeType)]
    bodies = [const for const in code.co_consts if isinstance(const, CodeType)]
    # Those that begin with < are lambdas and comprehensions, which may run on import.
    run = [outside(body) for body in bodies if body.co_name[0] == "<" or not _is_function(body)]
    return (code.co_code, repr(consts), code.co_names, *run)


def _is_function(code: CodeType) -> bool:
    return bool(code.co_flags & inspect.CO_OPTIMIZED)


@cache
def changed_function(edit: Edit) -> tuple[str, CodeType] | None:
    """The name and new code of the one function an edit changes; None if it changes what runs on import."""
    text = (ROOT / "src" / "gyrograd" / edit.file).read_text(encoding="utf-8")
    before, after = (compile(source, edit.file, "exec") for source in (text, edited(text, edit)))
    pairs = list(zip(functions(before), functions(after), strict=False))
    changed = [new for old, new in pairs if old != new]
    names = [old.co_qualname for old, _ in pairs]
    if outside(before) != outside(after) or len(changed) != 1 or names.count(changed[0].co_qualname) > 1:
        return None
    return changed[0].co_qualname, changed[0]


def give_new_code(edit: Edit, name: str, code: CodeType) -> None:
    """Every living copy of the function (type checkers wrap it) runs the new code."""
    found = [
        thing
        for thing in gc.get_objects()
        if type(thing) is FunctionType
        and thing.__code__.co_qualname == name
        and thing.__code__.co_filename.endswith(f"/gyrograd/{edit.file}")
    ]
    if not found:
        raise LookupError(f"{name} of {edit.file} is not there")
    for function in found:
        function.__code__ = code


Row: TypeAlias = tuple[str, str, float]
"""`caught`, `SURVIVED`, `NOT THERE` or `ERROR`, the test or words behind it, CPU seconds."""
Queue: TypeAlias = int
"""The reading end of a pipe that holds numbers of faults, four bytes each; workers take the next one from it."""


def filled_queue(numbers: Iterable[int]) -> Queue:
    reading, writing = os.pipe()
    os.write(writing, b"".join(struct.pack("<i", number) for number in numbers))
    os.close(writing)
    return reading


def taken_from(queue: Queue) -> Iterator[int]:
    """Numbers until the queue is empty, each given to one process alone."""
    while number := os.read(queue, 4):
        yield struct.unpack("<i", number)[0]


@dataclass
class Faults:
    """A pytest plugin: the collected tests run once for each fault taken from a queue, in a forked process.

    Writes the test files that could be collected, then a row for each fault. A test that fails without the fault,
    for want of a package perhaps, says nothing: it is left out from then on.
    """

    edits: dict[int, Edit]
    queue: Queue
    patched: bool
    expected: list[str]
    output: int

    def pytest_runtestloop(self, session: Any) -> bool:
        items: dict[str, list[Any]] = {}
        for item in session.items:
            items.setdefault(str(item.path.relative_to(ROOT)), []).append(item)
        session.testsfailed = 0  # files that could not be collected
        self.write(sorted(items))
        green: dict[str, bool] = {}
        for number in taken_from(self.queue):
            edit = self.edits[number]
            files = tests_of(edit.file)
            if any(file in self.expected and file not in items for file in files):
                self.write([number, ("caught", "cannot be imported", 0.0)])
                continue
            tests = [item for file in files for item in items.get(file, []) if green.get(item.nodeid, True)]
            row = forked_tests(session, tests, edit if self.patched else None)
            while self.patched and row[0] == "caught" and "::" in row[1] and row[1] not in green:
                (alone,) = [item for item in tests if item.nodeid == row[1]]
                green[row[1]] = forked_tests(session, [alone], None)[0] == "SURVIVED"
                if not green[row[1]]:
                    tests.remove(alone)
                    row = forked_tests(session, tests, edit)
            self.write([number, row])
        return True

    def write(self, line: object) -> None:
        os.write(self.output, f"{json.dumps(line)}\n".encode())


def forked_tests(session: Any, tests: list[Any], edit: Edit | None) -> Row:
    """The first test that fails, with a fault in a function if one is given."""
    if not tests:
        return "ERROR", "none of its tests can be collected", 0.0
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _run_and_exit(session, tests, edit, writing)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    _, status, usage = os.wait4(child, 0)
    seconds = usage.ru_utime + usage.ru_stime
    if os.WIFSIGNALED(status):
        waited = os.WTERMSIG(status) == signal.SIGALRM
        return "ERROR" if waited else "caught", f"ended by signal {os.WTERMSIG(status)}", seconds
    if os.waitstatus_to_exitcode(status) != 0:
        return "NOT THERE" if LookupError.__name__ in said else "ERROR", said.strip(), seconds
    return "caught" if said else "SURVIVED", said, seconds


def _run_and_exit(session: Any, tests: list[Any], edit: Edit | None, writing: int) -> None:
    """In the forked process: the tests until one fails; it does not return."""
    code = 70
    try:
        signal.alarm(WALL_SECONDS)
        os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.mkdtemp()  # pytest clears folders of other runs away
        new = changed_function(edit) if edit is not None else None
        if edit is not None and new is not None:
            give_new_code(edit, *new)
        for test, following in zip(tests, [*tests[1:], None], strict=True):
            resource.setrlimit(
                resource.RLIMIT_CPU, (int(time.process_time()) + CPU_SECONDS, resource.RLIM_INFINITY)
            )
            test.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
            if session.testsfailed:
                os.write(writing, test.nodeid.encode())
                break
        code = 0
    except BaseException as error:  # whatever it is, the caller's code after the fork must not run
        os.write(writing, "".join(traceback.format_exception_only(error)).encode()[:3000])
    finally:
        os._exit(code)


def session_lines(tests: list[str], sources: Path, plugin: Callable[[int], object]) -> Iterator[Any]:
    """What a plugin writes, line by line, out of a pytest session in a forked process against these sources."""
    reading, writing = os.pipe()
    with tempfile.NamedTemporaryFile("r", suffix=".txt") as log:
        child = os.fork()
        if child == 0:
            os.close(reading)
            _start_session_and_exit(tests, sources, plugin(writing), log.name)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            for line in pipe:
                yield json.loads(line)
        _, status, _ = os.wait4(child, 0)
        if os.waitstatus_to_exitcode(status) != 0:
            raise RuntimeError(f"The tests could not be run:\n{log.read()[-3000:]}")


def _start_session_and_exit(tests: list[str], sources: Path, plugin: object, log: str) -> None:
    """In the forked process: collect these tests and hand them to the plugin; it does not return."""
    code = 70
    try:
        handle = os.open(log, os.O_WRONLY)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        os.chdir(ROOT)
        sys.path.insert(0, str(sources))
        paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        os.environ["PYTHONPATH"] = os.pathsep.join([str(sources), *map(os.path.abspath, paths)])
        import pytest

        options = ["-p", "no:xdist", "-p", "no:cacheprovider", "-o", "addopts=", "-q", "--tb=short"]
        quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of what was imported before the fork
        code = int(pytest.main([*options, *quiet, *tests], plugins=[plugin]))
    except BaseException:  # whatever it is, the caller's code after the fork must not run
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


@dataclass
class Worker:
    """Judges faults from two queues: those inside a function, and those in what runs on import."""

    edits: dict[int, Edit]
    inside: Queue
    on_import: Queue
    sources: Path

    def rows(self) -> Iterator[tuple[int, Row]]:
        files = sorted({file for edit in self.edits.values() for file in tests_of(edit.file)})
        lines = session_lines(
            files, self.sources, lambda output: Faults(self.edits, self.inside, True, [], output)
        )
        collected: list[str] = next(lines)
        for number, row in lines:
            yield number, self.written(number, collected) if row[0] == "NOT THERE" else row
        for number in taken_from(self.on_import):
            yield number, self.written(number, collected)

    def written(self, number: int, collected: list[str]) -> Row:
        """The row of a fault that is written into a copy of the sources, which is imported anew."""
        edit = self.edits[number]
        with copy_of_sources(edit) as broken:
            verdict, by, seconds = self.on_copy(number, broken, collected)
        if verdict == "caught" and "::" in by:
            alone, words, _ = self.on_copy(number, self.sources, [], only=by)
            if alone != "SURVIVED":
                return "ERROR", f"{by} fails without the fault: {words}", seconds
        return verdict, by, seconds

    def on_copy(self, number: int, sources: Path, collected: list[str], only: str | None = None) -> Row:
        tests = [only] if only else [file for file in tests_of(self.edits[number].file) if file in collected]
        try:
            _, (_, row) = session_lines(
                tests,
                sources,
                lambda output: Faults(self.edits, filled_queue([number]), False, collected, output),
            )
        except RuntimeError as trouble:
            return "ERROR", str(trouble)[-500:], 0.0
        return (row[0], row[1], row[2])


def judged(edits: dict[int, Edit], workers: int) -> Iterator[tuple[int, Row]]:
    """A row for each fault, as they come."""
    inside = [number for number, edit in edits.items() if changed_function(edit) is not None]
    queues = filled_queue(inside), filled_queue(number for number in edits if number not in inside)
    reading, writing = os.pipe()
    with copy_of_sources(None) as sources:
        children = []
        for _ in range(min(workers, len(edits))):
            children.append(child := os.fork())
            if child == 0:
                os.close(reading)
                _work_and_exit(Worker(edits, *queues, sources), writing)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            for line in pipe:
                number, (verdict, by, seconds) = json.loads(line)
                yield number, (verdict, by, seconds)
        for child in children:
            os.waitpid(child, 0)


def _work_and_exit(worker: Worker, writing: int) -> None:
    """In the forked process: all rows of one worker, in a folder for temporary files of its own."""
    code = 70
    try:
        with tempfile.TemporaryDirectory(prefix="gyrograd-faults-") as folder:
            tempfile.tempdir = os.environ["TMPDIR"] = folder
            for row in worker.rows():
                os.write(writing, f"{json.dumps(row)}\n".encode())
        code = 0
    except BaseException:  # whatever it is, the caller's code after the fork must not run
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


@contextmanager
def copy_of_sources(edit: Edit | None) -> Iterator[Path]:
    """A copy of the sources with this fault, if any, in it."""
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "src"
        shutil.copytree(ROOT / "src", sources, ignore=shutil.ignore_patterns("*.egg-info"))
        if edit is not None:
            path = sources / "gyrograd" / edit.file
            path.write_text(edited(path.read_text(encoding="utf-8"), edit), encoding="utf-8")
        yield sources


def drawn(count: int, seed: int, within: str = "") -> list[Edit]:
    """So many different faults that can be compiled, in files whose path begins with these words."""
    edits = [edit for edit in every_edit(FOLDERS) if edit.file.startswith(within)]
    random.Random(seed).shuffle(edits)
    return list(islice(filter(compiles, edits), count))


def rows_so_far(path: Path, edits: dict[int, Edit]) -> dict[int, Row]:
    """What a file of rows, if it is there, says about these faults; not about others of the same number."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with suppress(ValueError):  # a run that was killed may have cut its last line short
            rows.append(json.loads(line))
    return {
        row["number"]: (row["verdict"], row["by"], row["seconds"])
        for row in rows
        if row["number"] in edits and row["fault"] == described(edits[row["number"]])
    }


def described(edit: Edit) -> str:
    return f"{edit} | {edit.file}:{edit.line}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes, each of one thread")
    parser.add_argument(
        "--out", type=Path, help="a file of JSON lines, one per fault; faults in it are not run again"
    )
    parser.add_argument(
        "--within", default="", help="draw from this folder or file alone: attacks/squares.py"
    )
    parser.add_argument("--list", action="store_true", help="print the faults and run nothing")
    parser.add_argument("--only", type=int, nargs="*", help="these numbers of the draw")
    parser.add_argument("--tests", help="these tests, such as 'contracts/test_devices', for every fault")
    given = parser.parse_args()
    if given.tests:
        TESTS.update(dict.fromkeys(TESTS, given.tests))
        FOLDERS.update(dict.fromkeys(FOLDERS, ""))
    edits = dict(enumerate(drawn(given.count, given.seed, given.within), 1))
    if given.only:
        edits = {number: edit for number, edit in edits.items() if number in given.only}
    if given.list:
        for number, edit in edits.items():
            print(f"| {number} | {described(edit)} | {'' if changed_function(edit) else 'on import'} |")
        return 0
    rows = rows_so_far(given.out, edits) if given.out else {}
    missing = {number: edit for number, edit in edits.items() if number not in rows}
    preload()
    with open(given.out or os.devnull, "a", encoding="utf-8") as file:
        file.write("\n" if rows else "")
        for number, row in judged(missing, given.workers) if missing else ():
            rows[number] = row
            fault, (verdict, by, seconds) = described(edits[number]), row
            line = {
                "number": number,
                "fault": fault,
                "verdict": verdict,
                "by": by,
                "seconds": round(seconds, 1),
            }
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(f"| {number} | {fault} | {verdict}: {by} | {seconds:.0f} s |", flush=True)
    for number, (verdict, by, _) in sorted(rows.items()):
        if verdict != "caught":
            print(f"{verdict} {number}: {described(edits[number])} {by}")
    valid = [row for row in rows.values() if row[0] != "ERROR"]
    caught = sum(verdict == "caught" for verdict, _, _ in valid)
    print(
        f"seed {given.seed}: {caught} of {len(valid)} faults caught; {len(edits) - len(valid)} could not be judged"
    )
    return int(caught < len(edits))


if __name__ == "__main__":
    sys.exit(main())
