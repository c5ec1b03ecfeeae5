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
    "webshop": {
        1: (
            "buy compact kettle, price up to 33.",
            "buy padded chair, price up to 43.",
            "buy soft socks, price up to 15.",
        ),
        2: (
            "buy compact nonstick kettle, color black, pack family, price up to 50.",
            "buy rustproof chair, color white, pack family, price up to 74.",
            "buy sturdy wooden pot, color black, pack family, price up to 59.",
        ),
        3: (
            "buy handmade foldable pot, color green, pack family, price up to 35.",
            "buy stackable compact pan, color blue, pack single, price up to 37.",
            "buy stackable insulated pan, color green, pack single, price up to 54.",
        ),
    },
    "search-qa": {
        1: (
            "what is the birthplace of the founder of Norula Works?",
            "what is the country of the seat of Finbor Lines?",
            "what is the currency of the country of Kanden?",
        ),
        2: (
            "who was born first, Faye Tormir or Gus Kanston?",
            "which was founded first, Polmir Works or Torlo Mills?",
            "what is the capital of the country of the seat of Melnes Lines?",
        ),
        3: (
            "what is the currency of the country of the birthplace of the author of Hollow Harbor?",
            "which was founded first, the seat of Lesria Mills or the capital of Finmarland?",
            "which was founded first, the capital of Melmarland or the capital of Rarialand?",
        ),
    },
    "apps": {
        1: (
            "password 5706. set the note garden to: all is fine.",
            "password 4049. set the phone of my dentist to 555-7734.",
            "password 2008. set the note travel to: pack the tent.",
        ),
        2: (
            "password 5869. mail my landlord, subject thanks: bring the keys.",
            "password 5016. save the note travel as the file export.txt.",
            "password 5852. mail Ben Frost, subject invitation: pack the tent.",
        ),
        3: (
            "password 7685. pay what packing.txt says, and mail the payee, subject paid: the purpose.",
            "password 7719. add the event of recipes.txt, and mail its guest, subject the title: the day.",
            "password 6098. pay its sender what the mail reminder asks, and note the purpose as garden plan.",
        ),
    },
}
"""Per environment and level, the first training questions of the default dataset, among the default levels or alone."""
