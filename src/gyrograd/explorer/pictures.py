"""Pictures of tensors: maps in the colours of the reports, alone and over their image; sheets and archives."""

from __future__ import annotations

import base64
import io
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from jaxtyping import Float
from torch import Tensor

from gyrograd.explorer.scenes import AttackScene, MapsScene
from gyrograd.numerics.maps import reduce
from gyrograd.reporting.figures import Array
from gyrograd.reporting.pictures import attack_sheet, colour_map, overlay, png, scale_end
from gyrograd.types import Images


def picture_of(x: Images) -> Array:
    """The first image as `h w 3`: a grey channel is repeated, of more than three channels the first three are used."""
    image = x[0, :3] if x.shape[1] >= 3 else x[0, :1].expand(3, -1, -1)
    return np.asarray(image.detach().float().cpu().movedim(0, -1).numpy())


def array_of(map: Float[Tensor, "h w"]) -> Array:
    """A map as an array."""
    return np.asarray(map.detach().float().cpu().numpy())


def attack_arrays(scene: AttackScene) -> dict[str, Array]:
    """The arrays from which reports draw an attack."""
    hit = scene.hit
    maps = {"map_clean": hit.map_clean, "map_attacked": hit.map}
    return {
        "image": picture_of(hit.x_clean)[None],
        "attacked": picture_of(hit.x)[None],
        **{key: array_of(reduce(map)[0])[None] for key, map in maps.items()},
    }


def address(picture: Array) -> str:
    """A picture as a data URL."""
    return "data:image/png;base64," + base64.b64encode(png(picture)).decode("ascii")


def archive_of_maps(scene: MapsScene) -> bytes:
    """A ZIP file of the image and of every map, alone and over the image, as `gyrograd explain` draws them."""
    image = picture_of(scene.x)
    files = {"image.png": png(image)}
    for name, map in scene.maps.items():
        drawn = array_of(map)
        files[f"{_slug(name)}.png"] = png(colour_map(drawn, scale_end(drawn)))
        files[f"{_slug(name)}_overlay.png"] = png(overlay(image, drawn))
    return _write_zip(files)


def archive_of_attacks(scenes: tuple[AttackScene, ...]) -> bytes:
    """A ZIP file with, for each model, the files that `AttackResult` saves, and one sheet of pictures."""
    files: dict[str, bytes] = {}
    for scene in scenes:
        home = "" if len(scenes) == 1 else f"{_slug(scene.net.name)}/"
        with tempfile.TemporaryDirectory() as folder:
            scene.hit.save(folder)
            files |= {f"{home}{path.name}": path.read_bytes() for path in sorted(Path(folder).iterdir())}
        files[f"{home}sheet.png"] = attack_sheet(attack_arrays(scene), [0], [scene.before.label])
    return _write_zip(files)


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in name).strip("._")


def _write_zip(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            # A fixed date: the same pictures give the same archive.
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
    return packed.getvalue()
