MISTAKES = ()
FIRST, AGAIN = "sizes for the first time", "the same sizes again"
