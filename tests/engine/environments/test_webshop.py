from dataclasses import replace

import pytest

from engine.environments.webshop.catalogue import PRODUCTS, Product, catalogue_of
from engine.environments.webshop.shop import PAGE, Order, share_matched
from engine.environments.webshop.tasks import order_of, split_of
from engine.spec.message import AssistantMessage
from tests.engine.environments.worlds import LEVELS, calling, play, world

LAMP = Product(
    id=1234, department="electronics", category="lamp", brand="Alto", attributes=("bright", "quiet", "fast"),
    price=40, options=(("color", ("red", "blue")), ("cable", ("short", "long"))), surcharged=("cable", "long"),
)  # fmt: skip
ORDER = Order("lamp", ("bright", "fast"), (("color", "red"), ("cable", "long")), limit=44)
CHOSEN = (("color", "red"), ("cable", "long"))


@pytest.mark.parametrize(
    ("product", "chosen", "share"),
    [
        (LAMP, CHOSEN, 1.0),
        (LAMP, (), 3 / 5),
        (LAMP, (("color", "blue"), ("cable", "long")), 4 / 5),
        (replace(LAMP, price=41), CHOSEN, 4 / 5),
        (replace(LAMP, price=41), CHOSEN[:1], 4 / 5),
        (replace(LAMP, attributes=("bright", "quiet", "portable")), CHOSEN, 4 / 5),
        (replace(LAMP, category="speaker"), CHOSEN, 0.5),
        (replace(LAMP, department="garden", category="chair"), CHOSEN, 0.0),
    ],
)
def test_a_purchase_is_worth_the_share_of_what_was_asked_that_fits(product, chosen, share):
    """As WebShop pays: (attributes + options + price) / asked, times how well the kind fits; by hand."""
    assert share_matched(ORDER, product, chosen) == pytest.approx(share)


def test_the_catalogue_has_so_many_products_of_distinct_numbers():
    products = catalogue_of(0).products
    assert len(products) == PRODUCTS
    assert all(product.id == number for number, product in products.items())
    assert catalogue_of(1).products != products


@pytest.mark.parametrize("level", LEVELS)
def test_the_first_result_never_fits_and_some_result_does(level):
    catalogue = catalogue_of(0)
    for number in range(200):
        order = order_of(0, "train", number, level)
        found = catalogue.found(order.query)[: (2 if level == 3 else 1) * PAGE]
        assert not order.fits(found[0])
        assert any(order.fits(product) for product in found)
        assert split_of(order) == "train"


def test_level_3_asks_for_what_no_line_of_the_results_says():
    catalogue = catalogue_of(0)
    for number in range(60):
        order = order_of(0, "train", number, 3)
        fitting = [product for product in catalogue.found(order.query)[: 2 * PAGE] if order.fits(product)]
        assert any(not set(order.attributes) <= set(product.title.split()) for product in fitting)


async def shortcut_rewards(level: int, *, place: int, choose: bool) -> list[tuple[bool, float]]:
    """The rewards of buying the product at a place of the first page, unread, with the options that were asked or
    without."""
    environment, paid = world("webshop", level), []
    for number, task in enumerate(environment.tasks("train")[:150]):
        order = order_of(0, "train", number, level)
        product = catalogue_of(0).found(order.query)[place]
        options = [calling("choose", option=option, value=value) for option, value in order.options] if choose else []
        calls = [calling("search", query=order.query), calling("open", product=product.id), *options, calling("buy")]
        rewards = (await play(environment, task, calls)).rewards
        paid.append((rewards.success, 1.0 if rewards.success else rewards.components["match"]))
    return paid


@pytest.mark.parametrize("level", LEVELS)
async def test_buying_the_first_result_never_succeeds_and_earns_less_than_three_quarters(level):
    for choose in (False, True):
        paid = await shortcut_rewards(level, place=0, choose=choose)
        assert not any(success for success, _ in paid)
        assert sum(reward for _, reward in paid) / len(paid) < 0.75


async def test_a_product_of_some_other_place_unread_is_right_in_less_than_half_of_the_tasks():
    for level in LEVELS:
        for place in (1, 4):
            paid = await shortcut_rewards(level, place=place, choose=True)
            assert sum(success for success, _ in paid) / len(paid) < (0.25 if level == 3 else 0.45)


async def test_buying_at_once_or_what_is_not_shown_is_refused_and_the_episode_goes_on():
    environment = world("webshop", 2)
    task = environment.tasks("train")[0]
    hidden = next(iter(catalogue_of(0).products))
    played = await play(
        environment,
        task,
        [
            calling("buy"),
            calling("open", product=hidden),
            calling("choose", option="color", value="red"),
            calling("search", query="zzz"),
            calling("search", query="!?"),
            calling("search", query="lamp", page=10**9),
            calling("search", query="lamp", page=0),
            calling("search", query="x" * 100_000),
            calling("search", query=3),
            calling("steal"),
            AssistantMessage("done"),
        ],
    )
    assert played.errors == [
        "illegal", "illegal", "illegal", "value", "value", "index", "arguments", "arguments", "arguments",
        "unknown-tool",
    ]  # fmt: skip
    assert not played.rewards.success
    assert dict(played.rewards.components) == {}


async def test_an_option_of_another_product_is_refused_and_the_last_choice_counts():
    environment = world("webshop", 2)
    task, order = environment.tasks("train")[0], order_of(0, "train", 0, 2)
    product = next(found for found in catalogue_of(0).found(order.query) if order.fits(found))
    option, value = order.options[0]
    other = next(name for name in dict(product.options)[option] if name != value)
    way = [calling("search", query=order.query), calling("open", product=product.id)]
    chosen = [calling("choose", option=name, value=text) for name, text in order.options]
    wrong = calling("choose", option=option, value=other)
    assert (await play(environment, task, [*way, wrong, *chosen, calling("buy")])).rewards.success
    played = await play(environment, task, [*way, *chosen, wrong, calling("buy")])
    assert not played.rewards.success
    assert 0 < played.rewards.components["match"] < 1
    refused = await play(environment, task, [*way, calling("choose", option="wheels", value="four")])
    assert refused.errors[-1] == "value"


async def test_without_partial_credit_a_wrong_purchase_is_paid_nothing():
    environment = world("webshop", 1, partial_credit=False)
    task, order = environment.tasks("train")[0], order_of(0, "train", 0, 1)
    first = catalogue_of(0).found(order.query)[0]
    way = [calling("search", query=order.query), calling("open", product=first.id), calling("buy")]
    rewards = (await play(environment, task, way)).rewards
    assert (rewards.success, dict(rewards.components)) == (False, {})


async def test_verdicts_know_a_detour_and_a_wrong_purchase():
    environment = world("webshop", 1)
    task, order = environment.tasks("train")[0], order_of(0, "train", 0, 1)
    found = catalogue_of(0).found(order.query)
    right = next(product for product in found if order.fits(product))
    way = [
        (calling("search", query=order.query), "good"),
        (calling("open", product=right.id), "good"),
        (calling("open", product=found[0].id), "bad" if found[0].price > order.limit else "good"),
        (calling("open", product=right.id), "good"),
        (calling("choose", option="color", value="plaid"), "bad"),
        (calling("search", query=order.query), "bad"),
        (calling("open", product=found[0].id), "bad"),
        (calling("buy"), "bad"),
    ]
    played = await play(environment, task, [message for message, _ in way])
    judged = environment.verdicts(task, [(call,) for call in played.calls], None)
    assert judged == [verdict for _, verdict in way]
