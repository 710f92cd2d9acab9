"""A page on which depth is a dial: served here, or one file that runs the model by itself."""
