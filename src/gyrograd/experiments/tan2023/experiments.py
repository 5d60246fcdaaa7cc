"""The list of tan2023's tables and figures: their nets, measurements and plots."""

from __future__ import annotations

from gyrograd.experiments.engine import Experiment, Listed, Took, register_all
from gyrograd.experiments.tan2023 import drawings, figure1, figure2
from gyrograd.experiments.tan2023.explainers import NAMES
from gyrograd.experiments.tan2023.measures import (
    beside,
    by_segments,
    faithfulness,
    lipschitz,
    model_lipschitz,
    of_explainer,
    of_smoothgrad,
    ranked_by_backbone,
    ranked_by_level,
)
from gyrograd.experiments.tan2023.variants import BY_LEVEL, nets_by_row, over_levels

CONSTANTS = [model_lipschitz, *(of_explainer(lipschitz, name) for name in NAMES)]
NATURAL = nets_by_row(("natural",))
BRIEFLY = "--images 100 --train epochs=5,schedule=one_cycle,precision=tf32"
"""Options of the timed runs."""

EXPERIMENTS = (
    Listed(
        "table1",
        "Table 1",
        "How fast six explanations move on five backbones, natural and robust, and whether the nets decide it.",
        Experiment(nets_by_row(), (CONSTANTS,), ranked_by_backbone, sections=drawings.as_printed),
        took={
            "small": Took(1090),
            "paper": Took(662, "an H200", f"--settings resnet18,vgg16,swin,backbones {BRIEFLY}"),
        },
    ),
    Listed(
        "segments",
        "Table 1, LIME and SHAP",
        """LIME and SHAP with three kinds of features, whose constants lie far apart; the paper does not say which.

        anew: quickshift segments each neighbour by itself (the rows lime and shap of Table 1 and Figures 3 and 6);
        held: the clean image's segments for all its neighbours; pixels: every pixel a feature, as Captum has it
        without a mask. On natural nets the paper prints 1.6 to 8.4 for LIME, of the size of segments that change
        with the image, and 0.24 to 0.83 for SHAP, of the size of pixels. LIME's kernel, which the paper leaves open
        too: ours is narrow (width 0.25 of a cosine distance); beside it Captum's default, and the printed distance in
        pixels with a width of about the image's norm.
        """,
        Experiment(nets_by_row(("natural",), (*BY_LEVEL, "lenet-zoo")), ([by_segments],)),
    ),
    Listed(
        "figure1",
        "Figure 1",
        "How far maps of a jogged image move: of a natural and a robust ResNet18, and of SmoothGrad over its noise.",
        Experiment(
            nets_by_row(backbones=figure1.WHERE),
            ([figure1.distances],),
            figure1.jogged,
            looks=True,
            sections=figure1.drawn,
        ),
        took={"small": Took(24, nets_of="tan2023-table1")},
    ),
    Listed(
        "figure2",
        "Figure 2",
        """SmoothGrad of the function of two variables at (D, -1.5 D) over its noise: drawn, and exact.

        An "image" here is a seed of the noise.
        """,
        Experiment(finish=figure2.measure_toy, sections=figure2.drawn),
        took={"small": Took(5), "paper": Took(25, "two CPU cores")},
    ),
    Listed(
        "figure3",
        "Figure 3",
        """Local Lipschitz constants of six explanations over that of the net, for ten nets from natural to robust.

        ResNet18 as in the paper, and LeNet, which is ours.
        """,
        Experiment(over_levels, (CONSTANTS,), ranked_by_level, sections=drawings.over_nets),
        took={"small": Took(234), "paper": Took(2170, "two CPU cores", f"--settings lenet {BRIEFLY}")},
    ),
    Listed(
        "figure4",
        "Figure 4",
        "Local Lipschitz constant of SmoothGrad over its noise, on naturally trained backbones.",
        Experiment(NATURAL, ([of_smoothgrad(lipschitz)],), sections=drawings.over_noise),
        took={"small": Took(58, nets_of="tan2023-table1")},
    ),
    Listed(
        "figure5",
        "Figure 5",
        """Faithfulness of SmoothGrad over its noise, on naturally trained backbones, in three similarities.

        Orders are judged image by image, by the median ratio to sigma 0.03: the mean of Eq. 5 is that of a few images.
        """,
        Experiment(
            NATURAL,
            ([of_smoothgrad(faithfulness)],),
            beside("sigma 0.03"),
            sections=drawings.faithful_over_noise,
        ),
        took={"small": Took(21, nets_of="tan2023-table1")},
    ),
    Listed(
        "figure6",
        "Figure 6",
        """Faithfulness of six explainers over their local Lipschitz constant, on naturally trained backbones.

        Orders of faithfulness are judged image by image: the median ratio to the gradient's.
        """,
        Experiment(
            NATURAL,
            ([of_explainer(measure, name) for name in NAMES for measure in (lipschitz, faithfulness)],),
            beside("natural grad"),
            sections=drawings.trade_off,
        ),
        took={"small": Took(13, nets_of="tan2023-table1")},
    ),
)

register_all("tan2023", EXPERIMENTS)
