"""Model files made to do harm: opening them neither runs code of theirs nor writes a file nor hangs.

Each crafted file leaves a mark (a new file) if what it carries is run.
"""

from __future__ import annotations

import json
import re
import warnings
import zipfile

import bad_files
import pytest
import torch
from torch import nn

from gyrograd.errors import UserError
from gyrograd.models.expressions import is_guard, is_size
from gyrograd.models.opening import open_model
from gyrograd.models.operators import ATEN, allows

X = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    return bad_files.kit(tmp_path_factory.mktemp("kit"))


@pytest.fixture
def mark(tmp_path, monkeypatch):
    """A file that only exists once a crafted file has run; the working folder is where modules are looked for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "mark"


def refused(path, mark, sentence) -> None:
    """Opening and one forward pass, as a verb would do them."""
    try:
        with pytest.raises(UserError, match=sentence):
            open_model(str(path))(X)
    finally:
        assert not mark.exists()


# --- torch.export ---------------------------------------------------------------------------------------


def call(mark) -> str:
    return f"__import__('pathlib').Path({str(mark)!r}).touch()"


def renamed(document, old, new) -> None:
    """One name of a program replaced wherever it stands."""
    text = json.dumps(document).replace(json.dumps(old), json.dumps(new))
    document.clear()
    document.update(json.loads(text))


def tensor_names(document) -> list[str]:
    return list(document["graph_module"]["graph"]["tensor_values"])


def first_size(document) -> dict:
    values = document["graph_module"]["graph"]["tensor_values"].values()
    return next(size["as_expr"] for one in values for size in one["sizes"] if "as_expr" in size)


def in_an_expression(document, mark) -> None:
    first_size(document)["expr_str"] = f"ceiling({call(mark)!r})"


def in_a_nested_text(document, mark) -> None:
    first_size(document)["expr_str"] = f"Max(1, Symbol({call(mark)!r}), floor({call(mark)!r}))"


def in_a_guard(document, mark) -> None:
    document["guards_code"] = [f"{call(mark)} is None"]


def in_the_text_of_a_guard(document, mark) -> None:
    document["guards_code"] = [f"L['x']['\" + str({call(mark)}) + \"'].dim() == 4"]


def in_the_name_of_an_input(document, mark) -> None:
    name = document["graph_module"]["graph"]["inputs"][-1]["as_tensor"]["name"]
    renamed(document, name, f"{name}=({call(mark)})")


def in_the_name_of_a_result(document, mark) -> None:
    name = document["graph_module"]["graph"]["nodes"][0]["outputs"][0]["as_tensor"]["name"]
    renamed(document, name, f"torch.__dict__[{call(mark)}]")


def in_the_module_of_a_container(document, mark) -> None:
    """defaultdict names a module to import; one of that name lies in the working folder."""
    (mark.parent / "found_by_name.py").write_text(f"{call(mark)}\n")
    context = {"default_factory_module": "found_by_name", "default_factory_name": "x", "dict_context": []}
    tree = {"type": "collections.defaultdict", "context": json.dumps(context), "children_spec": []}
    document["graph_module"]["module_call_graph"][0]["signature"]["out_spec"] = json.dumps([1, tree])


def first_call(document, target, **arguments) -> None:
    """Another operation in place of the first, with these arguments."""
    node = document["graph_module"]["graph"]["nodes"][0]
    node["target"] = target
    node["inputs"] = [{"name": key, "arg": arg, "kind": 1} for key, arg in arguments.items()]


def by_writing_a_file(document, mark) -> None:
    first_call(
        document,
        "torch.ops.aten.from_file.default",
        filename={"as_string": str(mark)},
        shared={"as_bool": True},
        size={"as_int": 8},
    )


def by_a_function_of_python(document, mark) -> None:
    first_call(
        document, "_operator.call", a={"as_operator": "torch.hub.os.mkdir"}, b={"as_string": str(mark)}
    )


def by_another_function_of_torch(document, mark) -> None:
    first_call(document, "torch.sym_max.__globals__.clear")


HARMFUL = {
    in_an_expression: "more than arithmetic",
    in_a_nested_text: "more than arithmetic",
    in_a_guard: "more than arithmetic",
    in_the_text_of_a_guard: "more than arithmetic",
    in_the_name_of_an_input: "is not a name",
    in_the_name_of_a_result: "is not a name",
    in_the_module_of_a_container: "more than tensors in tuples",
    by_writing_a_file: "calls 'torch.ops.aten.from_file.default'",
    by_a_function_of_python: "calls '_operator.call'|hands functions",
    by_another_function_of_torch: "calls 'torch.sym_max.__globals__.clear'",
}


@pytest.mark.parametrize("harm", HARMFUL, ids=lambda harm: harm.__name__)
def test_an_export_runs_nothing_that_was_hidden(harm, kit, mark):
    path = bad_files.program_changed(kit.export, mark.parent / "a.pt2", lambda one: harm(one, mark))
    refused(path, mark, HARMFUL[harm])


def test_a_weight_of_an_export_is_not_unpickled(kit, mark):
    """The listing says that a weight is a pickle, and the pickle carries a call."""

    def edit(name, content):
        if name.endswith("model_weights_config.json"):
            document = json.loads(content)
            next(iter(document["config"].values()))["use_pickle"] = True
            return json.dumps(document).encode()
        return bad_files.evil(mark.parent) if name.endswith("/weight_0") else content

    path = bad_files.rezipped(kit.export, mark.parent / "a.pt2", edit)
    refused(path, mark.parent / "ran", "more than tensors")


def test_two_members_of_one_name_are_refused(kit, mark):
    """torch's reader of zips does not tell small letters from capitals, Python's does."""
    path = bad_files.rezipped(kit.export, mark.parent / "a.pt2", lambda _, content: content)
    with zipfile.ZipFile(path, "a") as archive:
        folder = archive.namelist()[0].partition("/")[0]
        archive.writestr(f"{folder}/models/MODEL.json", b"{}")
    refused(path, mark, "one is there twice")


def test_what_torch_reads_is_what_was_checked(kit, monkeypatch, tmp_path):
    """Bytes before the zip, where torch's reader may look and Python's does not, never reach torch."""
    seen = []
    load = torch.export.load
    monkeypatch.setattr(torch.export, "load", lambda file: seen.append(file.getvalue()) or load(file))
    path = tmp_path / "a.pt2"
    with zipfile.ZipFile(kit.export) as archive:
        bad_files.zipped(
            path, {n: archive.read(n) for n in archive.namelist()} | {"program/extra/x": b"harm"}
        )
    open_model(str(path))
    assert b"harm" not in seen[0]
    assert b"nn_module_stack" not in seen[0]


@pytest.mark.parametrize(
    "text",
    [
        "9**9**9**9",
        "Pow(9, Pow(9, 9))",
        "(((9**8)**8)**8)**8",
        "(s0 + s1 + s2 + s3)**8",
        "*".join(["(s0 + s1)"] * 12),
        "1" * 4_000,
        "s99999999",
        "-" * 100 + "1",
        "Symbol('__import__')",
        "Float('__import__')",
        "Integer('1')",
        "floor('1')",
        "Symbol(Symbol('s0'))",
        "Symbol('s0', cls=s0)",
        "s0.func",
        "[s0]",
        "s0 if s1 else s2",
        "Max(*s0)",
        "s0**9",
        "",
    ],
)
def test_an_expression_that_is_too_large_or_no_arithmetic_is_refused(text):
    assert not is_size(text)


@pytest.mark.parametrize(
    "text",
    [
        "Symbol('s31', positive=True, integer=True)",
        "2*s0 + 1",
        "s0**8",
        "Max(1, s0 // 4)",
        "FloorDiv(Symbol('s0', integer=True), 2)**2",
        "Pow(Symbol('s0', integer=True), Integer(-1))",
        "Add(Mul(Integer(2), Symbol('u0', integer=True)), Integer(-1))",
        "Float('0.5', precision=53)",
        "Equality(Mod(s0, 2), 0)",
        "-oo",
    ],
)
def test_arithmetic_on_sizes_passes(text):
    assert is_size(text)


def test_guards_look_at_inputs_and_at_nothing_else():
    assert is_guard("L['x'].size()[0] >= 2 and L['x'].size()[1] == 3")
    assert is_guard("torch.sym_max(1, L['x'].size()[3] // 4)*math.floor(L['x'].size()[2]) != 1")
    assert is_guard("not (L['args'][0].stride()[1] <= 2*L['y']['z'].dim())")
    for text in (
        "L['x'].__class__",
        "L['x'].size",
        "L",
        "print(1)",
        "torch.load('a')",
        "math.sym_max(1)",
        "torch.sym_max.x(1)",
        "L['x'].size()[0] ** 9 ** 9",
        "M['x'].dim()",
    ):
        assert not is_guard(text)


def test_a_product_of_sizes_that_grows_without_end_is_refused(kit, mark):
    """Each node squares the one before: forty of them would be a number of 2**46 bits."""

    def square(document):
        graph = document["graph_module"]["graph"]
        name = "grow_0"
        value = {"as_expr": {"expr_str": "Symbol('s0', integer=True)", "hint": None}}
        graph["sym_int_values"][name] = value
        source = graph["inputs"][-1]["as_tensor"]["name"]
        tensor = {"name": "self", "arg": {"as_tensor": {"name": source}}, "kind": 1}
        axis = {"name": "dim", "arg": {"as_int": 0}, "kind": 1}
        added = [("torch.ops.aten.sym_size.int", [tensor, axis], name)]
        for step in range(40):
            factor = {"name": "", "arg": {"as_sym_int": {"as_name": f"grow_{step}"}}, "kind": 1}
            graph["sym_int_values"][f"grow_{step + 1}"] = value
            added.append(("_operator.mul", [factor, factor], f"grow_{step + 1}"))
        graph["nodes"][:0] = [
            {
                "target": target,
                "inputs": inputs,
                "outputs": [{"as_sym_int": {"as_name": out}}],
                "metadata": {},
            }
            for target, inputs, out in added
        ]

    refused(bad_files.program_changed(kit.export, mark.parent / "a.pt2", square), mark, "more than 512 bits")


@pytest.mark.parametrize("size", [10**6, -1, float("inf"), 2.5, None, "8", True])
def test_a_tensor_larger_than_its_bytes_is_refused(size, kit, mark):
    def stretch(name, content):
        if not name.endswith("model_weights_config.json"):
            return content
        document = json.loads(content)
        meta = next(iter(document["config"].values()))["tensor_meta"]
        meta["sizes"], meta["strides"] = [{"as_int": size}] * 4, [{"as_int": 0}] * 4
        return json.dumps(document).encode()

    refused(
        bad_files.rezipped(kit.export, mark.parent / "a.pt2", stretch), mark, "should hold a larger tensor"
    )


# --- TorchScript ----------------------------------------------------------------------------------------


class WritesWhenCalled(nn.Module):
    def __init__(self, mark: str) -> None:
        super().__init__()
        self.mark = mark

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3)) + torch.from_file(self.mark, shared=True, size=3)


class WritesInAnotherMethod(nn.Module):
    def __init__(self, mark: str) -> None:
        super().__init__()
        self.mark = mark

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))

    @torch.jit.export
    def features(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.from_file(self.mark, shared=True, size=1)


class WritesWhenLoaded(nn.Module):
    def __init__(self, mark: str) -> None:
        super().__init__()
        self.mark = mark
        self.training = False
        self.offset = torch.zeros(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))

    @torch.jit.export
    def __getstate__(self) -> tuple[str, bool]:
        return self.mark, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[str, bool]) -> None:
        self.mark = state[0]
        self.training = state[1]
        self.offset = torch.from_file(self.mark, shared=True, size=1)


def script_of(model: nn.Module, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(model), str(path))
    return path


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (WritesWhenCalled, "calls 'aten::from_file'"),
        (WritesInAnotherMethod, "calls 'aten::from_file'"),
        (WritesWhenLoaded, "would run code while it is opened"),
    ],
)
def test_a_script_writes_no_file(kind, sentence, mark):
    path = script_of(kind(str(mark)), mark.parent / "a.pt")
    mark.unlink(missing_ok=True)
    refused(path, mark, sentence)


def code_changed(source, path, old, new):
    changed = []

    def edit(name, content):
        if name.startswith(f"{source.stem}/code/") and name.endswith(".py") and old in content:
            changed.append(name)
            return content.replace(old, new)
        return content

    bad_files.rezipped(source, path, edit)
    assert changed
    return path


def test_a_default_value_of_a_script_is_not_computed_when_it_is_opened(kit, mark):
    harm = f'torch.from_file("{mark}", True, 1)'.encode()
    path = code_changed(kit.script, mark.parent / "a.pt", b"input: Tensor)", b"input: Tensor=" + harm + b")")
    refused(path, mark, "would run code while it is opened .a computed default")


@pytest.mark.parametrize(
    ("operator", "sentence"),
    [
        ("torch.save(input, 'mark')", "calls 'aten::save'"),
        ("print(input)", "calls 'prim::Print'"),
        ("torch.set_data(input, input)", "calls 'aten::set_data'"),
        ("torch.manual_seed(1)", "calls 'aten::manual_seed'"),
    ],
)
def test_a_script_calls_only_operators_that_models_need(operator, sentence, kit, mark):
    head = b"    input: Tensor) -> Tensor:\n"
    path = code_changed(kit.script, mark.parent / "a.pt", head, head + f"    {operator}\n".encode())
    refused(path, mark, sentence)


def test_a_custom_class_in_a_script_is_refused(kit, mark):
    old, new = b"training : bool\n", b"training : bool\n  odd : __torch__.torch . classes.cuda.Stream\n"
    refused(code_changed(kit.script, mark.parent / "a.pt", old, new), mark, "a custom class")


def test_a_script_that_unfolds_without_end_is_refused(kit, mark):
    """Forty functions, each calling the one before twice, are 2**40 operations."""
    methods = b"".join(
        f"  def f{n}(self: SELF,\n    x: Tensor) -> Tensor:\n"
        f"    return (self).f{n - 1}((self).f{n - 1}(x, ), )\n".encode()
        for n in range(1, 40)
    )
    first = b"  def f0(self: SELF,\n    x: Tensor) -> Tensor:\n    return torch.relu(x)\n"

    def edit(name, content):
        if not name.endswith("/container.py") and b"class Sequential" not in content:
            return content
        own = content.split(b"def forward(self: ")[1].split(b",")[0]
        return content + (first + methods).replace(b"SELF", own)

    refused(bad_files.rezipped(kit.script, mark.parent / "a.pt", edit), mark, "unfolds to more than")


def test_no_operator_on_the_list_takes_the_name_of_a_file():
    for name in (
        "from_file",
        "save",
        "set_",
        "set_data",
        "_print",
        "record_stream",
        "manual_seed",
        "resize_",
    ):
        assert not allows("aten", name)
    for namespace in ("image", "c10d", "_c10d_functional", "quantized", "inductor", "cuda", "static_runtime"):
        assert not allows(namespace, "relu")
    taken = {
        argument.name
        for schema in torch._C._jit_get_all_schemas()
        for argument in schema.arguments
        if schema.name.partition("::")[2] in ATEN and "file" in argument.name
    }
    assert taken == set()


def test_a_zip_that_unpacks_to_far_more_than_its_size_is_refused(mark):
    path = mark.parent / "a.pt2"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr("a/archive_format", b"pt2")
        archive.writestr("a/models/model.json", b"\0" * (300 * 2**20))
    refused(path, mark, "far more than a model of its size")


NESTED = {
    "tuples": lambda n: b")" + b"\x85" * n + b"0",
    "lists": lambda n: b"]" * n + b"a" * (n - 1) + b"0",
    # every list is kept first and then put into the one before
    "lists out of the memo": lambda n: (
        b"".join(b"]r" + k.to_bytes(4, "little") + b"0" for k in range(n))
        + b"".join(
            b"j" + k.to_bytes(4, "little") + b"j" + (k + 1).to_bytes(4, "little") + b"a0"
            for k in range(n - 1)
        )
    ),
}


@pytest.mark.parametrize("kind", NESTED)
def test_data_of_a_script_nested_without_end_is_refused(kind, kit, mark):
    """torch would end the process."""

    def edit(name, content):
        # The reader's first opcode is the protocol; what is nested is made after it and thrown away again.
        return content[:2] + NESTED[kind](100_000) + content[2:] if name.endswith("/data.pkl") else content

    refused(bad_files.rezipped(kit.script, mark.parent / "a.pt", edit), mark, "more than tensors and its own")


@pytest.mark.parametrize(
    ("member", "change"),
    [
        pytest.param(r"/data/\d+", lambda content: content[: len(content) // 2], id="bytes that are missing"),
        pytest.param(
            r"/data\.pkl",
            # after a storage (Q, and q with its number in the memo) comes the tensor's offset, 0
            lambda content: re.sub(rb"(?<=Qq.)K\x00", b"K\x01", content, flags=re.DOTALL),
            id="an offset",
        ),
    ],
)
def test_a_tensor_of_a_script_beyond_its_bytes_is_refused(member, change, kit, mark):
    """torch would give it whatever lies behind in memory, or end the process."""

    def edit(name, content):
        return change(content) if re.search(member + "$", name) else content

    refused(bad_files.rezipped(kit.script, mark.parent / "a.pt", edit), mark, "more than tensors and its own")
