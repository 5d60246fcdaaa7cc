"""How much an audit measures, as data: glance, quick, standard, thorough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from gyrograd.errors import UserError, check_counts, check_name, did_you_mean, plain_values
from gyrograd.renames import old_fields

Settings = Mapping[str, Mapping[str, Any]]

OLD_FIELDS = {"kept": "top_fraction"}


@old_fields(**OLD_FIELDS)
@dataclass(frozen=True)
class Preset:
    """The settings of an audit.

    Args:
        methods: attributions by name; `method_settings` are theirs.
        attacks: attacks on the map, with `steps` steps, on the first `attacked_images` images. `auto` minimises the
            share of top pixels kept at every radius of `curve`, then the cosine at `eps` and then, with half the
            steps, the insertion, each from the images found before (`aims` selects among the three). Other attacks use
            every radius for the first `curve_methods` methods and `eps` for the rest.
        search_rows: most passes through which a map that averages several (points of a path, random draws) is
            attacked, in `mean_steps` steps (None: `steps`). Few steps through every pass find more than many through
            some: an attack on six of eight draws leaves what the other two show (results/attacks/auto.md). Every
            result is evaluated with the map itself.
        settled: `auto` ends the search of an image, at this and at larger radii, once no more than this is left of its
            column.
        search_precision: of the steps of `auto` through maps that average: "fast" is bfloat16 on a CPU that has
            instructions for it, "single" never is. Every number of an audit is computed in single precision.
        noise_eps, draws: radius and number of draws of the noise of RPS.
        metrics: further metrics by name.
        points: points of the insertion and deletion curves.
        sweep: settings of SmoothGrad (sigma) and UniGrad (eps) on the plane, over `sweep_images` images with
            `sweep_draws` draws of smoothing and `sweep_noise` of RPS's noise.
        bound_images: images on which theorems are checked (0: none), at `bound_sigma`.
        flag_images: images for the sanity checks.
        certified_images: images whose maps are certified, with `certified_draws` draws per method and certificate; only
            methods of one pass.
        pictures: attacked images shown.
        top_fraction: the fraction of pixels that counts as the top.
        precision: if given, each method is attacked on as many images as it takes to know its share of top pixels kept
            to within this (audit/precision.py); `attacked_images` is then ignored.
    """

    methods: tuple[str, ...]
    attacks: tuple[str, ...] = ("auto",)
    aims: tuple[str, ...] = ("auto", "auto on cosine", "auto on insertion")
    metrics: tuple[str, ...] = ()
    method_settings: Settings = field(default_factory=dict)
    eps: float = 8 / 255
    curve: tuple[float, ...] = (2 / 255, 4 / 255)
    curve_methods: int = 1
    steps: int = 7
    attacked_images: int = 16
    search_rows: int = 8
    mean_steps: int | None = None
    settled: float = 0.0
    search_precision: str = "fast"
    noise_eps: float = 16 / 255
    draws: int = 3
    points: int = 11
    sweep: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    sweep_images: int = 32
    sweep_draws: int = 8
    sweep_noise: int = 2
    bound_images: int = 8
    bound_sigma: float = 0.1
    bound_draws: int = 8
    flag_images: int = 20
    pictures: int = 4
    certified_images: int = 0
    certified_draws: int = 1000
    top_fraction: float = 0.1
    shard: int = 20
    precision: float | None = None

    def __post_init__(self) -> None:
        for name in ("methods", "attacks"):
            if not getattr(self, name):
                raise UserError(f"An audit needs {name}; name at least one, such as {EXAMPLES[name]}.")
        check_counts(**{name: count for name in COUNTS if (count := getattr(self, name)) is not None})
        if self.certified_images < 0:
            raise UserError(f"certified_images is {self.certified_images}; give 0 or more, 8 is usual.")
        for name in ("eps", "noise_eps", "bound_sigma"):
            size = getattr(self, name)
            if isinstance(size, str) or not 0 < size < 1:
                raise UserError(f"{name} is {size!r}; give a size in pixel units, such as 8 / 255.")
        if self.bound_images < 0:
            raise UserError(f"bound_images is {self.bound_images}; give 0 for no bounds, or more.")
        unknown = [name for name in self.aims if name not in AIMED]
        if unknown or not self.aims:
            raise UserError(f"aims is {self.aims}; give some of {', '.join(AIMED)}.")
        if self.precision is not None and not 0 < self.precision < 1:
            raise UserError(f"precision is {self.precision}; give a fraction of the pixels, such as 0.02.")
        if not 0 < self.top_fraction < 1 or self.points < 2:
            raise UserError(
                f"top_fraction is {self.top_fraction} and points {self.points}; give a fraction "
                "below 1 and at least 2 points."
            )

    @property
    def radii(self) -> tuple[float, ...]:
        """Every radius of the eps curve, rising; `eps` itself is always among them."""
        return tuple(sorted({*(e for e in self.curve if e > 0), self.eps}))

    @property
    def is_brief(self) -> bool:
        """True if `auto` has too few steps to run its challengers, and thus to call a map steady."""
        return "auto" in self.attacks and self.steps < CHALLENGED_FROM

    @property
    def searches(self) -> tuple[str, ...]:
        """The attacks, with `auto` once per column that it minimises."""
        return tuple(
            name for attack in self.attacks for name in (self.aims if attack == "auto" else (attack,))
        )

    @property
    def ratios(self) -> tuple[float, ...]:
        """Shares of pixels of insertion and deletion, from none to all."""
        return tuple(i / (self.points - 1) for i in range(self.points))


AIMED = {"auto": "top_kept", "auto on cosine": "cosine", "auto on insertion": "insertion"}
"""The searches of `auto` and the column that each minimises."""
CHALLENGED_FROM = 4
"""`auto` runs challengers from this number of steps on."""
EXAMPLES = {"methods": "'gradient'", "attacks": "'auto'"}
COUNTS = [
    f.name
    for f in fields(Preset)
    if str(f.type).startswith("int") and f.name not in {"points", "bound_images", "certified_images"}
]
"""Settings that must be at least 1; `points` must be at least 2, and the other two may be 0."""

STANDARD_METHODS = (
    "gradient",
    "input_x_gradient",
    "integrated_gradients",
    "smoothgrad",
    "unigrad",
    "guided_backprop",
    "lrp",
)
PRESETS: dict[str, Preset] = {
    "glance": Preset(
        # A minute for four photographs: one short search of each map at one radius, and each image on the page as soon
        # as it is done. No constants of theorems, whose second derivatives cost as much as a search.
        methods=("gradient", "lrp"),
        aims=("auto",),
        curve=(),
        steps=2,
        attacked_images=8,
        draws=1,
        points=6,
        sweep_images=8,
        bound_images=0,
        flag_images=4,
        pictures=2,
        shard=1,
    ),
    "quick": Preset(
        # LRP usually holds furthest; input x gradient would behave like the gradient.
        methods=("gradient", "lrp", "integrated_gradients", "smoothgrad"),
        method_settings={"integrated_gradients": {"steps": 8}, "smoothgrad": {"draws": 8}},
        steps=12,
        mean_steps=7,
        attacked_images=12,
        draws=1,
        sweep_images=16,
        sweep={"smoothgrad": (0.03, 0.1, 0.2), "unigrad": (8 / 255, 32 / 255)},
    ),
    "standard": Preset(
        methods=STANDARD_METHODS,
        method_settings={
            "integrated_gradients": {"steps": 20},
            "smoothgrad": {"draws": 20},
            "unigrad": {"draws": 20, "eps": 16 / 255},
        },
        curve=(2 / 255, 4 / 255, 16 / 255),
        steps=20,
        attacked_images=24,
        search_rows=20,
        mean_steps=7,
        settled=0.01,
        draws=2,
        sweep={
            "smoothgrad": (0.03, 0.1, 0.2),
            "unigrad": (8 / 255, 16 / 255, 32 / 255),
        },
        sweep_images=100,
        sweep_draws=20,
        sweep_noise=1,
        bound_images=20,
        bound_draws=20,
        shard=25,
    ),
    "thorough": Preset(
        methods=(*STANDARD_METHODS, "lime", "shap"),
        metrics=(
            "top_k_nearby",
            "jpeg_similarity",
            "brightness_similarity",
            "shift_similarity",
            "rotation_similarity",
        ),
        method_settings={
            "integrated_gradients": {"steps": 50},
            "smoothgrad": {"draws": 50},
            "unigrad": {"draws": 50, "eps": 16 / 255},
            "shap": {"segments": "grid", "draws": 200},
        },
        curve=(1 / 255, 2 / 255, 4 / 255, 16 / 255),
        curve_methods=2,
        steps=50,
        attacked_images=200,
        search_rows=50,
        mean_steps=10,
        draws=10,
        points=21,
        sweep={
            "smoothgrad": (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5),
            "unigrad": (4 / 255, 8 / 255, 16 / 255, 32 / 255, 64 / 255, 128 / 255),
        },
        sweep_images=1000,
        sweep_draws=50,
        sweep_noise=10,
        bound_images=100,
        bound_draws=50,
        flag_images=100,
        certified_images=20,
        pictures=6,
        shard=25,
    ),
}
"""glance: four photographs of 224 pixels and an EfficientNet in a minute on two cores. A hundred 32-pixel images of a
small net on one core: quick takes one to two minutes, standard some five times as long, thorough hours. Measured,
with what each setting buys, in results/audit.md."""


def preset_of(preset: str | Preset, **changes: Any) -> Preset:
    """A preset by name, with changed settings; None keeps a setting."""
    if isinstance(preset, str):
        check_name("preset", preset, PRESETS)
    chosen = PRESETS[preset] if isinstance(preset, str) else preset
    known = [*(f.name for f in fields(Preset)), *OLD_FIELDS]
    for name in changes:
        if name not in known:
            raise UserError(f"An audit has no setting '{name}': {did_you_mean(name, known)}")
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in changes.items()
        if value is not None
    }
    if "steps" in given:
        given = {"mean_steps": None, **given}  # given steps apply to every attack
    with plain_values("an audit"):
        return replace(chosen, **given)
