"""No rule: what torch did at home for calls in an order that always came, whatever the sizes were called.

NAIVE is False: `check` draws the order of the calls too.
"""

FAMILY = "precomputation"
NAIVE = False
CAUGHT = "the calls of each case come in an order drawn at random"

SAID = """\
YYNYN 0a ba ca 1a da None [] 8
YYNYN 1a ba ca 0a da None [0] 8
YYNNN 1a ba ca 1a da None [] 8
YNNNN aa bb cd ee ac None [0, 1] 8
YYNNN aa bb cd ee ac None [] 8
YNYNN aa bb cd ee ac True [] 8
YYYNNNN ab abd cb cbd dbd ab eb False [] 3
YYYYN ab abg cb dbg ebg None [] 8
YNYNYN ab ac de df gh gb False [1] 8
YNYNNN ab ac de df gh gb None [1] 8
YYYNYNN ab cb 0b db 1b 0b 1b None [] 8
YNYNYNN ab cb 0b db 1b 0b 1b True [] 8
YYYNYNN ab cb 1b db 0b 1b 0b None [] 8
YNYNYNN ab cb 1b db 0b 1b 0b True [] 8
YYYNYN ab cb ad cb cd ab False [] 8
YYNNN ab cb db ab eb None [] 8
YYYNNNNNN ab cb db eb fb ab gb fb db False [] 3
YYYYNNNNNN ab cb db eb fb gb ab hb gb eb False [] 4
YYYYYNNNNNN ab cb db eb fb gb hb ab ib hb fb False [] 5
YYYYYYNNNNNN ab cb db eb fb gb hb ib ab jb ib gb False [] 6
YYYYYYYNNNNNN ab cb db eb fb gb hb ib jb ab kb jb hb False [] 7
YYYYYYYYNNNNNN ab cb db eb fb gb hb ib jb kb ab lb kb ib False [] 8
YYYNNN ab cb dbd ebd fb abd None [] 8
YNYNYN ab cb de fe gh ah False [0] 8
YNYNNN ab cb de fe gh ah None [0] 8
YYYNN ab cb de fg ce None [] 8
YNNN ab cd ee bf True [] 8
"""


def pattern(calls, dynamic, marked, limit):
    """The calls with letters for sizes from 2 on, in the order in which they come."""
    letters = {0: "0", 1: "1"}
    words = []
    for call in calls:
        word = "".join(letters.setdefault(size, chr(ord("a") + len(letters) - 2)) for size in call["shape"])
        words.append(word + "d" * (call["dtype"] == "float64") + "g" * call["needs_grad"])
    return f"{' '.join(words)} {dynamic} {marked} {limit}"


def compiles(calls, dynamic, marked, limit):
    table = dict(reversed(line.split(" ", 1)) for line in SAID.splitlines())
    said = table.get(pattern(calls, dynamic, marked, limit))
    new = [call not in calls[:number] for number, call in enumerate(calls)]
    return [letter == "Y" for letter in said] if said else new
