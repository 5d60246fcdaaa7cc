"""The layer a class activation map looks at, and its values as feature maps `b c h w`.

Three layouts occur: channels first (convolutional nets), channels last (Swin), and a row of tokens, some of which
belong to no patch (class tokens, registers). All are converted to the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gyrograd.attributions.replay import Tape, Traced
from gyrograd.attributions.rules import ACTIVATIONS, NORMS
from gyrograd.errors import UserError, did_you_mean
from gyrograd.types import Images, Model

LAYERS = ACTIVATIONS | NORMS | {"batch_norm", "add", "cat", "conv2d", "conv_transpose2d"}
"""Operations whose result may be the chosen layer. Pools, dropout and reshaping are not, so that their input is chosen;
nor are the products inside attention."""

MAX_EXTRA_TOKENS = 8
"""Most class, distillation and register tokens before those of the patches."""


@dataclass(frozen=True, eq=False)
class FeatureMaps:
    """A value inside the model, and the function that converts it (or its gradient) to `b c h w`."""

    at: Traced
    fold: Callable[[Tensor], Tensor]
    has_extra_tokens: bool = False

    def __str__(self) -> str:
        size = " x ".join(map(str, self.fold(self.at.value).shape[1:]))
        call = self.at.call
        return f"'{call.name}' after layer '{call.after}', {size}" if call else size


def find_module(model: Model, name: str) -> nn.Module:
    """The submodule of this name; prefixes of wrappers such as `core.` may be left out if the rest is unique."""
    modules = dict(model.named_modules())
    full = [known for known in modules if known == name] or [
        known for known in modules if known.endswith(f".{name}")
    ]
    if len(full) != 1:
        raise UserError(
            f"The model has no layer '{name}': {did_you_mean(name, [key for key in modules if key])}"
        )
    found: nn.Module = modules[full[0]]
    return found


def named_maps(tape: Tape, module: nn.Module, name: str, rows: int) -> FeatureMaps:
    """The feature maps that the named module returned last."""
    # A module that is used several times counts with its last call, the one nearest to the logits.
    at = next((value for known, value in reversed(tape.returned) if known is module), None)
    if at is None or at.call not in tape.path:
        raise UserError(
            f"The logits do not depend on the output of layer '{name}'; name a layer before them."
        )
    found = _as_feature_maps(at, tape, rows)
    if found is None:
        raise UserError(
            f"The output of layer '{name}' has shape {tuple(at.value.shape)}, which is not a grid of places for images "
            f"of {_size(tape.x.value)}; name a layer with height and width."
        )
    return found


def candidates(tape: Tape, rows: int) -> Iterator[FeatureMaps]:
    """Values that could be the last layer with height and width, the last one first."""
    scores = {item for call in tape.path if call.name == "softmax" for item in call.inputs}
    for call in reversed(tape.path):
        if call.name in LAYERS and call.outputs[0] not in scores:
            found = _as_feature_maps(call.outputs[0], tape, rows)
            if found is not None:
                yield found


def refuse_unless_images(x: Tensor, maps: str) -> None:
    """Refuse inputs without height and width; `maps` begins the sentence."""
    if x.dim() != 4:
        raise UserError(
            f"{maps} need images b c h w, not {tuple(x.shape)}; use 'gradient' or 'integrated_gradients'."
        )


def enlarge(maps: Float[Tensor, "rows height width"], x: Images) -> Images:
    """Coarse maps in the size of the images (bilinear), divided evenly among the colour channels.

    The rows of a smoothed model are averaged over its draws.
    """
    # The rows of a draw are contiguous.
    mean = maps.unflatten(0, (-1, len(x))).mean(0).unsqueeze(1)
    large = F.interpolate(mean.to(x.dtype), x.shape[2:], mode="bilinear", align_corners=False)
    return large.expand_as(x) / x.shape[1]


def no_layer(tape: Tape) -> UserError:
    """The error for a model without such a layer."""
    return UserError(
        f"The model has no layer with height and width between images of {_size(tape.x.value)} and its logits, so "
        "there is no class activation map; give larger images, name a layer with layer=, or use 'gradient'."
    )


def _as_feature_maps(at: Traced, tape: Tape, rows: int) -> FeatureMaps | None:
    """The value as feature maps, or None if it is no grid of places."""
    shape, image = at.value.shape, tape.x.value
    if len(shape) == 3 and shape[0] == rows:
        try:
            extra, sides = token_grid(at, tape, shape[1])
        except UserError:
            return None
        # Class tokens come first.
        return FeatureMaps(at, lambda value: value[:, extra:].transpose(1, 2).unflatten(2, sides), extra > 0)
    if len(shape) != 4 or shape[0] != rows:
        return None
    last = _is_grid(shape[1:3], image)
    # A layer norm over one axis normalises the channels, so that axis holds them.
    channels_last = at.call is not None and at.call.name in {"layer_norm", "rms_norm"}
    if _is_grid(shape[2:], image) and not (last and channels_last):
        return FeatureMaps(at, lambda value: value)
    return FeatureMaps(at, lambda value: value.movedim(-1, 1)) if last else None


def token_grid(at: Traced, tape: Tape, tokens: int) -> tuple[int, tuple[int, int]]:
    """The number of tokens that belong to no patch, and the height and width of the grid of the others."""
    for height, width in _grids(at, tape, tokens):
        extra = tokens - height * width
        if 0 <= extra <= MAX_EXTRA_TOKENS:
            return extra, (height, width)
    raise UserError(
        f"The model's {tokens} tokens are not a grid of places for images of {_size(tape.x.value)}, with up to "
        f"{MAX_EXTRA_TOKENS} class tokens; use 'gradient' or 'lrp'."
    )


def _grids(at: Traced, tape: Tape, tokens: int) -> Iterator[tuple[int, int]]:
    """Possible grids: that of the convolution before the tokens, else one in the shape of the image."""
    number = at.call.number if at.call else 0
    for call in reversed(tape.path):
        if call.number < number and call.name == "conv2d":
            height, width = call.outputs[0].value.shape[2:]
            yield height, width
            break
    h, w = tape.x.value.shape[2:]
    for extra in range(min(tokens, MAX_EXTRA_TOKENS + 1)):
        height = round(((tokens - extra) * h / w) ** 0.5)
        if height and (tokens - extra) % height == 0:
            width = (tokens - extra) // height
            if _is_grid((height, width), tape.x.value):
                yield height, width


def _is_grid(sides: tuple[int, ...], image: Images) -> bool:
    """True if the sides could be those of the image divided by a stride, and there is more than one patch."""
    (height, width), (h, w) = sides, image.shape[2:]
    return height * width > 1 and height <= h and width <= w and abs(height * w - width * h) <= max(h, w)


def _size(x: Tensor) -> str:
    return " x ".join(map(str, x.shape[2:]))
