"""A smooth twin of a model: every ReLU becomes Softplus (joo2023, Section 5) or another activation.

Maps of ReLU nets are piecewise constant, so attacks and regularisers need a smooth twin. ReLUs occur as modules, as
function calls (`F.relu(x)`, `x.relu_()`), inside other activations (ReLU6 is two of them; see `piecewise`) and as
arithmetic (`x.clamp(min=0)`; see `spellings`). Modules are replaced in a copy, calls while the copy runs. One run of
the copy, in which every tensor operation is watched, finds what is left; that is an error unless it was allowed.
Finally the copy runs with ReLU as the new activation and must return what the model returns.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gyrograd.errors import UserError, check_name
from gyrograd.models.piecewise import MODULES, WHOLE, InPlace, Softened, apply_form, overwrite
from gyrograd.models.specs import attach_spec, spec_of
from gyrograd.models.spellings import Sign, converts, is_zero, mark, read_activation, read_comparison, sign_of
from gyrograd.numerics.copies import copy_of
from gyrograd.numerics.modes import eval_mode
from gyrograd.types import Inputs

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "elu": nn.ELU,
    "leaky_relu": nn.LeakyReLU,
    "softplus": nn.Softplus,
}

# Operations with a kink that cannot be swapped, under the dispatcher's names.
KINKED = {
    "relu", "relu6", "leaky_relu", "_prelu_kernel", "prelu", "rrelu_with_noise", "threshold", "hardtanh",
    "hardswish", "hardsigmoid", "hardshrink", "softshrink", "abs",
}  # fmt: skip
# Operations with a kink if the other operand is 0: `x.clamp(min=0)`, `torch.maximum(x, y)`, `y * (x > 0)`.
KINKED_AT_ZERO = {"clamp", "clamp_min", "maximum", "fmax", "gt", "ge", "lt", "le"}


@dataclass(frozen=True)
class ActivationSite:
    """An activation in a model: the module it runs in ("" is the model itself) and the name of its function."""

    module: str
    function: str

    def __str__(self) -> str:
        return f"{self.function} in '{self.module or 'the model itself'}'"


@dataclass(frozen=True)
class SwapReport:
    """What `with_activation` found: swapped activations, and kinked operations it had to leave."""

    swapped: tuple[ActivationSite, ...]
    unswapped: tuple[ActivationSite, ...]


class Activated(nn.Module):
    """A model whose calls of ReLU run as `activation` instead; made by `with_activation` if it found such calls.

    With Softplus, calls of all activations made of ReLUs run in their smooth form. The replacement is active during
    forward only: a core that recomputes in backward (activation checkpointing) would recompute plain ReLUs, so switch
    that off.
    """

    def __init__(self, core: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.core = core
        self.activation = activation
        self.training = activation.training = core.training

    def forward(self, x: Inputs) -> Any:
        with _Exchange(self.activation):
            return self.core(x)


def with_activation(
    model: nn.Module,
    name: str,
    beta: float | int | None = None,
    *,
    example: Tensor | None = None,
    partial: bool = False,
    shared: bool = False,
) -> nn.Module:
    """A copy of the model in which every ReLU is another activation, with the same weights and mode.

    Max-pools stay, as in joo2023. The test run is in eval mode: calls that happen only in training are not seen. A
    swapped model can be swapped again, also back to "relu" (with partial=True if it had other activations).

    Args:
        model: the model; it is not changed.
        name: the new activation. "softplus" also replaces ReLU6, Hardtanh, LeakyReLU, PReLU, RReLU, Hardsigmoid,
            Hardswish and Softshrink, which consist of ReLUs; any other name leaves these.
        beta: sharpness of Softplus, 1 by default; torch's Softplus is exactly linear where beta z > 20.
        example: a batch for the test run (default: 1 x 3 x 32 x 32, then 224).
        partial: allow kinked operations that cannot be swapped (Threshold, abs, scripted parts, ...); `swap_report`
            lists them.
        shared: share parameters and buffers with the model, so that the twin follows it in training.
    """
    exchange = _activation(name, beta)
    twin, places, were_in_place = _swap_modules(_copy(model, shared), exchange)
    seen = _observe(twin, exchange, _probes(model) if example is None else [example], were_in_place)
    report = SwapReport((*places, *seen.calls), seen.left)
    if report.unswapped and not partial:
        raise UserError(
            f"Swapping to '{name}' would leave {', '.join(map(str, report.unswapped))}; "
            "make each an nn.ReLU, or accept it with partial=True."
        )
    if not report.swapped:
        raise UserError(f"{type(model).__name__} has no ReLU to swap for '{name}'; use it as it is.")
    twin = _written_in_place(twin, seen.read_again)
    if seen.calls:
        twin = Activated(twin, exchange())
    _check_same(model, twin, seen.probe)
    twin.__dict__["swaps"] = report
    shape = None if example is None else list(example.shape)
    spec = spec_of(model)
    attach_spec(twin, spec and spec.wrapped("activation", name=name, beta=beta, shape=shape, partial=partial))
    return twin


def swap_again(
    model: nn.Module, *, name: str, beta: float | int | None, shape: Sequence[int] | None, partial: bool
) -> nn.Module:
    """`with_activation` with the settings that a spec holds."""
    example = None if shape is None else _ramp(shape, model)
    return with_activation(model, name, beta, example=example, partial=partial, shared=True)


def swap_report(model: nn.Module) -> SwapReport:
    """What `with_activation` swapped and left in this model."""
    for module in model.modules():
        report = module.__dict__.get("swaps")
        if isinstance(report, SwapReport):
            return report
    raise UserError(
        "This model was not made by with_activation, so it has no report; give the model that with_activation returned."
    )


class _Exchange(TorchFunctionMode):
    """While active, runs calls of ReLU (or of activations made of it) as the new activation and reports each.

    Comparisons with zero are reported, too (`note_sign`): most are half of a ReLU; others count as left.
    """

    def __init__(
        self,
        activation: nn.Module,
        note: Callable[[str], None] | None = None,
        note_sign: Callable[[str, Sign], None] | None = None,
    ) -> None:
        super().__init__()
        self.activation, self.note, self.note_sign = activation, note, note_sign
        self.compares = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in WHOLE.values():  # the form of a module, as one call, for the modes around this one
            return apply_form(func.__name__, z=args[0], **kwargs)
        found = read_activation(func, args, kwargs)
        signs = [sign for sign in map(sign_of, (*args, *kwargs.values())) if sign is not None]
        if found is not None and _reaches(self.activation, found.form):
            if self.note is not None:
                self.note(found.form)
            for sign in signs:
                sign.used = True

            def activated(z: Tensor) -> Tensor:
                return apply_form(found.form, self.activation, z, **found.settings)

            return overwrite(activated, found.z) if found.in_place else activated(found.z)
        if signs and converts(func):
            return mark(func(*args, **kwargs), signs[0])
        for sign in signs:
            sign.misused = True
        comparison = read_comparison(func, args)
        if comparison is None:
            return func(*args, **kwargs)
        if self.note_sign is not None:
            self.note_sign(getattr(func, "__name__", "").strip("_"), comparison)
        self.compares = True
        try:
            return mark(func(*args, **kwargs), comparison)
        finally:
            self.compares = False


class _Leftovers(TorchDispatchMode):
    """Reports every kinked operation that still runs, from Python or from a script, and its operands."""

    def __init__(self, note: Callable[[str], None], read: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.note, self.read = note, read

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """True, because torch would otherwise import its compiler here, which takes seconds."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__.removesuffix("_")
        operands = [*args, *(kwargs or {}).values()]
        for operand in tree_leaves(operands):
            if isinstance(operand, Tensor):
                self.read(operand)
        # An activation with a kink; single numbers and integers are not activations.
        kinked = name in KINKED or (name in KINKED_AT_ZERO and any(is_zero(z) for z in operands))
        if kinked and any(isinstance(z, Tensor) and z.is_floating_point() and z.ndim > 1 for z in operands):
            self.note(name)
        return func(*args, **(kwargs or {}))


def _activation(name: str, beta: float | int | None) -> Callable[[], nn.Module]:
    """A factory of activations that are marked as replacements of a ReLU."""
    check_name("activation", name, ACTIVATIONS)
    if beta is not None and name != "softplus":
        raise UserError(f"beta is the sharpness of softplus and '{name}' has none; leave beta out.")
    if beta is not None and not 0 < beta < float("inf"):
        raise UserError(f"beta is {beta}; give a finite number above 0, such as 3.")

    def make() -> nn.Module:
        module = nn.Softplus(beta=beta) if beta is not None else ACTIVATIONS[name]()
        module.__dict__["stands_for_relu"] = True
        return module

    return make


def _stands_for_relu(module: nn.Module) -> bool:
    # The exact type: a subclass may compute something else.
    return type(module) is nn.ReLU or "stands_for_relu" in module.__dict__


def _reaches(activation: nn.Module, form: str) -> bool:
    """True if the activation may replace this form: any may replace a ReLU, only Softplus one inside another form."""
    return form == "relu" or isinstance(activation, nn.Softplus)


def _successor(old: nn.Module, activation: nn.Module) -> nn.Module | None:
    """The replacement of a module, or None if it stays."""
    if _stands_for_relu(old):
        return activation
    if type(old) in MODULES and _reaches(activation, MODULES[type(old)]):
        return Softened(old, activation)
    if isinstance(old, InPlace):
        return _successor(old.activation, activation)
    if isinstance(old, Softened):
        original = old.original()
        return _successor(original, activation) or original
    return None


def _copy(model: nn.Module, shared: bool) -> nn.Module:
    """A deep copy; with `shared`, of the structure only."""
    tensors = [*model.parameters(), *model.buffers()] if shared else []
    try:
        with warnings.catch_warnings():
            # torch 2.11 warns about one of its own classes when an exported program is copied
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
            return copy_of(model, tensors)
    except (RuntimeError, TypeError) as wrong:
        raise UserError(
            f"{type(model).__name__} cannot be copied ({_first_line(wrong)}); "
            "swap its activations where it is built."
        ) from wrong


def _swap_modules(
    root: nn.Module, exchange: Callable[[], nn.Module]
) -> tuple[nn.Module, tuple[ActivationSite, ...], set[nn.Module]]:
    """The model with every ReLU module replaced, the places, and the new modules whose predecessor was in-place."""
    new: dict[int, nn.Module | None] = {}
    places: list[ActivationSite] = []
    were_in_place: set[nn.Module] = set()
    everything: list[tuple[str, nn.Module]] = [*root.named_modules(remove_duplicate=False)]
    by_name = dict(everything)
    for name, old in everything:
        if id(old) not in new:
            new[id(old)] = _successor(old, exchange())
        fresh = new[id(old)]
        if fresh is None:
            continue
        place = ActivationSite(name, type(old.activation if isinstance(old, InPlace) else old).__name__)
        fresh.train(old.training)
        if old is root:
            return fresh, (place,), set()
        parent_name, _, key = name.rpartition(".")
        parent = by_name[parent_name]
        # skip parents that were replaced themselves; replace a parent with two names once
        if new.get(id(parent)) is None and parent._modules.get(key) is old:
            parent._modules[key] = fresh
            places.append(place)
            if isinstance(old, InPlace) or getattr(old, "inplace", False):
                were_in_place.add(fresh)
    return root, tuple(places), were_in_place


def _written_in_place(root: nn.Module, modules: set[nn.Module]) -> nn.Module:
    """The model in which these activations write into their inputs."""
    wrapped = {module: InPlace(module).train(module.training) for module in modules}
    for parent in [*root.modules()]:
        for key, child in [*parent._modules.items()]:
            if child in wrapped and not isinstance(parent, InPlace):
                parent._modules[key] = wrapped[child]
    return root


def _check_same(model: nn.Module, twin: nn.Module, probe: Tensor) -> None:
    """Refuse a copy that does not return what the model returns when its activation is ReLU."""
    with torch.no_grad(), eval_mode(model), eval_mode(twin), _as_relus(model), _as_relus(twin):
        pairs = [*zip(_outputs(model, probe), _outputs(twin, probe), strict=True)]
    for wanted, found in pairs:
        if not wanted.is_floating_point():
            continue
        apart, size = (found - wanted).abs().nan_to_num().max(), wanted.abs().nan_to_num().max()
        # The two may round differently; a missed activation differs by far more.
        if bool(apart > 1e3 * torch.finfo(wanted.dtype).eps * size):
            raise UserError(
                f"{type(model).__name__} has an activation that was not found (a copy with its ReLUs put back differs "
                f"by {float(apart):.3g} in outputs of up to {float(size):.3g}); swap the activations where it is built."
            )


def _outputs(model: nn.Module, probe: Tensor) -> list[Tensor]:
    with torch.random.fork_rng([probe.device] if probe.is_cuda else []):
        torch.manual_seed(0)
        # a copy: a model may write into its input
        return [out for out in tree_leaves(model(probe.clone())) if isinstance(out, Tensor)]


@contextmanager
def _as_relus(model: nn.Module) -> Iterator[None]:
    """Let every replacement of a ReLU compute a ReLU, for the block."""
    standing = [module for module in model.modules() if "stands_for_relu" in module.__dict__]
    for module in standing:
        module.__dict__["forward"] = torch.relu
    try:
        yield
    finally:
        for module in standing:
            del module.__dict__["forward"]


@dataclass(frozen=True)
class _Findings:
    """Found in one run: ReLU calls, kinked operations left, in-place modules whose input is read again, the input."""

    calls: tuple[ActivationSite, ...]
    left: tuple[ActivationSite, ...]
    read_again: set[nn.Module]
    probe: Tensor


def _observe(
    model: nn.Module, exchange: Callable[[], nn.Module], probes: Sequence[Tensor], in_place: set[nn.Module]
) -> _Findings:
    """The findings of one run on the first probe that the model accepts."""
    failure: Exception | None = None
    for probe in probes:
        try:
            return _observe_once(model, exchange(), probe, in_place)
        except Exception as wrong:
            failure = failure or wrong
    shapes = " and ".join(str(tuple(probe.shape)) for probe in probes)
    raise UserError(
        f"The test run of {type(model).__name__} on inputs of shape {shapes} failed "
        f"({_first_line(failure)}); give example=, a batch that the model accepts."
    ) from failure


def _observe_once(
    model: nn.Module, activation: nn.Module, probe: Tensor, in_place: set[nn.Module]
) -> _Findings:
    names = {id(module): name for name, module in model.named_modules()}
    running: list[nn.Module] = [model]
    calls: dict[ActivationSite, None] = {}
    left: dict[ActivationSite, None] = {}
    signs: list[tuple[ActivationSite, Sign]] = []
    overwritten_inputs: list[tuple[Tensor, nn.Module]] = []  # kept, so that their memory is not reused
    read_again: set[nn.Module] = set()

    def here(function: str) -> ActivationSite:
        return ActivationSite(
            next(names[id(module)] for module in reversed(running) if id(module) in names), function
        )

    def note_left(function: str) -> None:
        if not _stands_for_relu(running[-1]) and not exchanging.compares:
            left[here(function)] = None

    def finished(module: nn.Module, inputs: Any) -> None:
        if module in in_place:
            overwritten_inputs.append((inputs[0], module))

    def read(operand: Tensor) -> None:
        memory = operand.untyped_storage().data_ptr()
        read_again.update(
            module for z, module in overwritten_inputs if z.untyped_storage().data_ptr() == memory
        )

    exchanging = _Exchange(
        activation,
        lambda function: calls.setdefault(here(function)),
        lambda function, sign: signs.append((here(function), sign)),
    )
    devices = [probe.device] if probe.is_cuda else []
    with (
        torch.random.fork_rng(devices),
        torch.no_grad(),
        eval_mode(model),
        _following(running, finished),
        exchanging,
        _Leftovers(note_left, read),
    ):
        model(probe.clone())  # a model may write into its input
    left |= {place: None for place, sign in signs if sign.misused or not sign.used}
    return _Findings(tuple(calls), tuple(left), read_again, probe)


@contextmanager
def _following(running: list[nn.Module], finished: Callable[[nn.Module, Any], None]) -> Iterator[None]:
    """Keep the running modules in the list, innermost last; call `finished` with each and its inputs."""
    enter = register_module_forward_pre_hook(lambda module, _: running.append(module))

    def left(module: nn.Module, inputs: Any, *_: object) -> None:
        running.pop()
        finished(module, inputs)

    leave = register_module_forward_hook(left)
    try:
        yield
    finally:
        enter.remove()
        leave.remove()


def _probes(model: nn.Module) -> list[Tensor]:
    """Inputs to try: of the size in the spec, or colour images of 32 and then 224 pixels."""
    settings = getattr(spec_of(model), "settings", {})
    if "in_features" in settings:
        return [_ramp((1, settings["in_features"]), model)]
    channels, side = settings.get("in_channels", 3), settings.get("image_size", 32)
    return [_ramp((1, channels, side, side), model), _ramp((1, channels, 224, 224), model)]


def _ramp(shape: Sequence[int], model: nn.Module) -> Tensor:
    """Pixels that rise from 0.05 to 0.95, on the model's device and in its precision."""
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    count = int(torch.Size(shape).numel())
    return torch.linspace(0.05, 0.95, count, device=like.device, dtype=like.dtype).reshape(tuple(shape))


def _first_line(wrong: BaseException | None) -> str:
    return str(wrong).strip().partition("\n")[0].rstrip(".")
