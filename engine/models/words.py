"""The words that a vocabulary adds to the characters, each one token.

Their order is their ids', by which weights know them: new words go to the end of their list, and none ever goes.
The household's are those of the world of that name (engine/environments/household_tasks.py), which may grow apart.
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

WORDS_OF_VOCABULARY: dict[Vocabulary, tuple[str, ...]] = {
    "characters": (),
    "household": (*_RECEPTACLES, *_OBJECTS, *_NUMBERS, *_PHRASES),
    "sokoban": ("up", "down", "left", "right", "Nothing happens.", "done"),
}
