"""Draw faults by rule and see the tests go red: `python tests/mutation/generate.py --count 100 --seed 0`.

A fault is one small edit at one place: a comparison, a constant, an operator, a condition, a call or a keyword
argument. The draw is seeded and uniform over all such places in the folders named below. Each fault is written into a
copy of the sources, and the tests of its file (TESTS) run against that copy until the first fails; that one must pass
without the fault. Prints a table: fault, place, caught by, CPU seconds.

Left out is what no test could or should see: annotations, docstrings and messages (`raise`, formatted strings), the
guard `strict=` of zip, decorators, and `numerics/kernels.py`, which runs on CUDA alone.

The libraries are imported once and each run is forked from there, which halves the time; so this needs a POSIX system.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("numerics", "attributions", "attacks", "metrics", "regularizers", "evaluation")
CPU_SECONDS = 240
"""A run that takes longer hangs: no set of tests takes half as long without a fault."""

# The tests of a file or folder, the nearest first.
TESTS = {
    "numerics/autograd.py": "oracles/test_numerics_autograd oracles/test_gradient_maps theory/test_curvature",
    "numerics/balls.py": "oracles/test_numerics_balls unit/test_attacks_loop",
    "numerics/checks.py": "unit/test_numerics_checks contracts/test_attributions contracts/test_metrics",
    "numerics/convolution.py": "oracles/test_numerics_convolution oracles/test_numerics_second_order",
    "numerics/maps.py": "unit/test_numerics_maps oracles/test_attacks_objectives",
    "numerics/modes.py": "contracts/test_attributions unit/test_attacks_loop unit/test_training_loop",
    "numerics/quantities.py": "oracles/test_gradient_maps contracts/test_precisions",
    "numerics/random.py": "oracles/test_numerics_random",
    "numerics/second_order.py": "oracles/test_numerics_second_order contracts/test_precisions",
    "numerics/similarity.py": "oracles/test_numerics_similarity contracts/test_precisions",
    "numerics/statistics.py": "oracles/test_numerics_statistics",
    "numerics/tangents.py": (
        "oracles/test_numerics_tangents oracles/test_regularizers_joint unit/test_training_fast"
    ),
    "attributions/baselines.py": "unit/test_lime_shap_segments oracles/test_gradient_maps",
    "attributions/batching.py": "unit/test_batching_rows oracles/test_smoothing contracts/test_attributions",
    "attributions/gradient.py": (
        "oracles/test_gradient_maps contracts/test_attributions oracles/test_second_order"
    ),
    "attributions/guided_backprop.py": (
        "oracles/test_replay_guided_backprop oracles/test_guided_without_replay"
    ),
    "attributions/layout.py": "unit/test_attributions_layout",
    "attributions/lime.py": "oracles/test_lime_closed_form unit/test_lime_shap_segments",
    "attributions/lrp.py": "oracles/test_replay_lrp oracles/test_replay_second_order",
    "attributions/path.py": "oracles/test_gradient_maps contracts/test_attributions",
    "attributions/replay.py": (
        "unit/test_replay_record oracles/test_replay_guided_backprop oracles/test_replay_lrp"
    ),
    "attributions/rules.py": (
        "oracles/test_replay_lrp oracles/test_replay_guided_backprop oracles/test_replay_second_order"
    ),
    "attributions/segments.py": (
        "unit/test_lime_shap_segments oracles/test_lime_closed_form oracles/test_shap_enumeration"
    ),
    "attributions/settings.py": "unit/test_lime_shap_segments contracts/test_attributions",
    "attributions/shap.py": "oracles/test_shap_enumeration unit/test_lime_shap_segments",
    "attributions/smooth.py": "oracles/test_smoothing oracles/test_gradient_maps contracts/test_attributions",
    "attributions/targets.py": "contracts/test_attributions",
    "attacks/loop.py": "unit/test_attacks_loop oracles/test_attacks_loops unit/test_attacks_settings",
    "attacks/named.py": (
        "oracles/test_attacks_objectives oracles/test_attacks_loops unit/test_attacks_settings "
        "contracts/test_attacks"
    ),
    "attacks/objectives.py": (
        "oracles/test_attacks_objectives oracles/test_attacks_loops unit/test_attacks_settings"
    ),
    "attacks/protocols.py": "unit/test_attacks_settings oracles/test_attacks_loops",
    "attacks/result.py": "unit/test_attacks_settings unit/test_attacks_loop contracts/test_attacks",
    "attacks/runs.py": (
        "unit/test_attacks_loop unit/test_attacks_memory unit/test_attacks_settings unit/test_attacks_twin "
        "oracles/test_attacks_loops contracts/test_attacks"
    ),
    "attacks/twin.py": "unit/test_attacks_twin unit/test_attacks_settings",
    "metrics/accuracy.py": "oracles/test_metrics_formulas contracts/test_metrics",
    "metrics/adapters.py": "unit/test_metrics_adapters contracts/test_metrics",
    "metrics/suspicion.py": "unit/test_metrics_suspicion",
    "metrics": (
        "oracles/test_metrics_formulas unit/test_metrics_settings unit/test_metrics_lengths "
        "oracles/test_metrics_peers contracts/test_metrics"
    ),
    "regularizers/distillation.py": (
        "oracles/test_regularizers_found unit/test_regularizers_teacher contracts/test_regularizers"
    ),
    "regularizers/triplet.py": "oracles/test_regularizers_found contracts/test_regularizers",
    "regularizers/joint.py": "oracles/test_regularizers_joint",
    "regularizers/passes.py": (
        "unit/test_regularizers_passes oracles/test_regularizers_joint contracts/test_regularizers"
    ),
    "regularizers/alignment.py": (
        "oracles/test_regularizers_alignment oracles/test_regularizers_joint contracts/test_regularizers"
    ),
    "regularizers": (
        "oracles/test_regularizers_others oracles/test_regularizers_found contracts/test_regularizers"
    ),
    "evaluation": "unit/test_evaluation_cells",
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


def every_edit(folders: tuple[str, ...]) -> list[Edit]:
    """All faults in these folders that leave text which can be compiled."""
    package = ROOT / "src" / "gyrograd"
    found: list[Edit] = []
    for folder in folders:
        for path in sorted((package / folder).glob("*.py")):
            if path.name not in ("__init__.py", "kernels.py"):
                text = path.read_text(encoding="utf-8")
                edits = Edits(str(path.relative_to(package)), text).found
                found += [edit for edit in edits if compiles(edited(text, edit))]
    return found


def edited(text: str, edit: Edit) -> str:
    return text[: edit.start] + edit.new + text[edit.end :]


def compiles(text: str) -> bool:
    try:
        compile(text, "edited", "exec")
    except SyntaxError:
        return False
    return True


def tests_of(file: str) -> list[str]:
    """The test files of a source file, the nearest first."""
    names = TESTS.get(file) or TESTS[file.partition("/")[0]]
    return [f"tests/{name}.py" for name in names.split()]


def preload() -> None:
    """What every test imports besides the package itself, once for all runs."""
    import beartype  # noqa: F401
    import captum.attr  # noqa: F401
    import hypothesis  # noqa: F401
    import jaxtyping  # noqa: F401
    import pytest  # noqa: F401
    import scipy.stats  # noqa: F401
    import skimage.segmentation  # noqa: F401
    import torch
    import torchvision  # noqa: F401

    torch.set_num_threads(1)


def forked_tests(tests: list[str], sources: Path) -> tuple[str, str, float]:
    """`green` or `red`, the first test (or file of tests, if it cannot be imported) that failed, and CPU seconds."""
    with tempfile.NamedTemporaryFile("r", suffix=".txt") as output:
        child = os.fork()
        if child == 0:
            _run_and_exit(tests, sources, output.name)
        _, status, usage = os.wait4(child, 0)
        lines = output.read().splitlines()
    broken = [line for line in lines if line.startswith(("FAILED tests", "ERROR tests"))]
    failed = [line.partition(" ")[2].partition(" - ")[0] for line in broken]
    seconds = usage.ru_utime + usage.ru_stime
    if os.WIFSIGNALED(status):
        return "red", f"ended by signal {os.WTERMSIG(status)} after {seconds:.0f} s", seconds
    if failed:
        return "red", failed[0], seconds
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit("\n".join(["The tests could not be run:", *lines[-20:]]))
    return "green", "", seconds


def _run_and_exit(tests: list[str], sources: Path, output: str) -> None:
    """In the forked process: the tests against these sources; it does not return."""
    code = 70
    try:
        handle = os.open(output, os.O_WRONLY)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        os.chdir(ROOT)
        sys.path.insert(0, str(sources))
        os.environ["PYTHONPATH"] = str(sources)
        import pytest

        options = ["-p", "no:xdist", "-p", "no:cacheprovider", "-o", "addopts=", "-q", "-x", "--tb=no"]
        quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of what was imported before the fork
        code = int(pytest.main([*options, *quiet, *tests]))
    except BaseException:  # whatever it is, the caller's code after the fork must not run
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def judged(edit: Edit, sources: Path) -> tuple[str, str, float]:
    """`caught`, `SURVIVED`, or `ERROR` if the test that failed also fails without the fault; by what; CPU seconds."""
    path = sources / "gyrograd" / edit.file
    text = path.read_text(encoding="utf-8")
    path.write_text(edited(text, edit), encoding="utf-8")
    try:
        verdict, by, seconds = forked_tests(tests_of(edit.file), sources)
    finally:
        path.write_text(text, encoding="utf-8")
        time.sleep(1.1)  # Python tells stale byte code by whole seconds
    if verdict == "green":
        return "SURVIVED", "", seconds
    if by.startswith("tests/") and not passes(by, sources):
        return "ERROR", f"{by} fails without the fault", seconds
    return "caught", by, seconds


@cache
def passes(test: str, sources: Path) -> bool:
    """Whether a test is green on the code as it is."""
    return forked_tests([test], sources)[0] == "green"


def drawn(count: int, seed: int) -> list[Edit]:
    edits = every_edit(FOLDERS)
    return random.Random(seed).sample(edits, count)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="print the faults and run nothing")
    parser.add_argument("--only", type=int, nargs="*", help="these numbers of the draw")
    given = parser.parse_args()
    edits = list(enumerate(drawn(given.count, given.seed), 1))
    if given.only:
        edits = [(number, edit) for number, edit in edits if number in given.only]
    if given.list:
        for number, edit in edits:
            print(f"| {number} | {edit} | {edit.file}:{edit.line} |")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "src"
        shutil.copytree(ROOT / "src", sources, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        preload()
        caught = 0
        for number, edit in edits:
            verdict, by, seconds = judged(edit, sources)
            caught += verdict == "caught"
            print(
                f"| {number} | {edit} | {edit.file}:{edit.line} | {verdict}: {by} | {seconds:.0f} s |",
                flush=True,
            )
    print(f"{caught} of {len(edits)} faults caught")
    return int(caught < len(edits))


if __name__ == "__main__":
    sys.exit(main())
