"""A scripted shopper for demonstrations.

It searches with words of the instruction alone, as an agent must; it looks into the environment only to recognise the
right product among the results, and its options.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hgpo.envs.base import Observation
from hgpo.envs.webshop.environment import WebshopEnvironment
from hgpo.envs.webshop.pages import BUTTONS
from hgpo.envs.webshop.products import Product
from hgpo.envs.webshop.reward import matched_options
from hgpo.tasks import Task

PAGES = 5
_PRICE = re.compile(r",? and price lower than \d+\.\d\d dollars$")


class WebshopExpert:
    """Search, turn pages until the product shows, open it, choose each option, buy.

    Queries, in this order: what is wanted without options and price; the same with options; the title's words.
    If none shows the product within five pages, the first product at hand is bought, which seldom wins.
    What to do next follows from where the environment is, so that it finds its way back after any other action.
    """

    def __init__(self, environment: WebshopEnvironment) -> None:
        self.environment = environment

    def begin(self, task: Task, observation: Observation) -> None:
        environment = self.environment
        self._wanted = environment.catalogue.goal_product(environment.goal_number)
        title = environment.catalogue.product(self._wanted).title
        self._queries = search_words(observation.goal, title)
        self._failed: set[str] = set()

    def act(self, observation: Observation) -> str:
        environment = self.environment
        page = environment.page
        untried = [query for query in self._queries if query.lower() not in self._failed]
        if page.has_search_bar:
            return f"search[{(untried or self._queries)[0]}]"
        if page.kind == "results":
            return self._on_results(page.products, untried)
        if page.kind != "item":
            return "click[< prev]"
        if environment.product == self._wanted:
            return self._on_product(environment.catalogue.product(self._wanted))
        return "click[< prev]" if untried else "click[buy now]"

    def idle(self, observation: Observation) -> tuple[str, ...]:
        """Reading about a product, before its options are chosen: what has been clicked is not shown again."""
        if self.environment.options:
            return ()
        return tuple(a for a in ("click[description]",) if a in observation.admissible)

    def _on_results(self, links: Mapping[str, int], untried: list[str]) -> str:
        for text, product in links.items():
            if product == self._wanted:
                return f"click[{text}]"
        environment = self.environment
        if len(links) == environment.catalogue.page_size and environment.page_number < PAGES and untried:
            return "click[next >]"
        self._failed.add(environment.query)
        if links and not [query for query in untried if query.lower() != environment.query]:
            return f"click[{next(iter(links))}]"
        return "click[back to search]"

    def _on_product(self, product: Product) -> str:
        environment = self.environment
        for name, values in product.options.items():
            value = best_value(environment.goal.options, name, values)
            settable = value is not None and environment.page.options[value] == name and value not in BUTTONS
            if settable and environment.options.get(name) != value:
                return f"click[{value}]"
        return "click[buy now]"


def search_words(instruction: str, title: str) -> list[str]:
    """Queries for an instruction, the shortest first."""
    text = _PRICE.sub("", instruction)
    text = re.sub(r"^find me ", "", text, flags=re.IGNORECASE)
    short = re.sub(r" with (?:(?! with )[^:])*: .*$", "", text)
    queries = [short, text, title]
    return [query for query in dict.fromkeys(queries) if query.strip()]


def best_value(wanted: tuple[Any, ...], name: str, values: tuple[str, ...]) -> str | None:
    """The value to choose of one option: the goal's own, else one that meets a wish of the goal, else none."""
    for option in wanted:
        if isinstance(option, tuple) and option[0] == name and option[1] in values:
            return option[1]
    texts = [option for option in wanted if isinstance(option, str)]
    fitting = [value for value in values if value in texts]
    fitting = fitting or [value for value in values if matched_options(texts, [value])]
    return fitting[0] if fitting else None
