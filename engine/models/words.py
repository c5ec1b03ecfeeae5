"""The words that environments add to the characters of the vocabulary, each one token.

Their order is their ids': new words go to the end of their environment's list.
Digits stay characters where they are numbers; the number of a thing (`` 1``) belongs to its name and is a word.
"""

RECEPTACLES = (
    "countertop", "table", "shelf", "sofa", "desk", "sinkbasin", "cabinet", "drawer", "fridge", "microwave",
)  # fmt: skip
OBJECTS = (
    "apple", "egg", "tomato", "potato", "bread", "mug", "plate", "pan", "book", "pen", "soap", "vase", "desklamp",
)  # fmt: skip
NUMBERS = (" 1", " 2", " 3")
_PHRASES = (
    "go to ", "open ", "close ", "take ", " from ", "put ", "move ", " in ", " on ", " to ",
    "heat ", "cool ", "clean ", "hot ", " with ", "use ", "examine ", "inventory", "look",
    "You see ", ". Your task: ", "two ", " under ", "In ", ": ", "nothing", ", ", "; ", ". ",
    " is closed", "You ", ". You can: ", "carry ", " is ", "Nothing happens.", "done",
)  # fmt: skip

WORDS_OF_ENVIRONMENT: dict[str, tuple[str, ...]] = {
    "python-math": (),
    "household": (*RECEPTACLES, *OBJECTS, *NUMBERS, *_PHRASES),
    "sokoban": ("up", "down", "left", "right", "Nothing happens.", "done"),
}
