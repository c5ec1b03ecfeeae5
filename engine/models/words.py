"""The words that a vocabulary adds to the characters, each one token.

Their order is their ids', by which weights know them: new words go to the end of their list, and none ever goes.
They are those of the world of that name (engine/environments), which may grow apart.
Digits stay characters where they are numbers; the number of a thing (`` 1``) belongs to its name and is a word.
"""

from engine.spec.environment import Vocabulary

_RECEPTACLES = (
    "countertop", "table", "shelf", "sofa", "desk", "sinkbasin", "cabinet", "drawer", "fridge", "microwave",
)  # fmt: skip
_OBJECTS = (
    "apple", "egg", "tomato", "potato", "bread", "mug", "plate", "pan", "book", "pen", "soap", "vase", "desklamp",
)  # fmt: skip
_NUMBERS = (" 1", " 2", " 3")
_PHRASES = (
    "go to ", "open ", "close ", "take ", " from ", "put ", "move ", " in ", " on ", " to ",
    "heat ", "cool ", "clean ", "hot ", " with ", "use ", "examine ", "inventory", "look",
    "You see ", ". Your task: ", "two ", " under ", "In ", ": ", "nothing", ", ", "; ", ". ",
    " is closed", "You ", ". You can: ", "carry ", " is ", "Nothing happens.", "done",
)  # fmt: skip

_WEBSHOP = (
    'search {"query": "', '", "page": ', 'open {"product": ', 'choose {"option": "', '", "value": "', "buy {}",
    '"}', "buy ", ", price up to ", "page ", " of ", "also ", ": ", ", ", " (+4)", "price", "bought", "done",
    "nothing found", "the last page is ", "not on this page", "no product is open", "no such option",
    "Alto", "Borel", "Corva", "Dunmore", "Estel", "Fenwick", "Galden", "Harlow", "Ister", "Jorvik",
    "Kelso", "Lumen", "Marlow", "Nordal", "Orion", "Penrose",
    "shoes", "jacket", "shirt", "socks", "kettle", "pan", "mug", "knife",
    "headphones", "speaker", "lamp", "charger", "chair", "hose", "pot", "gloves",
    "waterproof", "warm", "light", "soft", "breathable", "washable",
    "steel", "nonstick", "durable", "compact", "insulated", "stackable",
    "wireless", "rechargeable", "portable", "quiet", "bright", "fast",
    "foldable", "wooden", "sturdy", "rustproof", "padded", "handmade",
    "color", "size", "pack", "cable", "red", "blue", "green", "black", "white",
    "small", "medium", "large", "single", "double", "family", "short", "long", "coiled",
)  # fmt: skip

_SEARCH_QA = (
    'search {"query": "', 'open {"document": ', '"}', "what is ", "who was born first, ", "which was founded first, ",
    " or ", "the birthplace of ", "the employer of ", "the birth year of ", "the country of ", "the founding year of ",
    "the founder of ", "the seat of ", "the author of ", "the printing year of ", "the capital of ", "the currency of ",
    " was born in ", " in ", " and works for ", " works for ", ". Born: ", ", ", " is a city in ", ", founded in ",
    "Founded in ", " lies in ", "The capital of ", " is ", ". Its currency is the ", " pays with the ",
    ". Its capital is ", " was founded in ", " by ", ". Its seat is ", " founded ", " is a book by ", ", printed in ",
    "Printed in ", "nothing found", "no such document", "done",
    "Mora", "Kan", "Bel", "Tor", "Sil", "Ra", "Vel", "Dun", "Pol", "Gri", "Hal", "Les",
    "Nor", "Wen", "Zal", "Cer", "Fin", "Jas", "Lor", "Mel",
    "tel", "osa", "ut", "mar", "vik", "den", "ria", "lo", "san", "gat", "mir", "pek", "ston", "ula", "bor", "nes",
    "land", "Works", "Mills", "Press", "Lines",
    "Ada", "Ben", "Cleo", "Dara", "Emil", "Faye", "Gus", "Hana", "Ivo", "June", "Karl", "Lena",
    "Milo", "Nina", "Otto", "Pia",
    "Silver", "Quiet", "Hidden", "Golden", "Broken", "Distant", "Winter", "Paper", "Hollow", "Crimson",
    "River", "Garden", "Letter", "Mirror", "Harbor", "Orchard", "Signal", "Lantern", "Bridge", "Meadow",
    "crown", "florin", "shell", "ducat", "mark", "thaler", "pearl", "bead", "groat", "talon", "obol", "ryal",
)  # fmt: skip

_APPS = (
    'call {"api": "', '", "arguments": {"token": "', '", "arguments": {"password": "', '", "arguments": {', '"}}',
    "}}", '", "id": ', '", "page": ', '", "day": "', '", "hour": ', '", "title": "', '", "text": "', '", "path": "',
    '", "to": "', '", "subject": "', '", "amount": ', '", "note": "', '", "phone": "', ', "phone": "', ', "day": "',
    ', "hour": ', ', "title": "', ', "text": "', ', "note": "', ', "to": "', '{"token": "', '"}', '{"rows": [',
    '{"id": ', '"}, {"id": ', '"}], "next": ', '], "next": ', "null}", "}, ", '", "name": "', ', "name": "',
    '", "relation": "', '", "email": "', ', "from": "', '{"from": "', '{"title": "', ', "path": "', ', "amount": ',
    '"updated"', '"moved"', '"edited"', '"sent"', '"written"', '"added"', "contacts", "calendar", "mail", "files",
    "payments", "notes", ".login", ".search", ".read", ".update", ".delete", ".list", ".add", ".move", ".send",
    ".find", ".write", ".edit", ".balance", "error: ", "no token of ", ": log in first",
    "no such api; list_apis shows what there is", " is missing", "is missing", " is not an argument", "; ", "password",
    "token", "text", "page", "id", "day", "hour", "title", "path", "to", "subject", "amount", "note", "phone", "done",
    "password ", ". ", "set the phone of ", " to ", "move ", " on ", "set the note ", " to: ",
    "how much did i pay for ", "? answer with the number.", ", subject ", ": ", "pay ", " for ",
    "add the event of the mail ", " to the calendar.", "save the note ", " as the file ", "pay what ",
    " says, and mail the payee, subject paid: the purpose.", "add the event of ",
    ", and mail its guest, subject the title: the day.", "pay its sender what the mail ",
    " asks, and note the purpose as ", " with ", " at ", "my ", "paid", "555-", ".txt", "export", "Ada", "Ben", "Cleo",
    "Dara", "Emil", "Faye", "Gus", "Hana", "Brook", "Stone", "Field", "Marsh", "Lake", "Hill", "Wood", "Frost",
    "brook", "stone", "field", "marsh", "lake", "hill", "wood", "frost", "post.net", "mail.org", "dentist", "sister",
    "boss", "landlord", "coach", "neighbor", "lawyer", "tutor", "dinner", "yoga", "standup", "lunch", "review",
    "concert", "invitation", "reminder", "receipt", "update", "question", "minutes", "offer", "thanks", "forms",
    "garden", "garden plan", "shopping", "books", "books to buy", "travel", "ideas", "buy milk", "call back",
    "bring the keys", "water the roses", "all is fine", "pack the tent", "see page two", "bills", "agenda", "packing",
    "recipes", "journal", "backup", "rent", "tickets", "groceries", "gift", "repair", "taxi", "monday", "tuesday",
    "wednesday", "thursday", "friday",
)  # fmt: skip

WORDS_OF_VOCABULARY: dict[Vocabulary, tuple[str, ...]] = {
    "characters": (),
    "household": (*_RECEPTACLES, *_OBJECTS, *_NUMBERS, *_PHRASES),
    "sokoban": ("up", "down", "left", "right", "Nothing happens.", "done"),
    "webshop": _WEBSHOP,
    "search-qa": _SEARCH_QA,
    "apps": _APPS,
}
