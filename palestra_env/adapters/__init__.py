"""Environments of other libraries, played by the libraries themselves, whose rewards are read as they give them."""
