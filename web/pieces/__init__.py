"""The interactive pieces of the notebooks and of the page: for each an ES module, and Python that feeds it."""
