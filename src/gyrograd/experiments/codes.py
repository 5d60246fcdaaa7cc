"""What the papers' short names of rows and columns mean. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable

CODES = {
    "accuracy": "test images classified rightly, per cent",
    "rps": "similarity of maps under random noise: 1 is the same map; by cosine, Pearson or SSIM; the number is eps in "
    "255ths",
    "ins": "Insertion: mean probability of the class while the strongest pixels are put in, per cent",
    "a-ins": "Adversarial Insertion: Insertion of the map of the attacked image; the number is eps in 255ths",
    "attacked": "similarity of the maps before and after the attack; the number is eps in 255ths",
    "label": "images whose predicted class stays under the attack, per cent; the number is eps in 255ths",
    "grad": "the gradient",
    "xgrad": "input x gradient",
    "gbp": "guided backprop",
    "lrp": "layer-wise relevance propagation",
    "ce": "trained with cross-entropy alone",
    "atex": "trained with ATEX, distillation of a steady teacher",
    "iga": "trained with IGA, adversarial examples of the map",
    "hessian": "trained with a penalty on the Hessian; the number is its weight",
    "l2": "trained with a penalty on the l2 distance of gradients nearby; the number is its weight",
    "l2_cosine": "trained with penalties on the l2 and the cosine distance of gradients nearby; the numbers are their "
    "weights",
    "time": "time of a training step over that of cross-entropy",
    "memory": "memory of a training step over that of cross-entropy",
    "step": "time of a training step in milliseconds",
    "top_k": "under the attack that empties the strongest pixels of the map (top-k)",
    "manipulate": "under the attack that moves the map to a frame chosen beforehand (manipulate)",
    "mass_center": "under the attack that moves the map's centre of mass",
    "k-in": "share of the k strongest pixels that both maps have, as the area over eps: 3 is the same map at every eps",
    "cor": "rank correlation of the two maps, as the area over eps: 3 is the same order of pixels at every eps",
    "cdl": "centre dislocation: how far the map's centre of mass moves, in pixels, as the area over eps: 0 is not at "
    "all",
    "cosd": "cosine distance of the two maps, as the area over eps: 0 is the same map at every eps",
    "moved": "images whose map the attack moved at all, per cent",
    "train": "accuracy on training images",
    "test": "accuracy on test images",
    "sm": "saliency map, the gradient",
    "ig": "Integrated Gradients",
    "sg": "SmoothGrad",
    "ug": "UniGrad, the gradient averaged over uniform noise",
    "gi": "gradient x input",
    "lime": "LIME",
    "shap": "kernel SHAP",
    "natural": "trained with cross-entropy alone",
    "robust": "trained on adversarial examples",
    "adversarial": "trained on adversarial examples (Madry)",
    "ssr": "trained with SSR, a penalty on the largest curvature; beta is its strength",
    "ig_norm": "trained with IG-NORM, a penalty on the change of Integrated Gradients",
    "bytes": "pixels counted from 0 to 255, as the paper's code does",
    "beta": "the strength of SSR",
    "lipschitz": "local Lipschitz constant, the largest change of the explanation over that of the image: lower is "
    "steadier",
    "faithfulness": "how well the map's values agree with the drop of the score when pixels are removed",
    "pearson": "the same by Pearson's correlation",
    "spearman": "the same by rank correlation",
    "rank": "rank correlation over nets: do steadier nets have steadier explanations",
    "sigma": "width of SmoothGrad's noise",
    "model": "the net itself",
}  # fmt: skip
"""By word of a row's or column's name: its meaning."""


def explained(names: Iterable[str]) -> list[tuple[str, str]]:
    """The short names that occur in these names, in order of occurrence, each with its meaning."""
    words = dict.fromkeys(word.strip(",") for name in names for word in name.split())
    return [(word, CODES[word]) for word in words if word in CODES]
