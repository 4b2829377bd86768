"""Proof of work: does a right answer come from the submission's own kernels? Pure: what was seen in, words out.

Two kinds of evidence. The trial with kernels switched off is made by the referee in the text. What the watched call
reports was gathered in the process of the student's code, which can forge it: so nothing here gives points; it takes
them away, or holds them for a person who reads the sentences below.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from autograder.exercise import Exercise
from autograder.judging import ptx
from autograder.judging.verdict import CaseVerdict

# Memory, views, copies and fills, and the queries that come with them. Triton's interpreter itself dispatches
# empty, new_empty, set_ and copy_.
ALWAYS = {
    f"aten::{name}"
    for name in """
    empty empty_like empty_strided empty_permuted new_empty new_empty_strided zeros zeros_like new_zeros ones ones_like
    new_ones full full_like new_full scalar_tensor arange set_ resize_ detach detach_ alias lift_fresh requires_grad_
    copy_ _to_copy to clone contiguous fill_ zero_ _copy_from cat stack pad constant_pad_nd repeat
    view _unsafe_view reshape _reshape_alias view_as as_strided t transpose permute expand expand_as squeeze unsqueeze
    select slice narrow split split_with_sizes chunk unbind flatten unflatten ravel movedim diagonal unfold
    numpy_T mT result_type is_pinned pin_memory _pin_memory record_stream
    """.split()
}
# They compute no answer, but an answer can hang on what they say.
LOOKING = {
    f"aten::{name}"
    for name in """
    item _local_scalar_dense is_nonzero equal isnan isinf isfinite eq ne lt le gt ge all any logical_and logical_or
    logical_not bitwise_and bitwise_or bitwise_not resolve_conj resolve_neg is_same_size
    """.split()
}
# Not operators: bookkeeping of autograd and of the profiler.
BOOKKEEPING = ("autograd::engine::", "profiler::_record_function")
# What an operator dispatches itself, as often as it does.
MADE_OF = {"aten::isfinite": ("aten::abs", "aten::abs", "aten::mul"), "aten::isinf": ("aten::abs", "aten::abs")}
# Kernels of torch that copy and fill, as a device calls them.
MOVES = re.compile(r"Memcpy|Memset|FillFunctor|direct_copy_kernel|CatArrayBatchedCopy|float\w*_copy_kernel|arange")
# Kernels that no submission compiled: C++ names, libraries' names, and what torch.compile generates.
VENDOR = re.compile(
    r"::|<|cutlass|cublas|cudnn|gemm|flash|fmha|nvjet|sm\d\d_|triton_(poi|red|per|tem|mm)_", re.IGNORECASE
)
MANY = 16  # programs: when half of so many return early, an honest answer is neither right nor wrong throughout
LEFT = {"threads": "thread", "processes": "process"}
NAMES = 1000  # of operators, or of kernels, in one report; the worker's own holds 200 of each
# Tensors that a call makes, copies or fills, and those of them that get another type. Right answers of the bank move 40
# at the most, and 260 where the call is a whole model; 4 get another type.
MOVED, OF_A_MODEL, CASTS = 100, {"capstone.tower": 600}, 8
SMALL = 64  # bytes of tables that a recorded call brings along: a seed in memory, say
FEW = 16  # elements of an output: so few cannot go wrong in part


def judge_work(
    exercise: Exercise,
    seen: Mapping,
    emptied_right: bool,
    halved: str,
    missing: Iterable[str],
    suspicious: Sequence[tuple[str, int, str]],
) -> tuple[str, str]:
    """(why there are no points or "", why a person should look or "").

    `seen` is what `watch.watched` reports; `emptied_right` whether the answer was right with the kernels' bodies
    emptied; `halved` what `broken` said of a random half; `missing` the kernels whose text could not be switched
    off; `suspicious` what `reading.suspicious` found.
    """
    seen, malformed = _in_shape(seen)
    missing = sorted(missing)
    refused = [
        of_operators(exercise, seen["operators"]),
        _of_device(exercise, seen),
        _of_emptied(seen, emptied_right and not missing),
    ]
    review = [
        "What the watched call reported is not what the referee's own code reports." if malformed else "",
        f"The watched call could not be seen whole: {seen['blind']}." if seen["blind"] else "",
        _of_dropped(seen),
        _of_missing(missing),
        _of_halves(seen, emptied_right, halved),
        _of_looking(exercise, seen),
        _of_strangers(exercise, seen),
        _of_leftovers(seen),
        of_text(suspicious),
    ]
    return " ".join(filter(None, refused)), " ".join(filter(None, review))


def _of_dropped(seen: Mapping) -> str:
    if not seen["dropped"]:
        return ""
    return f"More operators and kernels ran than are told: {seen['dropped']} names are left out, and any could compute."


def of_compiler(report: Mapping) -> tuple[str, str]:
    """(why there are no points or "", why a person should look or ""), from what a compiler said of the kernels."""
    refused, unknown = (_in_a_line(report.get(part)) for part in ("refused", "unknown"))
    only_here = "Triton's interpreter runs this kernel, but its compiler does not take it, so no GPU would. "
    return (
        only_here + refused if refused else "",
        f"Whether the kernels compile could not be seen: {unknown}." if unknown else "",
    )


def _in_a_line(listed: object) -> str:
    """What a worker lists; the same is often said of several ways to launch a kernel."""
    found = (" ".join(str(one)[:400].split()) for one in (listed if isinstance(listed, list) else []))
    return "; ".join([*dict.fromkeys(found)][:4])


def judge_count(seen: Mapping, least: int) -> tuple[str, str]:
    """The same for an exercise that leaves it to the submission what runs, and asks how often."""
    seen, malformed = _in_shape(seen)
    if malformed or seen["blind"]:
        return "", "How many kernels ran could not be seen."
    ran = sum(seen["device"].values())
    return (f"the GPU ran {ran} kernels where at least {least} are asked for" if ran < least else ""), ""


def broken(case: CaseVerdict) -> str:
    """How far the answer of a case is wrong: "right", "partly", "broken", or "none" that could be compared."""
    if case.right:
        return "right"
    if not case.errors:  # it raised, did not end, or wrote where it may not
        return "none"
    over = case.picture.over_limit if case.picture else None
    if over is None or over.numel() <= FEW:
        return "partly"
    return "partly" if bool((over <= 1).any()) else "broken"


def telling(reports: Sequence[Mapping]) -> int:
    """Which of several watched calls to try with the kernels switched off: the one of the most programs."""
    sizes = [_programs(_in_shape(report)[0]) if report else 0 for report in reports]
    return sizes.index(max(sizes))


def merged(reports: Iterable[Mapping]) -> dict:
    """What was seen in several calls, as one report."""
    total, _ = _in_shape({})
    for report in reports:
        one, malformed = _in_shape(report)
        for part in ("operators", "kernels", "device"):
            for name, count in one[part].items():
                total[part][name] = total[part].get(name, 0) + count
        total["programs"] += one["programs"]
        total["threads"] = max(total["threads"], one["threads"])
        total["processes"] = max(total["processes"], one["processes"])
        total["dropped"] = max(total["dropped"], one["dropped"])
        total["blind"] = total["blind"] or one["blind"] or ("a report in no shape" if malformed else "")
    return total


def of_operators(exercise: Exercise, operators: Mapping[str, int]) -> str:
    """Why there are no points when torch ran these operators so often, or ""."""
    counts = dict(operators)
    for whole, parts in MADE_OF.items():
        for part in parts:
            counts[part] = counts.get(part, 0) - counts.get(whole, 0)
    fine = ALWAYS | LOOKING | set(exercise.allowed)
    found = [n for n, count in counts.items() if count > 0 and n not in fine and not n.startswith(BOOKKEEPING)]
    if not found:
        return ""
    return (
        f"While `{exercise.entry}` ran, torch computed: {_list(found)}. This exercise asks for kernels of your own, "
        f"and beside them torch may only allocate, view, copy and fill{_and_allowed(exercise)}.{_of_ones_own(found)}"
    )


def _of_ones_own(operators: Sequence[str]) -> str:
    """What to do about operators that are not torch's: what runs inside one is not seen from outside."""
    own = [name for name in operators if not name.startswith(("aten::", "prims::", "torch"))]
    return f" Launch your kernel directly here, not inside an operator ({_list(own)})." if own else ""


def _and_allowed(exercise: Exercise) -> str:
    names = [name.removeprefix("aten::") for name in exercise.allowed]
    return f", and run what the exercise allows ({', '.join(names)})" if names else ""


def _of_device(exercise: Exercise, seen: Mapping) -> str:
    if exercise.allowed:  # whose kernels a library chooses: their operators are known from the host, and refused there
        return ""
    found = [name for name in _strangers(exercise, seen) if VENDOR.search(name)]
    return f"The GPU ran kernels that this submission does not contain: {_list(found)}." if found else ""


def _of_emptied(seen: Mapping, emptied_right: bool) -> str:
    if not seen["kernels"] and not seen["device"]:
        return "No Triton kernel was launched in the watched call."
    if not emptied_right or not _programs(seen):
        return ""
    return (
        f"The answer does not come from your kernels: it is still right when the {_bodies(seen)} "
        "replaced by a plain `return`."
    )


def _of_missing(missing: Sequence[str]) -> str:
    if not missing:
        return ""
    return f"Kernels that the cells do not define under @triton.jit, each under a name of its own: {_list(missing)}."


def _of_halves(seen: Mapping, emptied_right: bool, halved: str) -> str:
    programs = _programs(seen)
    # Skip: with one program, or a kernel whose removal changed nothing, halving adds no evidence.
    if emptied_right or programs < 2:
        return ""
    if halved == "right":
        return (
            f"The answer stays right when any half of the {programs} programs returns early: "
            "perhaps only a sign of life of the kernel is used."
        )
    if halved == "none" and programs >= MANY:
        return (
            f"There is no answer to compare when a random half of the {programs} programs returns early: the call then "
            "raises, does not end, or writes outside of its output. Perhaps the code around the kernel looks at what "
            "it did."
        )
    if halved == "broken" and programs >= MANY:
        return (
            f"No element is right any more when a random half of the {programs} programs returns early, where half of "
            "them could be: perhaps the kernel decides only whether an answer from elsewhere is given. Programs that "
            "add into the same elements do this too."
        )
    return ""


def _of_looking(exercise: Exercise, seen: Mapping) -> str:
    found = [name for name in seen["operators"] if name in LOOKING and name not in exercise.allowed]
    return f"Values were compared or read back to the host: {_list(found)}." if found else ""


def _of_strangers(exercise: Exercise, seen: Mapping) -> str:
    found = [name for name in _strangers(exercise, seen) if not VENDOR.search(name)]
    return f"The GPU ran kernels that Triton was not seen to launch: {_list(found)}." if found else ""


def _of_leftovers(seen: Mapping) -> str:
    left = [f"{seen[what]} {one if seen[what] == 1 else what}" for what, one in LEFT.items() if seen[what]]
    return f"Left running after the call: {' and '.join(left)}." if left else ""


def of_text(suspicious: Sequence[tuple[str, int, str]]) -> str:
    """What a reading found, with the first lines."""
    if not suspicious:
        return ""
    shown = [f"{cell}, line {line}: {why}" for cell, line, why in suspicious[:8]]
    more = f"; and {len(suspicious) - 8} more" if len(suspicious) > 8 else ""
    imports = any(why.startswith("imports ") for _, _, why in suspicious)
    delete = " If the answer does not need such an import, delete it and what uses it." if imports else ""
    return f"In the text: {'; '.join(shown)}{more}.{delete}"


def _strangers(exercise: Exercise, seen: Mapping) -> list[str]:
    known = {*seen["kernels"], *exercise.allowed}
    return [name for name in seen["device"] if name not in known and not MOVES.search(name)]


def _programs(seen: Mapping) -> int:
    """Program instances of the largest launch; one where nothing is known of them."""
    return max((math.prod(grid) for _, grid in seen["programs"]), default=1)


def _bodies(seen: Mapping) -> str:
    names = sorted(seen["kernels"])
    return f"body of {_list(names)} is" if len(names) == 1 else f"bodies of {_list(names)} are"


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(f"`{name[:80]}`" for name in names[:6]) + more


DEEP = 40  # levels of a recorded call


def is_program(value: object) -> bool:
    """Whether a report holds what a recorder writes of a call. What its parts mean, the player finds out."""
    if not isinstance(value, dict) or not _is_flat(value):
        return False
    dicts = all(isinstance(value.get(part), dict) for part in ("arguments", "constants", "kernels", "strangers"))
    lists = all(isinstance(value.get(part), list) for part in ("steps", "gone"))
    if not (dicts and lists and isinstance(value.get("why_not"), str)):
        return False
    numbers = all(str(name).isdecimal() for part in ("arguments", "constants", "kernels") for name in value[part])
    tables = all(isinstance(one, str) for one in value["constants"].values())
    steps = all(
        isinstance(step, list) and len(step) == 5 and isinstance(step[4], list | dict) for step in value["steps"]
    )
    return numbers and tables and steps and all(isinstance(one, dict) for one in value["kernels"].values())


def _is_flat(value: object) -> bool:
    """Whether nothing in it is nested deeply. Without recursion, which is what depth would end."""
    level = [value]
    for _ in range(DEEP):
        inner = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [one for part in inner for one in part]
        if not level:
            return True
    return False


def largest_launch(program: Mapping) -> int:
    """Program instances of the largest launch of a recorded call, whatever was reported for one."""
    steps = program.get("steps")
    launches = [step for step in steps if _is_launch(step)] if isinstance(steps, list) else []
    return max((math.prod(step[2]) for step in launches), default=0)


def _is_launch(step) -> bool:
    return isinstance(step, list) and len(step) == 5 and step[0] == "launch" and _grids([["", step[2]]]) is not None


def independent(programs: Sequence[Mapping]) -> bool:
    """Whether no recorded call uses memory of an earlier one."""
    return all(_memories(program) <= _own(program) for program in programs)


def _own(program: Mapping) -> set[int]:
    """The memories that a recorded call is given, brings along or makes."""
    given = [name for part in ("arguments", "constants") for name in program.get(part) or ()]
    steps = program.get("steps") or ()
    made = [number for step in steps if len(step) == 5 and step[0] == "call" for number in step[4] or ()]
    return {int(name) for name in given} | {number for number in made if isinstance(number, int)}


def _memories(value: object) -> set[int]:
    """All memories that anything in a program names."""
    if isinstance(value, dict):
        found = set().union(*map(_memories, value.values()))
        return found | {value["memory"]} if isinstance(value.get("memory"), int) else found
    return set().union(*map(_memories, value)) if isinstance(value, list) else set()


def kernels_of(program: Mapping) -> set[str]:
    """The names of the kernels that a recorded call launched, and of those that they call."""
    kernels = program.get("kernels")
    told = kernels.values() if isinstance(kernels, dict) else ()
    return {str(one.get("name")) for one in told if isinstance(one, dict)}


def atomics_of(program: Mapping) -> list[tuple[str, int, str]]:
    """Where a kernel has another name for one of Triton's atomics, `plus` for tl.atomic_add, or is given one of PTX."""
    kernels = program.get("kernels")
    told = [one for one in (kernels.values() if isinstance(kernels, dict) else ()) if isinstance(one, dict)]
    found = [
        (str(one.get("cell"))[:80], one["line"] if _is_count(one.get("line")) else 0, why)
        for one in told
        for name, bound in (one["names"].items() if isinstance(one.get("names"), dict) else ())
        if isinstance(bound, dict) and (why := _adds(name, bound))
    ]
    steps = program.get("steps")
    launches = [step for step in steps if _is_launch(step)] if isinstance(steps, list) else []
    return found + [("a launch", 0, "adds in assembler") for step in launches if _is_ptx(step[3:])]


def _adds(name: str, bound: Mapping) -> str:
    found = str(bound.get("object"))
    if found == ptx.CALLED != name:
        return "has another name for assembler"
    by_name = f"adds by {found[:80]}" if found.startswith("atomic_") else ""
    return by_name or ("adds in assembler" if _is_ptx(bound) else "")


def _is_ptx(value: object) -> bool:
    """Whether some string in it adds to memory."""
    if isinstance(value, dict | list):
        return any(map(_is_ptx, value.values() if isinstance(value, dict) else value))
    return ptx.adds(value)


def of_counts(exercise: Exercise, trials: Iterable[tuple]) -> str:
    """Why a person should look at what calls made in memory beside their arguments, let torch multiply or moved, or "".

    Copies compute when there are many: one to a boolean asks for zero, one to fewer bits shifts. And how many are made
    can hang on numbers that the code around the kernels knows.
    """
    moves = OF_A_MODEL.get(exercise.name, MOVED)
    for case, call, outcome in trials:
        limits = exercise.scratch, exercise.multiplies
        held, most = (limit(call.args) if limit and call.args else math.inf for limit in limits)
        if outcome.made >= held:
            made = f"In \u201c{case.name}\u201d it made memory of {outcome.made:,} numbers beside its arguments"
            return f"{made}, and {held:,} hold what should never be in memory."
        if outcome.multiplied >= most:
            made = f"In \u201c{case.name}\u201d torch's products took {outcome.multiplied:,} multiplications"
            return f"{made}, and those that are torch's take fewer than {most:,}: the others are for kernels."
        if outcome.moved > moves or outcome.cast > CASTS:
            moved = f"it makes, copies or fills {outcome.moved:,} tensors beside its kernels, {outcome.cast:,} of them"
            return (
                f"In \u201c{case.name}\u201d {moved} into another type; more than {moves}, or {CASTS} into another "
                "type, could compute."
            )
    return ""


def of_tables(programs: Iterable[Mapping]) -> str:
    """Why a person should look at what recorded calls brought along, or ""."""
    most = max((sum(map(_told, program.get("constants", {}).values())) for program in programs), default=0)
    return f"A call brought along tables of {most} bytes that no kernel made." if most > SMALL else ""


def _told(table: str) -> int:
    """The bytes of a table, which is coded in base64; one where all are alike, as in memory that was set to zero."""
    try:
        content = base64.b64decode(table)
    except ValueError:  # it was forged, and no player has read it
        return len(table)
    return len(content) if len(set(content)) > 1 else len(set(content))


def operators_of(program: Mapping) -> dict[str, int]:
    """The operators of torch that a recorded call ran and that no program can carry out."""
    return _counts(program.get("strangers")) or {}


def _in_shape(seen: Mapping) -> tuple[dict, bool]:
    """The report, every part of the type it should have, and whether some part was not."""
    seen = seen if isinstance(seen, Mapping) else {}
    parts = {name: _counts(seen.get(name)) for name in ("operators", "kernels", "device")}
    parts["programs"] = _grids(seen.get("programs"))
    parts |= {name: n if _is_count(n := seen.get(name)) else None for name in ("threads", "processes")}
    parts["dropped"] = n if _is_count(n := seen.get("dropped", 0)) else None
    parts["blind"] = seen["blind"][:300] if isinstance(seen.get("blind"), str) else None
    empty = {"operators": {}, "kernels": {}, "device": {}, "programs": [], "threads": 0, "processes": 0, "dropped": 0}
    empty["blind"] = ""
    malformed = any(value is None for value in parts.values())
    return {name: empty[name] if value is None else value for name, value in parts.items()}, malformed


def _counts(value) -> dict[str, int] | None:
    if not isinstance(value, dict) or len(value) > NAMES:
        return None
    if not all(isinstance(n, str) and _is_count(c) for n, c in value.items()):
        return None
    return value


def _grids(value) -> list | None:
    def is_launch(one) -> bool:
        return (
            isinstance(one, list | tuple)
            and len(one) == 2
            and isinstance(one[0], str)
            and isinstance(one[1], list | tuple)
            and len(one[1]) <= 3  # dimensions of a grid
            and all(map(_is_count, one[1]))
        )

    return list(value) if isinstance(value, list | tuple) and all(map(is_launch, value)) else None


def _is_count(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62
