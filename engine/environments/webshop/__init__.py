"""A shop in text: a catalogue, a search, and an instruction to buy something."""
