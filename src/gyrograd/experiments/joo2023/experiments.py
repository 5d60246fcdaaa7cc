"""The list of joo2023's tables and figures: their nets, measurements and plots."""

from __future__ import annotations

from collections.abc import Sequence

from gyrograd.experiments.engine import Experiment, ExperimentContext, Listed, Nets, Took, register_all
from gyrograd.experiments.joo2023 import figure1, figure2, figure3b, table2
from gyrograd.experiments.joo2023.measures import (
    ATTRIBUTIONS,
    RPS_EPS,
    attacked_game,
    every,
    insertion_game,
    rps,
    selected,
)
from gyrograd.experiments.joo2023.pictures import attack_sections, under_attack
from gyrograd.experiments.joo2023.variants import (
    FAST,
    IMAGENETS,
    NORMALIZED,
    SETTINGS,
    cosine_alone,
    one_weight,
    two_weights,
)
from gyrograd.experiments.pictures import with_pictures
from gyrograd.experiments.trained_nets import Maker, TrainedNet, accuracy_of

RESNETS = ("cifar10-resnet18", *IMAGENETS, FAST[1])
accuracy = accuracy_of("accuracy")
"""On the measured images; the paper uses the whole test set."""
GAMES = [make(name) for name in ATTRIBUTIONS for make in (insertion_game, attacked_game)]
RISING = "weights rise from left to right"


def table(nets: Nets, *measures: Maker) -> Experiment:
    """An experiment with numbers only."""
    return Experiment(nets, (measures,))


def maps(
    nets: Nets, *measures: Maker, of: tuple[str, ...] = ("grad",), eps: int | None = None, what: str
) -> Experiment:
    """An experiment with numbers, and with maps of a few images before and after the attack."""
    return Experiment(
        nets, (measures,), under_attack(*of, eps=eps), looks=True, sections=attack_sections(what)
    )


def first_imagenet(run: ExperimentContext) -> Sequence[TrainedNet]:
    """The nets of the first ImageNet setting that this run includes."""
    return selected(*run.included(IMAGENETS, look=False)[:1], rows=figure2.ROWS)(run)


EXPERIMENTS = (
    Listed(
        "table1",
        "Table 1",
        "Accuracy, RPS at eps 16, Insertion and Adv-Insertion of four attributions, for six ways to train.",
        table(selected(*SETTINGS, NORMALIZED), accuracy, *(rps(name, 16) for name in ATTRIBUTIONS), *GAMES),
        took={
            "small": Took(1580),
            "paper": Took(
                503,
                "an H200",
                "--settings cifar10-lenet-fast --rows ce,hessian,l2,l2_cosine --parts accuracy,grad",
            ),
        },
    ),
    Listed(
        "table2",
        "Table 2",
        """Seconds and peak memory of a training step over those of cross-entropy alone, side by side in one process.

        Each way takes one step a round, so that a slow moment of the machine hits all of them; the interval is over
        rounds. Memory: the most bytes of a step's own tensors alive at once, without weights and moments. ATEX is its
        third stage, as in the paper: the teacher is there. Weights do not change the cost, and nets are untrained.
        """,
        Experiment(finish=table2.timed, over="rounds"),
        took={
            "small": Took(62),
            "paper": Took(77, "an H200", "--settings cifar10-lenet,cifar10-resnet18,imagenette-resnet18"),
        },
    ),
    Listed(
        "figure1",
        "Figure 1",
        """Distance and cosine of two nearby gradients at the weakest place of the boundary, for four two-layer nets.

        An "image" here is a draw of the data and of the first weights: the interval is over draws.
        """,
        Experiment(finish=figure1.measure_toy, sections=figure1.drawn),
        took={"small": Took(20), "paper": Took(332, "two CPU cores")},
    ),
    Listed(
        "figure2a",
        "Figure 2a",
        "Insertion and Adv-Insertion curves of Grad on the two ResNet18, over the share of pixels put in.",
        Experiment(
            selected(*RESNETS),
            ((insertion_game("grad"), attacked_game("grad")),),
            sections=figure2.curves_drawn,
        ),
        took={"small": Took(7, nets_of="joo2023-table1")},
    ),
    Listed(
        "figure2b",
        "Figure 2b",
        "Images with 5, 20, 40 and 60 % of their pixels, put in by the clean and by the attacked map of Grad.",
        Experiment(
            first_imagenet,
            ((attacked_game("grad"),),),
            with_pictures(figure2.reconstructions, most=1),
            looks=True,
            sections=figure2.images_drawn,
        ),
        took={"small": Took(6, nets_of="joo2023-table1")},
    ),
    Listed(
        "figure3a",
        "Figure 3a",
        "Maps of Grad before and after the targeted attack at eps 2, for four ways to train.",
        maps(selected(*RESNETS), attacked_game("grad"), what="the map to be reached is a frame"),
        took={"small": Took(10, nets_of="joo2023-table1")},
    ),
    Listed(
        "figure3b",
        "Figure 3b",
        """The cosine criterion and the bound of Theorem 6 without its remainder, over eps, on LeNet.

        The perturbation is uniform in the box of radius eps, as in training; the released code draws normal noise, and
        the paper does not say over what its figure runs.
        """,
        Experiment(
            selected("cifar10-lenet", rows=("ce", "l2", "l2_cosine")),
            ((figure3b.criterion_and_bound,),),
            sections=figure3b.drawn,
        ),
        took={"small": Took(38, nets_of="joo2023-table1")},
    ),
    Listed(
        "appendix-table1",
        "Appendix Table 1",
        "RPS of Grad and xGrad for every weight: eps 4, 8 and 16, in cosine, Pearson and SSIM.",
        table(every(*SETTINGS), accuracy, *(rps(name, eps) for name in ("grad", "xgrad") for eps in RPS_EPS)),
        took={"small": Took(1062)},
    ),
    Listed(
        "appendix-table2",
        "Appendix Table 2",
        "RPS of GBP and LRP for every weight: eps 4, 8 and 16, in cosine, Pearson and SSIM.",
        table(every(*SETTINGS), accuracy, *(rps(name, eps) for name in ("gbp", "lrp") for eps in RPS_EPS)),
        took={"small": Took(48, nets_of="joo2023-appendix-table1")},
    ),
    Listed(
        "appendix-table3",
        "Appendix Table 3",
        "Insertion and Adv-Insertion of four attributions for every weight.",
        table(every(*SETTINGS), accuracy, *GAMES),
        took={"small": Took(315, nets_of="joo2023-appendix-table1")},
    ),
    Listed(
        "appendix-table4",
        "Appendix Table 4",
        "Adv-Insertion of the selected nets when the attack has eps 2 and 4.",
        table(selected(*SETTINGS), *(attacked_game(name, eps) for name in ATTRIBUTIONS for eps in (2, 4))),
        took={"small": Took(202, nets_of="joo2023-appendix-table1")},
    ),
    Listed(
        "appendix-figure1",
        "Appendix Figure 1",
        "Maps of four attributions before and after the attack, for the nets of Table 1.",
        maps(
            selected(*SETTINGS),
            *(attacked_game(name) for name in ATTRIBUTIONS),
            of=tuple(ATTRIBUTIONS),
            what="the nets of Table 1",
        ),
        took={"small": Took(29, nets_of="joo2023-appendix-table1")},
    ),
    Listed(
        "appendix-figure2",
        "Appendix Figure 2",
        "Maps of Grad on CIFAR-10 LeNet before and after the attack, for every weight.",
        maps(every("cifar10-lenet"), rps("grad", 16), attacked_game("grad"), what=RISING),
        took={"small": Took(7, nets_of="joo2023-appendix-table1")},
    ),
    Listed(
        "appendix-figure3",
        "Appendix Figure 3",
        "Maps of Grad on CIFAR-10 ResNet18 before and after the attack at eps 4, for every weight.",
        maps(
            every("cifar10-resnet18", FAST[1]), rps("grad", 16), attacked_game("grad", 4), eps=4, what=RISING
        ),
        took={"small": Took(6, nets_of="joo2023-appendix-table1")},
    ),
    Listed(
        "appendix-figure4",
        "Appendix Figure 4",
        "Maps of Grad on ImageNet100 before and after the attack, for CE, Hessian and l2 at every weight.",
        maps(every(*IMAGENETS, ways=one_weight), rps("grad", 16), attacked_game("grad"), what=RISING),
        took={"small": Took(4, nets_of="joo2023-appendix-table1")},
    ),
    Listed(
        "appendix-figure5",
        "Appendix Figure 5",
        "Maps of Grad on ImageNet100 before and after the attack, for l2 with cosine at every pair of weights.",
        maps(every(*IMAGENETS, ways=two_weights), rps("grad", 16), attacked_game("grad"), what=RISING),
        took={"small": Took(4, nets_of="joo2023-appendix-table1")},
    ),
    Listed(
        "appendix-figure6",
        "Appendix Figure 6",
        "Maps of Grad on CIFAR-10 LeNet trained with the cosine criterion alone: a large weight ruins them.",
        maps(
            every("cifar10-lenet", FAST[0], ways=cosine_alone),
            accuracy,
            rps("grad", 16),
            insertion_game("grad"),
            attacked_game("grad"),
            what=RISING,
        ),
        took={"small": Took(76)},
    ),
)

register_all("joo2023", EXPERIMENTS)
