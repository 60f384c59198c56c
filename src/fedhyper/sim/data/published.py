"""The registry of datasets: their files, the SHA-256 of each, and the addresses that serve them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedhyper.errors import UserError, did_you_mean


@dataclass(frozen=True)
class DataFile:
    """One file as it lies in the dataset's directory.

    ``sha256`` is of the content, after decompression: recompressing a ``.gz`` changes no pixel.
    ``shape`` is of the array inside: images ``(n, h, w)`` and labels ``(n,)`` in idx, ``(n,)`` records in CIFAR.
    """

    path: str
    kind: Literal["idx", "cifar", "text"]
    sha256: str
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class Download:
    """One file as its publisher serves it, with the SHA-256 of the bytes on the wire and their number."""

    path: str
    url: str
    sha256: str
    size: int


@dataclass(frozen=True)
class Dataset:
    """The files of a dataset and where to download them; ``archive`` if the one download is a tar of them."""

    name: str
    files: tuple[DataFile, ...]
    downloads: tuple[Download, ...]
    archive: bool = False


def _idx_dataset(name: str, url: str, rows: Sequence[tuple[str, tuple[int, ...], str, str, int]]) -> Dataset:
    return Dataset(
        name,
        tuple(DataFile(path, "idx", content, shape) for path, shape, content, _, _ in rows),
        tuple(Download(path, url + path, wire, size) for path, _, _, wire, size in rows),
    )


TRAIN_X, TRAIN_Y = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
TEST_X, TEST_Y = "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"
BATCHES = "cifar-10-batches-bin/"

# Where the hashes come from is written in docs/data.md.
DATASETS = {
    "mnist": _idx_dataset(
        "mnist",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        [
            (
                TRAIN_X,
                (60_000, 28, 28),
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                9_912_422,
            ),
            (
                TRAIN_Y,
                (60_000,),
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                28_881,
            ),
            (
                TEST_X,
                (10_000, 28, 28),
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                1_648_877,
            ),
            (
                TEST_Y,
                (10_000,),
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                4_542,
            ),
        ],
    ),
    "fmnist": _idx_dataset(
        "fmnist",
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        [
            (
                TRAIN_X,
                (60_000, 28, 28),
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                26_421_880,
            ),
            (
                TRAIN_Y,
                (60_000,),
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                29_515,
            ),
            (
                TEST_X,
                (10_000, 28, 28),
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                4_422_102,
            ),
            (
                TEST_Y,
                (10_000,),
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                5_148,
            ),
        ],
    ),
    "cifar10": Dataset(
        "cifar10",
        tuple(
            DataFile(BATCHES + path, "cifar", content, (10_000,))
            for path, content in [
                ("data_batch_1.bin", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
                ("data_batch_2.bin", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
                ("data_batch_3.bin", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
                ("data_batch_4.bin", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
                ("data_batch_5.bin", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
                ("test_batch.bin", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
            ]
        ),
        (
            Download(
                "cifar-10-binary.tar.gz",
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                170_052_171,
            ),
        ),
        archive=True,
    ),
    "shakespeare": Dataset(
        "shakespeare",
        (DataFile("input.txt", "text", "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"),),
        (
            Download(
                "input.txt",
                "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
                "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
                1_115_394,
            ),
        ),
    ),
}


def dataset(name: str) -> Dataset:
    """The registered dataset of this name."""
    if name not in DATASETS:
        raise UserError(f"there is no dataset {name!r}; {did_you_mean(name, DATASETS)}")
    return DATASETS[name]
