"""The prepared catalogue: a folder of memory-mapped files that all environments of a machine share.

| file | what |
|---|---|
| `catalogue.json` | format, settings, counts, and size and sha256 of every other file |
| `products.jsonl`, `cards.txt` | products as JSON lines; what a search page shows of each |
| `product_ends.npy`, `card_ends.npy` | int64 (products,): where each ends |
| `goal_*.npy`, `prices.npy` | the columns of `GoalTable` |
| `index_*.npy` | the arrays of the search index |
| `facet_*.npy` | products by attribute, category and query |

Nothing is read before it is needed, and only the operating system's page cache holds it: 1.18 million products cost an
environment no more than a thousand do.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hgpo.envs.webshop.bm25 import Searcher, build_index, term_hash
from hgpo.envs.webshop.goals import Goal, GoalKind, GoalTable, draw_goals, make_goal
from hgpo.envs.webshop.pages import SEPARATOR, visible
from hgpo.envs.webshop.products import Product
from hgpo.envs.webshop.reward import reward_ceiling
from hgpo.errors import DataError
from hgpo.files import sha256_file, sha256_json, sha256_text, write_json

FORMAT = 1
HEADER = "catalogue.json"
RESULTS = 50
INDEX = ("term_hashes", "starts", "idf", "documents", "saturation", "id_order")
FACETS = ("hashes", "starts", "documents")
GOALS = ("product", "variant", "price_upper", "weight")
_VERIFIED_ON_OPENING = 64 * 2**20  # bytes; a larger catalogue is verified by `verify` alone


class Catalogue:
    """Products, goals and search of one prepared folder. Open it with `open_catalogue`, once per process."""

    def __init__(self, folder: str | Path) -> None:
        """Raises DataError if the folder is not a catalogue, of another format, incomplete or damaged."""
        self.folder = Path(folder)
        self.header = read_header(self.folder)
        self._check_sizes()
        if sum(entry["bytes"] for entry in self.header["files"].values()) <= _VERIFIED_ON_OPENING:
            self.verify()
        self.kind: GoalKind = self.header["goals"]
        self.page_size: int = self.header["page_size"]
        self.seed: int = self.header["seed"]
        self._products = self._map_bytes("products.jsonl")
        self._product_ends = self._map_array("product_ends")
        self._cards = self._map_bytes("cards.txt")
        self._card_ends = self._map_array("card_ends")
        columns = {name: self._map_array(f"goal_{name}") for name in GOALS}
        self.goal_table = GoalTable(**columns, prices=self._map_array("prices"))
        self._searcher = Searcher({name: self._map_array(f"index_{name}") for name in INDEX})
        self._facets = tuple(self._map_array(f"facet_{name}") for name in FACETS)
        self.product = lru_cache(maxsize=256)(self._read_product)
        self.product_hash = lru_cache(maxsize=4096)(self._hash_product)
        self.search = lru_cache(maxsize=512)(self._search)

    @property
    def content(self) -> str:
        """Hash over everything in the catalogue."""
        return self.header["content"]

    @property
    def product_count(self) -> int:
        return len(self._product_ends)

    @property
    def goal_count(self) -> int:
        return len(self.goal_table)

    def goal(self, number: int) -> Goal:
        """Goal `number` of the shuffled order. Raises DataError if there is none."""
        if not 0 <= number < self.goal_count:
            raise DataError(f"{self.folder} has goals 0 to {self.goal_count - 1}, not {number}")
        table = self.goal_table
        product = self.product(int(table.product[number]))
        return make_goal(
            product, self.kind, int(table.variant[number]), float(table.price_upper[number]),
            float(table.weight[number]),
        )  # fmt: skip

    def goal_product(self, number: int) -> int:
        """The number of the product that goal `number` asks for."""
        return int(self.goal_table.product[number])

    def price(self, product: int) -> float:
        """The price that is paid for a product."""
        return float(self.goal_table.prices[product])

    def products(self) -> Iterator[Product]:
        """All products in file order, one after the other."""
        return (self._read_product(number) for number in range(self.product_count))

    def reward_ceiling(self, number: int) -> float:
        """The best score that buying the very product of goal `number` can reach."""
        product = self.goal_product(number)
        return reward_ceiling(self.goal(number), self.product(product), self.price(product))

    def card(self, product: int) -> str:
        """What a search page shows of a product: ASIN, title, price tag."""
        start = int(self._card_ends[product - 1]) if product else 0
        return self._cards[start : int(self._card_ends[product])].decode("utf-8")

    def with_facet(self, kind: str, value: str) -> tuple[int, ...]:
        """Products, in file order, whose `kind` (attribute, category or query) is `value`."""
        hashes, starts, documents = self._facets
        key = np.uint64(_facet_hash(kind, value))
        row = int(np.searchsorted(hashes, key))
        if row == len(hashes) or hashes[row] != key:
            return ()
        return tuple(documents[starts[row] : starts[row + 1]].tolist())

    def verify(self) -> None:
        """Compares every file with its checksum. Raises DataError naming the first that differs."""
        for name, entry in self.header["files"].items():
            if not (self.folder / name).is_file():
                raise _damaged(self.folder / name, "it is missing")
            if sha256_file(self.folder / name) != entry["sha256"]:
                raise _damaged(self.folder / name, "its checksum differs")

    def _search(self, query: str) -> tuple[int, ...]:
        return tuple(self._searcher.search(query, RESULTS)[0].tolist())

    def ranking(self, query: str, limit: int = RESULTS) -> list[tuple[str, float]]:
        """(ASIN, score) of the best results, as the search engine ranks them."""
        numbers, scores = self._searcher.search(query, limit)
        return [(self.product(int(n)).asin, float(s)) for n, s in zip(numbers, scores, strict=True)]

    def _hash_product(self, number: int) -> str:
        return sha256_text(self.product(number).to_json())

    def _read_product(self, number: int) -> Product:
        start = int(self._product_ends[number - 1]) if number else 0
        try:
            return Product.from_json(self._products[start : int(self._product_ends[number])])
        except (ValueError, KeyError, TypeError) as error:
            raise _damaged(self.folder / "products.jsonl", f"product {number} cannot be read: {error}") from None

    def _check_sizes(self) -> None:
        for name, entry in self.header["files"].items():
            path = self.folder / name
            size = path.stat().st_size if path.is_file() else None
            if size != entry["bytes"]:
                found = "missing" if size is None else f"{size} bytes instead of {entry['bytes']}"
                raise _damaged(path, found)

    def _map_array(self, name: str) -> npt.NDArray[Any]:
        # A plain array over the map: np.memmap's own indexing costs several times as much.
        return np.asarray(np.load(self.folder / f"{name}.npy", mmap_mode="r", allow_pickle=False))

    def _map_bytes(self, name: str) -> mmap.mmap | bytes:
        with open(self.folder / name, "rb") as stream:
            if self.header["files"][name]["bytes"] == 0:
                return b""
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


@lru_cache(maxsize=4)
def _open(folder: Path, content: str) -> Catalogue:
    return Catalogue(folder)


def open_catalogue(folder: str | Path) -> Catalogue:
    """The catalogue of a prepared folder, the same object for all who ask in this process."""
    folder = find_catalogue(folder)
    return _open(folder.resolve(), read_header(folder)["content"])


def find_catalogue(folder: str | Path) -> Path:
    """The catalogue that is, or lies directly in, a prepared folder. Raises DataError if there is none."""
    folder = Path(folder)
    for candidate in (folder, folder / "catalogue"):
        if (candidate / HEADER).is_file():
            return candidate
    raise DataError(f"{folder} holds no prepared WebShop catalogue", "run `hgpo prepare-data` first")


def read_header(folder: Path) -> dict[str, Any]:
    """The header of a catalogue. Raises DataError if it cannot be read or is of another format."""
    path = folder / HEADER
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
        stale = header["format"] != FORMAT
        whole = header["content"] == _content(header)
    except FileNotFoundError:
        raise DataError(f"no WebShop catalogue at {folder}", "run `hgpo prepare-data` first") from None
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, f"it cannot be read: {error!r}") from None
    if stale:
        raise DataError(
            f"{path} is of format {header['format']}, this version reads {FORMAT}", "run `hgpo prepare-data` again"
        )
    if not whole:
        raise _damaged(path, "it was changed after it was written")
    return header


def write_catalogue(
    folder: Path,
    products: Iterable[Product],
    *,
    kind: GoalKind,
    seed: int,
    page_size: int,
    recipe: dict[str, Any],
) -> None:
    """Writes a catalogue into an existing, empty folder; `products` is gone through once.

    recipe: what the catalogue was made from; kept in the header.
    Raises DataError if there is no product or no goal.
    """
    product_ends, card_ends = [], []
    facets: dict[int, list[int]] = {}

    def pass_on() -> Iterable[Product]:
        with open(folder / "products.jsonl", "wb") as lines, open(folder / "cards.txt", "wb") as cards:
            for number, product in enumerate(products):
                lines.write(product.to_json().encode("utf-8"))
                product_ends.append(lines.tell())
                cards.write(SEPARATOR.join(visible(product.asin, product.title, product.price_tag)).encode("utf-8"))
                card_ends.append(cards.tell())
                for facet in _facets_of(product):
                    facets.setdefault(_facet_hash(*facet), []).append(number)
                yield product

    # The goal table wants every product first; what the index needs of each is kept aside as text on disk.
    table = draw_goals(pass_on(), seed, seed, kind)
    if not product_ends:
        raise DataError(f"there is no product to make a WebShop catalogue of ({recipe})")
    if not len(table):
        raise DataError(f"no product has a {kind} instruction ({recipe})", "check `data.webshop.goals`")
    index = build_index(_documents(folder, product_ends))
    arrays = {
        "product_ends": np.array(product_ends, np.int64),
        "card_ends": np.array(card_ends, np.int64),
        "prices": table.prices,
        **{f"goal_{name}": getattr(table, name) for name in GOALS},
        **{f"index_{name}": index[name] for name in INDEX},
        **_facet_arrays(facets),
    }
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values, allow_pickle=False)
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256_file(path)} for path in sorted(folder.iterdir())
    }
    header = {
        "format": FORMAT,
        "goals": kind,
        "seed": seed,
        "page_size": page_size,
        "recipe": recipe,
        "product_count": len(product_ends),
        "goal_count": len(table),
        "files": files,
    }
    write_json(folder / HEADER, header | {"content": _content(header)})


def _documents(folder: Path, ends: list[int]) -> Iterable[tuple[str, str]]:
    start = 0
    with open(folder / "products.jsonl", "rb") as lines:
        for end in ends:
            product = Product.from_json(lines.read(end - start))
            start = end
            yield product.asin, product.indexed_text


def _facets_of(product: Product) -> Iterable[tuple[str, str]]:
    for attribute in dict.fromkeys(product.attributes):
        yield "attribute", attribute
    yield "category", product.category
    yield "query", product.query


def _facet_hash(kind: str, value: str) -> int:
    return term_hash(f"{kind}\x1f{value}")


def _facet_arrays(facets: dict[int, list[int]]) -> dict[str, npt.NDArray[Any]]:
    keys = sorted(facets)
    lists = [np.array(facets[key], np.int32) for key in keys]
    return {
        "facet_hashes": np.array(keys, np.uint64),
        "facet_starts": np.concatenate([[0], np.cumsum([len(numbers) for numbers in lists])]).astype(np.int64),
        "facet_documents": np.concatenate(lists) if lists else np.zeros(0, np.int32),
    }


def _content(header: dict[str, Any]) -> str:
    return sha256_json({key: value for key, value in header.items() if key != "content"})


def _damaged(path: Path, what: str) -> DataError:
    return DataError(f"{path} is damaged: {what}", f"delete {path.parent} and run `hgpo prepare-data` again")
