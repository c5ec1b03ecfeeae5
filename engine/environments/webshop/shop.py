"""The rules of webshop: what a call shows, and what a purchase is worth.

After WebShop (arXiv:2207.01206): its search, pages, options and graded reward, over a catalogue of our own.
"""

from dataclasses import dataclass, replace

from engine.environments.tool_schemas import short_text, tool
from engine.environments.tool_world import ActionResult
from engine.environments.webshop.catalogue import DEPARTMENTS, SURCHARGE, Catalogue, Product
from engine.spec.message import ToolRequest

PAGE = 5
"""Products on a page of results."""
SAME_DEPARTMENT = 0.5
"""What another kind of product of the same department is worth, of what the right kind is."""
MATCH = "match"
"""The component that a purchase which is not right is paid."""


TOOLS = (
    tool(
        "search",
        f"Searches the catalogue and shows a page of {PAGE} products: number, title, price.",
        {"query": short_text()},
        {"page": {"type": "integer", "minimum": 1}},
    ),
    tool("open", "Opens a product of the page of results.", {"product": {"type": "integer"}}),
    tool(
        "choose", "Chooses a value of an option of the open product.", {"option": short_text(), "value": short_text()}
    ),
    tool("buy", "Buys the open product with the chosen options, which ends the task."),
)


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be bought."""

    category: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    limit: int
    """The price with its options is at most this."""

    @property
    def query(self) -> str:
        return " ".join([*self.attributes, self.category])

    @property
    def text(self) -> str:
        chosen = "".join(f", {option} {value}" for option, value in self.options)
        return f"buy {self.query}{chosen}, price up to {self.limit}."

    def fits(self, product: Product) -> bool:
        """Return whether buying it, with the options that are asked for, is all that is asked."""
        offered = all(product.offers(*option) for option in self.options)
        return offered and share_matched(self, product, self.options) == 1.0


@dataclass(frozen=True, slots=True)
class ShopState:
    shown: tuple[int, ...] = ()
    """The products of the page of results, which stays at hand behind an open product."""
    product: int | None = None
    """The open one."""
    chosen: tuple[tuple[str, str], ...] = ()


def share_matched(order: Order, product: Product, chosen: tuple[tuple[str, str], ...]) -> float:
    """WebShop's reward: of attributes, options and price those that fit, times how well the kind of product does."""
    wanted = set(order.attributes), set(order.options)
    matched = len(wanted[0] & set(product.attributes)) + len(wanted[1] & set(chosen))
    affordable = product.price_with(chosen) <= order.limit
    return _kind_matched(order, product) * (matched + affordable) / (len(wanted[0]) + len(wanted[1]) + 1)


def _kind_matched(order: Order, product: Product) -> float:
    if product.category == order.category:
        return 1.0
    return SAME_DEPARTMENT if order.category in DEPARTMENTS[product.department].categories else 0.0


@dataclass(frozen=True, slots=True)
class Shop:
    catalogue: Catalogue
    order: Order
    partial_credit: bool

    def called(self, state: ShopState, request: ToolRequest) -> ActionResult[ShopState]:
        arguments = request.arguments
        match request.name:
            case "search":
                return self._searched(state, arguments["query"], int(arguments.get("page", 1)))
            case "open":
                return self._opened(state, int(arguments["product"]))
            case "choose":
                return self._chosen(state, arguments["option"], arguments["value"])
            case _:
                return self._bought(state)

    def _searched(self, state: ShopState, query: str, page: int) -> ActionResult[ShopState]:
        found = self.catalogue.found(query)
        if not found:
            return ActionResult(state, "nothing found", "value")
        pages = -(-len(found) // PAGE)
        if page > pages:
            return ActionResult(state, f"the last page is {pages}", "index")
        here = found[(page - 1) * PAGE : page * PAGE]
        lines = [f"{product.id} {product.title}, {product.price}" for product in here]
        return ActionResult(
            ShopState(tuple(product.id for product in here)), f"page {page} of {pages}\n" + "\n".join(lines)
        )

    def _opened(self, state: ShopState, number: int) -> ActionResult[ShopState]:
        if number not in state.shown:
            return ActionResult(state, "not on this page", "illegal")
        return ActionResult(ShopState(state.shown, number), page_of(self.catalogue.products[number]))

    def _chosen(self, state: ShopState, option: str, value: str) -> ActionResult[ShopState]:
        product = self._open_product(state)
        if product is None:
            return ActionResult(state, "no product is open", "illegal")
        if not product.offers(option, value):
            return ActionResult(state, "no such option", "value")
        others = tuple(pair for pair in state.chosen if pair[0] != option)
        after = replace(state, chosen=(*others, (option, value)))
        return ActionResult(after, f"{option} {value}, price {product.price_with(after.chosen)}")

    def _bought(self, state: ShopState) -> ActionResult[ShopState]:
        product = self._open_product(state)
        if product is None:
            return ActionResult(state, "no product is open", "illegal")
        share = share_matched(self.order, product, state.chosen)
        partial = {MATCH: share} if self.partial_credit and share < 1 else {}
        return ActionResult(state, "bought", done=True, success=share == 1, components=partial)

    def _open_product(self, state: ShopState) -> Product | None:
        return None if state.product is None else self.catalogue.products[state.product]


def page_of(product: Product) -> str:
    """The page of a product: what its title does not say, and its options."""
    lines = [f"{product.id} {product.title}, {product.price}", f"also {', '.join(product.hidden_attributes)}"]
    for option, values in product.options:
        priced = [f"{value} (+{SURCHARGE})" if (option, value) == product.surcharged else value for value in values]
        lines.append(f"{option}: {', '.join(priced)}")
    return "\n".join(lines)
