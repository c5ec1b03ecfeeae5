"""Questions that a policy is asked, for people who have not started a run yet; tests hold them."""

EXAMPLE_QUESTIONS: dict[str, dict[int, tuple[str, ...]]] = {
    "python-math": {
        1: ("42*63=?", "623-161=?", "923+821=?"),
        2: ("(78+39)*(98-28)=?", "18*44+41*67=?", "(90+85)*57=?"),
        3: ("cell d*cell g+41=?", "cell d*cell a-57=?", "cell c*cell a+14=?"),
        4: ("cell d*cell f+cell a=?", "cell g*cell b-cell h=?", "cell a*cell d+cell b=?"),
    },
    "household": {
        1: (
            "You see sofa 1, sinkbasin 1, shelf 1. Your task: put pen in sofa.",
            "You see sofa 1, sinkbasin 1, countertop 1. Your task: put soap in sinkbasin.",
            "You see table 1, desk 1, shelf 1. Your task: put apple in table.",
        ),
        2: (
            "You see microwave 1, fridge 1, cabinet 1, sinkbasin 1. Your task: examine egg under desklamp.",
            "You see cabinet 1, table 1, microwave 1, drawer 1. Your task: put vase in microwave.",
            "You see drawer 1, cabinet 1, microwave 1, fridge 1. Your task: put pan in fridge.",
        ),
        3: (
            "You see sofa 1, sinkbasin 1, sofa 2, fridge 1. Your task: put clean tomato in fridge.",
            "You see table 1, sinkbasin 1, fridge 1, fridge 2. Your task: put cool apple in sinkbasin.",
            "You see shelf 1, sinkbasin 1, fridge 1, shelf 2. Your task: put clean pan in shelf.",
        ),
        4: (
            "You see drawer 1, microwave 1, sofa 1, desk 1, fridge 1. Your task: put two plate in drawer.",
            "You see sofa 1, table 1, cabinet 1, desk 1, sofa 2. Your task: put two pan in table.",
            "You see fridge 1, sofa 1, sofa 2, countertop 1, desk 1. Your task: put two book in sofa.",
        ),
        5: (
            "You see sofa 1, shelf 1, shelf 2, table 1, sinkbasin 1, fridge 1, fridge 2. "
            "Your task: examine apple under desklamp.",
            "You see fridge 1, countertop 1, fridge 2, desk 1, countertop 2, desk 2, desk 3. "
            "Your task: put two egg in countertop.",
            "You see table 1, desk 1, desk 2, drawer 1, microwave 1, desk 3, shelf 1. "
            "Your task: put hot apple in desk.",
        ),
    },
    "sokoban": {
        1: (
            "######\n#___@#\n##__$#\n#____#\n##__.#\n######",
            "######\n#._$_#\n#__@_#\n#____#\n##___#\n######",
            "######\n#_$_.#\n#@___#\n#___##\n#___##\n######",
        ),
        2: (
            "######\n#____#\n####_#\n#_$@.#\n#____#\n######",
            "######\n#____#\n###_.#\n#@$__#\n#_#__#\n######",
            "######\n#@___#\n#_$_##\n#____#\n#._#_#\n######",
        ),
        3: (
            "######\n#.___#\n#_$@_#\n#$___#\n#___.#\n######",
            "######\n#.@__#\n#___##\n#_$__#\n#_$.##\n######",
            "######\n#_$_.#\n#__$_#\n#____#\n#_.@_#\n######",
        ),
    },
}
"""Per environment and level, the first training questions of the default dataset, among the default levels or alone."""
