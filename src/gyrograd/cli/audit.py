"""gyrograd audit: can this model's explanations be trusted?"""

from __future__ import annotations

import json as json_format
import re
import shlex
import shutil
import sys
from pathlib import Path

from gyrograd.cli.inputs import USUAL, Opening, check_folder, open_inputs
from gyrograd.cli.options import Syntax, options
from gyrograd.errors import printable
from gyrograd.registry import Settings


@Syntax(words={"data": "+"})
def audit(
    model: str,
    data: str | list[str],
    preset: str = "quick",
    methods: str | None = None,
    attacks: str | None = None,
    metrics: str | None = None,
    eps: str | float | None = None,
    radii: str | float | None = None,
    steps: int | None = None,
    draws: int | None = None,
    precision: float | None = None,
    certify: int | None = None,
    out: Path | None = None,
    opening: Opening = USUAL,
    workers: int | None = None,
    cluster: str | None = None,
    fresh: bool = False,
    json: bool = False,
) -> int:
    """Can this model's explanations be trusted? Writes a report card.

    Measures how steady and how faithful explanations are, attacks them, and recommends a method.

    Args:
        preset: how much is measured: glance (half a minute for four photographs), quick (two minutes for 100 small
            images and a small net), standard (five times that), thorough (hours: about thirty times standard).
        methods: explanations, comma-separated, settings in brackets: 'gradient,smoothgrad(sigma=0.2)'; the
            others are compared with the first. Default: those of the preset.
        attacks: comma-separated; default: those of the preset. Noise of the same size is always measured.
        metrics: further metrics, comma-separated; `gyrograd list metric` shows all.
        eps: how far a pixel may move under attack: 8/255 or 0.03.
        radii: radii at which maps are attacked besides --eps, such as 2/255,4/255,16/255; default: those of the preset.
            With --eps alone (--radii 8/255) there is no steady radius, and a standard audit takes 0.7 of the time.
        steps: gradient steps of each attack.
        draws: noisy copies per image for the column 'Steady under noise'.
        precision: measure each method on as many images as it takes to know its share of top pixels kept to within
            this, such as 0.05; default: a fixed number of images, from the preset.
        certify: number of images to certify, such as 8: bounds that hold for every change within a small radius;
            costs two thousand draws per image and single-pass method.
        out: folder for the report and the records, from which a second run continues; default: out/audit/MODEL-DATA.
        images: number of images at most; default: 100 of a registered set, all files otherwise.
        unlabelled: ignore sub-folders as labels; explain the predicted class of each image.
        seed: for noise, attacks and the choice of images.
        workers: number of processes, each with its share of the processors or one GPU; the results stay the same.
            Default: one per core if the audit takes longer than about 90 seconds of CPU time, else 1.
        cluster: where the workers run: ray (on this machine, or at RAY_ADDRESS), ray:ADDRESS or slurm.
        fresh: measure everything again and ignore results of an earlier run in the folder.
        json: print the card as one JSON document instead of a table.
    """
    command = _command({**locals(), **vars(opening)})
    from gyrograd.audit import audit as audited
    from gyrograd.audit.verdict import GIVE_WEIGHTS
    from gyrograd.cli.parsing import pixel_radius
    from gyrograd.cli.terminal import escape_controls
    from gyrograd.models.assembly import NOT_NORMALIZED
    from gyrograd.models.opening import UNTRAINED

    settings = {
        **audit_settings(preset, methods, attacks, metrics, eps, steps),
        "curve": None if radii is None else tuple(pixel_radius(part) for part in str(radii).split(",")),
        "draws": draws,
        "precision": precision,
        "certified_images": certify,
    }
    words = [data] if isinstance(data, str) else data
    folder = Path("out/audit") / slug(" ".join([model, *words])) if out is None else out
    check_folder(folder)
    here = open_inputs(model, data, opening, from_a_set=FROM_A_SET)
    if UNTRAINED in here.notes:
        # Other notes are shown with the results; these two may be a reason not to start.
        print(f"gyrograd: {UNTRAINED} Nothing will be judged. {GIVE_WEIGHTS}", file=sys.stderr)
    if NOT_NORMALIZED in here.notes:
        print(f"gyrograd: {NOT_NORMALIZED}", file=sys.stderr)
    try:
        card = audited(
            here.model, here.data, index=here.index, names=here.names, classes=here.class_names, out=folder,
            seed=opening.seed, fresh=fresh, model_name=model, data_name=here.data.name, notes=here.notes,
            command=command, workers="auto" if workers is None and cluster is None else workers, cluster=cluster,
            **settings,
        )  # fmt: skip
    except KeyboardInterrupt:
        kept = f"what was measured is kept in {folder}"
        raise KeyboardInterrupt(f"interrupted; {kept}, the same command continues from there.") from None
    if json:
        print(json_format.dumps(card.document, indent=1))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print(escape_controls(card.summary(width)))
        print(printable(folder / "report.html"))
    return 0


FROM_A_SET = 100
"""Default number of images of a registered set, which may hold thousands."""


def audit_settings(
    preset: str,
    methods: str | None,
    attacks: str | None,
    metrics: str | None,
    eps: str | float | None,
    steps: int | None,
) -> Settings:
    """The options as arguments of `gyrograd.audit`; all names are checked before a model is opened."""
    from gyrograd.audit.presets import preset_of
    from gyrograd.cli.parsing import parse_call, pixel_radius, several
    from gyrograd.registry import lookup, make

    usual = preset_of(preset).method_settings
    named = dict(parse_call(text) for text in several(methods)) if methods is not None else {}
    for name, own in named.items():
        make("attribution", name, **own)  # a setting that does not fit is refused before a model is opened
    known = {lookup("attribution", name).name: own for name, own in named.items()}
    return {
        "preset": preset,
        "methods": list(known) if methods is not None else None,
        # settings in brackets on top of the preset's for that method
        "method_settings": {**usual, **{name: {**usual.get(name, {}), **own} for name, own in known.items()}},
        "attacks": _lookup_names("attack", attacks),
        "metrics": _lookup_names("metric", metrics),
        "eps": None if eps is None else pixel_radius(eps),
        "steps": steps,
    }


def _lookup_names(kind: str, text: str | None) -> list[str] | None:
    from gyrograd.cli.parsing import several
    from gyrograd.registry import lookup

    return None if text is None else [lookup(kind, name).name for name in several(text)]


def _command(words: Settings) -> str:
    """The command that repeats this audit: all options that differ from the defaults."""
    parts = ["gyrograd", "audit"]
    for name, parameter in options(audit).items():
        value = words[name]
        if parameter.default is parameter.empty:
            parts += [shlex.quote(str(each)) for each in (value if isinstance(value, list) else [value])]
        elif name not in ("fresh", "json", "workers", "cluster") and value != parameter.default:
            parts += [f"--{name}"] if value is True else [f"--{name}", shlex.quote(str(value))]
    return " ".join(parts)


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[-80:] or "audit"
