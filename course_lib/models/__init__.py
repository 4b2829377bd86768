"""Small models that lessons take apart, written here, with random weights."""
