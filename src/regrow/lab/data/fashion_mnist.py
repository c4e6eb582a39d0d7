"""Clothes, as MNIST has digits (Xiao et al., 2017)."""

from typing import ClassVar

from regrow.lab.config.component import component
from regrow.lab.data import idx
from regrow.lab.data.recipe import Fetched, Recipe
from regrow.lab.data.sources import debian_package, web_gzips

RECIPE = Recipe(
    digests={
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
    sources=(
        web_gzips("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com", idx.FILES),
        debian_package("dataset-fashion-mnist", idx.FILES),
    ),
    read_train=idx.read_train,
    read_test=idx.read_test,
    test_files=idx.TEST_FILES,
    mean=(0.2860 * 255,),
    std=(0.3530 * 255,),
)


@component
class FashionMNIST(Fetched):
    """60,000 grey images of 28 x 28 to train on, 10,000 to test."""

    name: ClassVar[str] = "fashion_mnist"
    title: ClassVar[str] = "Fashion-MNIST"
    recipe: ClassVar[Recipe] = RECIPE
