"""How an agent shops that knows only what it has seen, and how far a state is from a purchase that fits."""

from collections.abc import Iterator, Set
from itertools import count

from engine.environments.webshop.catalogue import Product
from engine.environments.webshop.shop import PAGE, Order, Shop, ShopState
from engine.spec.message import AssistantMessage, ToolRequest

FOREVER = 10**6


def calling(name: str, **arguments: object) -> AssistantMessage:
    return AssistantMessage.calling(name, arguments)


def purchase(shop: Shop) -> list[AssistantMessage]:
    """Every call up to the purchase: pages of the plain query, and on each the products that may fit, in order."""
    return list(_calls(shop))


def _calls(shop: Shop) -> Iterator[AssistantMessage]:
    order = shop.order
    found = shop.catalogue.found(order.query)
    for page in count(1):
        yield calling("search", query=order.query) if page == 1 else calling("search", query=order.query, page=page)
        here = found[(page - 1) * PAGE : page * PAGE]
        assert here, "an order can be filled from the results of its plain query"
        for product in sorted((product for product in here if may_fit(order, product)), key=lambda p: unseen(order, p)):
            yield calling("open", product=product.id)
            if order.fits(product):
                yield from (calling("choose", option=option, value=value) for option, value in order.options)
                yield calling("buy")
                return


def may_fit(order: Order, product: Product) -> bool:
    """Return whether its line among the results leaves open, or says, that it fits."""
    affordable = product.price <= order.limit
    return (
        affordable and product.category == order.category and unseen(order, product) <= len(product.hidden_attributes)
    )


def unseen(order: Order, product: Product) -> int:
    """How many of the attributes that are asked for its title does not name."""
    return len(set(order.attributes) - set(product.title.split()))


def calls_left(shop: Shop, state: ShopState) -> int:
    """The least number of calls to a purchase that fits, once such a product is at hand; else ``FOREVER``."""
    products, order = shop.catalogue.products, shop.order
    from_page = [2 + len(order.options) for number in state.shown if order.fits(products[number])]
    here = []
    if state.product is not None and order.fits(products[state.product]):
        here = [1 + len(set(order.options) - set(state.chosen)) + _stray_surcharge(shop, state)]
    return min([*from_page, *here], default=FOREVER)


def _stray_surcharge(shop: Shop, state: ShopState) -> int:
    """1 where a chosen value that nobody asked for makes the open product too dear: it has to be opened anew."""
    assert state.product is not None, "a product is open"
    product = shop.catalogue.products[state.product]
    kept = [pair for pair in state.chosen if pair[0] not in dict(shop.order.options)]
    return int(product.price_with([*kept, *shop.order.options]) > shop.order.limit)


def helped(
    shop: Shop, before: ShopState, request: ToolRequest, after: ShopState, seen: Set[tuple[str, int]], *, bought: bool
) -> bool:
    """Whether a call that worked brought a purchase that fits nearer, or looked where one had to look.

    ``seen``: by what call (``search``, ``open``) which products were seen before.
    """
    if request.name == "buy":
        return bought
    if calls_left(shop, after) < calls_left(shop, before):
        return True
    products, order = shop.catalogue.products, shop.order
    if request.name == "search":
        listed = (products[number] for _, number in seen_by(request, after) - seen)
        return calls_left(shop, before) == FOREVER and any(product.category == order.category for product in listed)
    opened = [products[number] for name, number in seen_by(request, after) - seen if name == "open"]
    return any(may_fit(order, product) for product in opened)


def seen_by(request: ToolRequest, after: ShopState) -> set[tuple[str, int]]:
    """The products that a call showed, with its name."""
    match request.name:
        case "search":
            return {("search", number) for number in after.shown}
        case "open" if after.product is not None:
            return {("open", after.product)}
    return set()
