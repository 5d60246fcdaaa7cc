"""gyrograd submit: audit a model into a folder that anyone can verify."""

from __future__ import annotations

import shlex
from pathlib import Path

from gyrograd.cli.inputs import USUAL, Opening, check_folder, open_inputs
from gyrograd.cli.options import Syntax
from gyrograd.errors import UserError, printable


@Syntax(words={"data": "+"})
def submit(
    model: str,
    data: list[str],
    out: Path | None = None,
    preset: str = "quick",
    methods: str | None = None,
    metrics: str | None = None,
    steps: int | None = None,
    certify: int | None = None,
    name: str | None = None,
    authors: str | None = None,
    paper: str | None = None,
    link: str | None = None,
    reported: str | None = None,
    opening: Opening = USUAL,
) -> int:
    """Audit a model for a leaderboard, into a folder anyone can verify.

    `gyrograd verify FOLDER` checks it.

    Args:
        model: as `gyrograd audit` takes it. A model built by gyrograd, TorchScript and torch.export files travel in the
            folder; Python files do not.
        data: a registered set, or images and folders of images. The images that were audited travel in the folder.
        out: the folder; default: out/submit/MODEL-DATA.
        preset: how much to measure: quick, standard or thorough.
        methods: names of attributions, separated by commas, instead of the preset's.
        metrics: further metrics, separated by commas.
        steps: gradient steps of each attack, instead of the preset's.
        certify: number of images to certify as well.
        name: name of the model on the leaderboard; default: the text that opened it.
        authors: authors of the model.
        paper: paper that describes it.
        link: link to the model.
        reported: values that the paper reports, such as accuracy=0.95,gradient.insertion=0.41; shown next to ours.
        images: number of images at most; default: all files, or 100 of a registered set.
        seed: for random draws and the choice of images.
    """
    from gyrograd.attributions import predict
    from gyrograd.audit import audit as audited
    from gyrograd.audit.submission import refuse_code, write_submission
    from gyrograd.cli.audit import FROM_A_SET, audit_settings, slug
    from gyrograd.cli.terminal import escape_controls

    settings = audit_settings(preset, methods, None, metrics, None, steps) | {"certified_images": certify}
    facts = {"name": name, "authors": authors, "paper": paper, "link": link, "reported": _claims(reported)}
    words = [data] if isinstance(data, str) else data
    out = Path("out/submit") / slug(" ".join([model, *words])) if out is None else out
    check_folder(out)
    refuse_code(model)
    here = open_inputs(model, data, opening, from_a_set=FROM_A_SET)
    command = shlex.join(["gyrograd", "submit", model, *words, "--out", str(out)])
    card = audited(
        here.model, here.data, index=here.index, out=out, seed=opening.seed, model_name=model,
        data_name=here.data.name, notes=here.notes, command=command, **settings,
    )  # fmt: skip
    x = here.data.pixels()
    target = here.data.labels if here.labelled else predict(here.model, x)
    opened = {
        "model": model,
        "weights": opening.weights,
        "classes": opening.classes,
        "normalize": opening.normalize,
    }
    kept = {key: value for key, value in facts.items() if value}
    write_submission(out, here.model, x.cpu(), target.cpu(), here.index, opened, kept)
    print(escape_controls(card.summary()))
    print(f"Check it here or elsewhere: gyrograd verify {printable(out)}")
    return 0


def _claims(text: str | None) -> dict[str, float]:
    """`accuracy=0.95,gradient.rps=0.8` as numbers by column."""
    claims = {}
    for part in (text or "").split(","):
        key, _, value = part.partition("=")
        if not part.strip():
            continue
        try:
            claims[key.strip()] = float(value)
        except ValueError:
            raise UserError(
                f"'{part}' reports nothing; write COLUMN=NUMBER or METHOD.COLUMN=NUMBER, such as accuracy=0.95."
            ) from None
    return claims
