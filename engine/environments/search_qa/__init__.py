"""Questions over the documents of an invented world, which have to be searched and read."""
