"""The images of a setting."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch.nn.functional import adaptive_avg_pool2d

from gyrograd.data import Dataset, data_root
from gyrograd.data.cifar10 import home_folder
from gyrograd.errors import UserError
from gyrograd.registry import make


def images_of(sizes: Mapping[str, Any], split: str) -> Dataset:
    """The data set `data` of these sizes, with the first `train` images for training, averaged down to `side`."""
    wanted = {key: sizes[key] for key in ("data", "side", "train") if key in sizes}
    return _made(json.dumps(wanted, sort_keys=True), split)


def check_present(sizes: Mapping[str, Any]) -> None:
    """Raise if the files of the data set are not on disk, without reading them."""
    data = sizes.get("data", {})
    if data.get("name") == "cifar10":
        home_folder(data.get("root"))
    place = data_root() / str(data.get("path", "."))
    if "path" in data and not place.is_dir():
        raise UserError(
            f"There is no folder {place}; put the images there, or choose other data with --settings."
        )


@lru_cache(maxsize=8)
def _made(wanted: str, split: str) -> Dataset:
    sizes = json.loads(wanted)
    shared = {key: value for key, value in sizes["data"].items() if key not in ("name", "train", "test")}
    if "path" in shared:
        shared["path"] = str(data_root() / shared["path"])
    own = sizes["data"].get(split, {})
    data: Dataset = make("dataset", sizes["data"]["name"], **{"split": split, **shared, **own})
    if split == "train" and "train" in sizes:
        data = data.subset(sizes["train"])
    return smaller(data, sizes["side"]) if "side" in sizes else data


def smaller(data: Dataset, side: int) -> Dataset:
    """The images averaged down to `side` x `side` pixels; object masks are left out."""
    parts = data.images.split(1024)  # a streamed data set is read in parts
    pixels = torch.cat([adaptive_avg_pool2d(part.to(torch.float32), side) for part in parts])
    return replace(data, images=pixels.round().to(torch.uint8), masks=None, name=f"{data.name} {side} px")
