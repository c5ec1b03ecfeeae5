"""The losses of a recipe, one module each; ``composition`` puts together those that a recipe asks for."""
