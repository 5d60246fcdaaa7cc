"""The list of wang2020's tables and figures: their nets, measurements and plots."""

from __future__ import annotations

from collections.abc import Sequence

from gyrograd.experiments.engine import Experiment, ExperimentContext, Listed, Took, register_all
from gyrograd.experiments.trained_nets import TrainedNet
from gyrograd.experiments.wang2020.maps import NAMES, seven_maps, unigrads
from gyrograd.experiments.wang2020.measures import (
    ATTACKS,
    accuracy,
    attacked,
    rows_by_map,
    train_accuracy,
    transferred,
)
from gyrograd.experiments.wang2020.pictures import looks_of, map_sections, shown
from gyrograd.experiments.wang2020.sweeps import (
    OTHERS,
    drawn_net_by_net,
    drawn_over,
    over_betas,
    over_betas_of_bytes,
    over_radii,
    repeated,
)
from gyrograd.experiments.wang2020.variants import BETAS, OF_GIVEN, RADII, RESNET20, SETTINGS, nets_by_row

NATURAL = nets_by_row(SETTINGS, ("natural",))
BOTH_ATTACKS = [attacked(attack, name) for attack in ATTACKS for name in NAMES]
TOP_K = [attacked("top_k", name) for name in NAMES]


def eleven_and_others(run: ExperimentContext) -> Sequence[TrainedNet]:
    """11 SSR nets with different seeds, and one net of each other way to train."""
    return [*repeated(run, "ssr"), *nets_by_row(RESNET20, OTHERS)(run)]


EXPERIMENTS = (
    Listed(
        "table2",
        "Table 2",
        "How far the top-k and the manipulate attack move SM, IG, SG and UG on three data sets: areas over eps.",
        Experiment(NATURAL, (BOTH_ATTACKS,)),
        took={"small": Took(146), "paper": Took(890, "an H200", "--settings cifar10-public --images 500")},
    ),
    Listed(
        "table3",
        "Table 3",
        """The top-k and the manipulate attack on ResNet-20 trained naturally, with SSR, adversarially and with IG-NORM.

        SSR has two rows: ssr counts its curvature on pixels in [0, 1] with s = 1, as the text finds good; ssr_bytes on
        [0, 255] with s = 1e6, as the released code does, which weighs it 15.4 times as much.
        """,
        Experiment(
            nets_by_row(RESNET20 + OF_GIVEN, ("natural", "ssr", "ssr_bytes", "adversarial", "ig_norm")),
            ([train_accuracy], [accuracy, *BOTH_ATTACKS]),
        ),
        took={"small": Took(989)},
    ),
    Listed(
        "table4",
        "Table 4",
        """Training accuracy of ResNet-20 under SSR with the shares 0.3 to 0.9 of the curvature, in half the epochs.

        Rows of "beta" have s = 1 on pixels in [0, 1], those of "bytes beta" s = 1e6 on [0, 255].
        """,
        Experiment(lambda run: [*over_betas(run), *over_betas_of_bytes(run)], ([train_accuracy], [accuracy])),
        took={"small": Took(244)},
    ),
    Listed(
        "table5",
        "Table 5",
        "The top-k and the manipulate attack on a net trained adversarially (l-inf, eps 8), beside the natural one.",
        Experiment(nets_by_row(("imagenet", "cifar10-zoo"), ("natural", "robust")), (BOTH_ATTACKS,)),
        took={"small": Took(57)},
    ),
    Listed(
        "table6",
        "Table 6",
        "The mass-centre attack on the saliency map, and what it does to SM, IG, SG and UG.",
        Experiment(NATURAL, ([transferred],), rows_by_map),
        took={
            "small": Took(1242, nets_of="wang2020-table2"),
            "paper": Took(37, "an H200", "--settings cifar10-public --images 500"),
        },
    ),
    Listed(
        "figure6",
        "Figure 6",
        """The top-k attack on the saliency map of 11 ResNet-20 trained with SSR, beside the other ways to train.

        The interval of SSR is over images and nets.
        """,
        Experiment(eleven_and_others, ([attacked("top_k", "sm")],), sections=drawn_net_by_net),
        took={"small": Took(308)},
    ),
    Listed(
        "figure7",
        "Figure 7",
        "The top-k attack on ResNet-20 trained adversarially in l2 balls, over their radius.",
        Experiment(
            over_radii,
            ([accuracy, *TOP_K],),
            sections=drawn_over("radius", RADII, "radius of the l2 ball in training"),
        ),
        took={"small": Took(134)},
    ),
    Listed(
        "figure8",
        "Figure 8",
        "The top-k attack on the SSR nets of Table 4, over the share of the curvature in the loss.",
        Experiment(over_betas, (TOP_K,), sections=drawn_over("beta", BETAS, "beta of SSR")),
        took={"small": Took(37, nets_of="wang2020-table4")},
    ),
    Listed(
        "figure9",
        "Figure 9",
        "Seven maps of the same images, and how rough each is: mean step between neighbouring pixels over mean pixel.",
        Experiment(NATURAL, ([looks_of(seven_maps)],), shown(seven_maps), looks=True, sections=map_sections),
        took={
            "small": Took(7, nets_of="wang2020-table2"),
            "paper": Took(436, "two CPU cores", "--settings cifar10-public --images 50"),
        },
    ),
    Listed(
        "figure10",
        "Figure 10",
        "UniGrad maps for radii from 2 to 64 of 255, how rough each is, and how large beside the saliency map's.",
        Experiment(
            NATURAL, ([looks_of(unigrads, beside="sm")],), shown(unigrads), looks=True, sections=map_sections
        ),
        took={
            "small": Took(5, nets_of="wang2020-table2"),
            "paper": Took(1963, "two CPU cores", "--settings cifar10-public --images 50"),
        },
    ),
)

register_all("wang2020", EXPERIMENTS)
