"""webshop: find the product that an instruction describes, choose its options, and buy it.

The products are in catalogue, the orders in tasks, the rules in shop, the demonstrator in shopper.
"""

from collections.abc import Sequence
from functools import lru_cache
from random import Random

from engine.environments.contract import JudgeVerdict, Manner
from engine.environments.tool_world import GIVES_UP_AT_ONCE, ActionResult, ToolEnvironment, ToolSimulation
from engine.environments.webshop.catalogue import catalogue_of
from engine.environments.webshop.shop import TOOLS, Shop, ShopState
from engine.environments.webshop.shopper import calling, helped, purchase, seen_by
from engine.environments.webshop.tasks import order_of
from engine.spec.environment import Webshop
from engine.spec.message import AssistantMessage, ToolRequest, ToolSchema
from engine.spec.run import Dataset
from engine.spec.trajectory import Split, Task, ToolCall


class WebshopEnvironment(ToolEnvironment[ShopState]):
    def __init__(self, environment: Webshop, dataset: Dataset) -> None:
        super().__init__(environment.levels, dataset)
        self._partial_credit = environment.partial_credit

    def tools(self, task: Task) -> Sequence[ToolSchema]:
        return TOOLS

    def simulation(self, split: Split, number: int, level: int) -> "WebshopSimulation":
        seed = self._dataset.seed
        return WebshopSimulation(Shop(catalogue_of(seed), _order(seed, split, number, level), self._partial_credit))


# Groups of rollouts ask for one order many times.
_order = lru_cache(maxsize=4096)(order_of)


class WebshopSimulation(ToolSimulation[ShopState]):
    def __init__(self, shop: Shop) -> None:
        self.shop = shop

    @property
    def question(self) -> str:
        return self.shop.order.text

    @property
    def answer(self) -> str:
        """The calls of the demonstrator."""
        requests = [message.requests[0] for message in purchase(self.shop)]
        return "; ".join(f"{request.name} {request.text}" for request in requests)

    @property
    def first(self) -> ShopState:
        return ShopState()

    def called(self, state: ShopState, request: ToolRequest) -> ActionResult[ShopState]:
        return self.shop.called(state, request)

    def messages(self, manner: Manner, rng: Random) -> list[AssistantMessage]:
        match manner:
            case "guess":
                return self._hasty(rng)
            case "solve":
                return purchase(self.shop)
            case "repair":
                return self._with_a_slip(rng)

    def judged(self, calls: Sequence[Sequence[ToolCall]], answer: str | None) -> list[JudgeVerdict]:
        """Good: a purchase that fits comes nearer, or something that may fit is looked at for the first time."""
        judged, seen = list[JudgeVerdict](), set[tuple[str, int]]()
        for of_turn in self.replayed(calls):
            good = False
            for before, request, result in of_turn:
                bought = result.done and result.success
                good |= result.legal and helped(self.shop, before, request, result.state, seen, bought=bought)
                seen |= seen_by(request, result.state)
            judged.append("good" if good else "bad")
        return judged

    def _hasty(self, rng: Random) -> list[AssistantMessage]:
        """Nothing, or the first product that comes up."""
        if rng.random() < GIVES_UP_AT_ONCE:
            return []
        first = self.shop.catalogue.found(self.shop.order.query)[0]
        return [calling("search", query=self.shop.order.query), calling("open", product=first.id), calling("buy")]

    def _with_a_slip(self, rng: Random) -> list[AssistantMessage]:
        """The purchase with a call in it that fails, after which it goes on as if nothing had happened."""
        way = purchase(self.shop)
        place = rng.randrange(len(way))
        return [*way[:place], self._slip(way[:place], rng), *way[place:]]

    def _slip(self, before: Sequence[AssistantMessage], rng: Random) -> AssistantMessage:
        if not any(message.requests[0].name == "open" for message in before):
            return calling("buy") if rng.random() < 0.5 else calling("choose", option="color", value="red")
        return calling("choose", option="color", value=rng.choice(("small", "single", "short")))
