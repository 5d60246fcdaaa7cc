"""A user's function as an attribution: missing parts of the contract are added, or reported as an error."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gyrograd.errors import UserError
from gyrograd.registry import make
from gyrograd.types import Attribution, Inputs, Model


@dataclass(frozen=True)
class FunctionAttribution:
    """`function(model, x, target)`, such as a few lines of autograd or a method of another library.

    It runs with gradients on. If it takes `create_graph`, that is passed on. If not, its maps count as having no
    derivative, because maps of other libraries often have only a part of it (x times a detached gradient); attacks
    then search through another map or without gradients.

    >>> import torch, gyrograd as gg
    >>> def saliency(model, x, target):
    ...     x = x.clone().requires_grad_()
    ...     chosen = model(x).gather(1, target[:, None]).sum()
    ...     return torch.autograd.grad(chosen, x)[0].abs()
    >>> model, x = gg.model("lenet", num_classes=10, seed=0).eval(), torch.rand(2, 3, 32, 32)
    >>> gg.attribution(saliency)(model, x, torch.tensor([0, 1])).shape
    torch.Size([2, 3, 32, 32])
    """

    function: Callable[..., Tensor]
    takes_create_graph: bool = field(init=False, repr=False)

    @property
    def __name__(self) -> str:
        """The name of the function, for messages."""
        return str(getattr(self.function, "__name__", repr(self.function)))

    def __post_init__(self) -> None:
        try:
            inspect.signature(self.function).bind("model", "x", "target")
        except TypeError:
            raise UserError(
                f"{self.__name__} does not take (model, x, target), as every method does; give a function that does."
            ) from None
        except ValueError:  # a compiled function without a signature
            pass
        object.__setattr__(self, "takes_create_graph", _takes_create_graph(self.function))

    def __call__(self, model: Model, x: Inputs, target: Tensor, *, create_graph: bool = False) -> Inputs:
        name = self.__name__
        with torch.enable_grad():
            passed_on = {"create_graph": create_graph} if self.takes_create_graph else {}
            # A function that calls requires_grad_() or backward() must not change the tensor of the caller.
            seen = x if self.takes_create_graph else x.detach()
            map = self.function(model, seen, target, **passed_on)
        if not isinstance(map, Tensor) or map.shape != x.shape:
            returned = tuple(map.shape) if isinstance(map, Tensor) else type(map).__name__
            raise UserError(
                f"{name} returned {returned} for images of shape {tuple(x.shape)}; return a tensor shaped like them."
            )
        if not create_graph:
            return map.detach()
        if not self.takes_create_graph or not map.requires_grad:
            raise UserError(
                f"The maps of {name} have no derivative; let it take create_graph and keep the graph, or leave "
                "create_graph out."
            )
        return map


def as_attribution(method: Any) -> Attribution:
    """What a user gave as a method: a name is built, a function completed, an attribution returned as it is.

    >>> as_attribution("gradient")
    Gradient(quantity='logit', max_batch=512)
    """
    if isinstance(method, str):
        made: Attribution = make("attribution", method)
        return made
    if callable(method):
        whole = _takes_create_graph(method) and not inspect.isroutine(method)
        given: Attribution = method if whole else FunctionAttribution(method)
        return given
    kind = type(method).__name__
    if hasattr(method, "attribute"):  # as Captum's classes have
        call = f"lambda model, x, target: {kind}(model).attribute(x, target=target)"
        raise UserError(f"{kind} is a class of another library, made for one model; give a function: {call}.")
    raise UserError(
        f"A method is a name or a function of (model, x, target), and this is of type {kind}; "
        "gyrograd.available('attribution') lists the names."
    )


def _takes_create_graph(function: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a compiled function without a signature
        return False
    return any(p.name == "create_graph" or p.kind is p.VAR_KEYWORD for p in parameters)
