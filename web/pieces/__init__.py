"""The interactive pieces of the notebooks and of the page: each is an ES module, with Python code that computes its data."""
