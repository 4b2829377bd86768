"""What the assembler forgot to write, found in machine code."""

import subprocess
from pathlib import Path

import pytest

from course_lib.compiled import compile_kernel
from course_lib.compiled.unwritten import unwritten
from course_lib.compiled.worker import disassemble

# isort: split
import triton

STRIDES = [f"s_{one}{axis}" for one in "oqkv" for axis in ("b", "h", "n" if one in "kv" else "m", "d")]
TUNED = (str(Path(__file__).parents[1] / "bank/flash.speed/right/tuned.py"), "_forward_kernel")


def _code(*lines: str) -> str:
    text = "\n".join(f"        /*{16 * i:04x}*/    {line} ;   /* 0x0000 */" for i, line in enumerate(lines))
    return f"        Function : kernel\n{text}\n"


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["UMOV UR4, 0x1", "UIADD3 UR5, UR4, 0x2, URZ", "EXIT"], []),
        (["UIADD3 UR4, UP0, UR4, 0x40, URZ", "EXIT"], ["UIADD3 UR4, UP0, UR4, 0x40, URZ"]),
        (["ULDC.64 UR4, c[0x0][0x208]", "LDG.E R2, desc[UR4][R2.64]", "EXIT"], []),
        (["ULDC UR4, c[0x0][0x208]", "LDG.E R2, desc[UR4][R2.64]"], ["LDG.E R2, desc[UR4][R2.64]"]),
        # one way around the place where it is written
        (["@P0 BRA 0x20", "UMOV UR8, URZ", "IADD3 R1, R2, UR8, RZ", "EXIT"], ["IADD3 R1, R2, UR8, RZ"]),
        (["@P0 BRA 0x30", "UMOV UR8, URZ", "BRA 0x40", "UMOV UR8, 0x1", "IADD3 R1, R2, UR8, RZ", "EXIT"], []),
        (["@P0 EXIT", "UMOV UR8, URZ", "IADD3 R1, R2, UR8, RZ", "EXIT"], []),
        # a loop reads what its first round writes
        (["UMOV UR6, URZ", "UIADD3 UR6, UR6, 0x1, URZ", "@P0 BRA 0x10", "EXIT"], []),
        # of a product one factor lies in registers, and only the descriptor of the other is read
        (["UMOV UR22, UR1", "UMOV UR23, 0x1", "HGMMA.64x32x16.F32 R8, R4, gdesc[UR20], R8"], ["UMOV UR22, UR1"]),
        (["UMOV UR22, 0x2", "HGMMA.64x32x16.F32 R8, R4, gdesc[UR20], R8"], 1),
        (["R2UR UR4, R7", "UIMAD.WIDE UR6, UR4, UR4, URZ", "UIADD3.64 UR8, UR6, UR6, URZ", "EXIT"], []),
        (["UMOV UR6, 0x1", "UIADD3.64 UR8, UR6, UR6, URZ", "EXIT"], 1),
        # a predicate is given besides, as in the machine code of Triton 3.6
        (["@P1 R2UR P0, UR6, R0", "UIADD3 UR7, UR6, 0x2, URZ", "EXIT"], []),
        (["VOTEU.ANY UP0, UR6, UPT, PT", "UIADD3 UR7, UR6, 0x2, URZ", "EXIT"], []),
        (["R2UR P0, UR6, R0", "UIADD3 UR7, UR8, 0x2, URZ", "EXIT"], 1),
        (["UMOV UR4, 0x400", "STS.64 [R0+UR4], R6", "IMAD.WIDE R2, R3, UR4, RZ", "EXIT"], []),
    ],
)
def test_a_register_that_nobody_wrote_is_found_on_every_way(lines, found):
    said = unwritten(_code(*lines))
    assert said == found if isinstance(found, list) else len(said) == found


def test_each_function_begins_anew():
    assert len(unwritten(_code("UMOV UR4, 0x1", "EXIT") + _code("UMOV UR5, UR4", "EXIT"))) == 1


@pytest.mark.parametrize(("keys", "lost"), [(128, True), (64, False)])
def test_a_kernel_whose_descriptor_the_assembler_loses_is_told_of(keys, lost, tmp_path):
    """On an H200 the first fails with an illegal memory access; ptxas 12.8 makes the same code there and here."""
    types = dict.fromkeys(("out_ptr", "q_ptr", "k_ptr", "v_ptr"), "*fp16") | {"lse_ptr": "*fp32", "scale": "fp32"}
    types |= dict.fromkeys(["heads", "n_q", "n_k", "head_size", *STRIDES], "i32")
    by_columns = dict.fromkeys(("s_od", "s_qd", "s_kn", "s_vd"), 1)
    order = "out_ptr lse_ptr q_ptr k_ptr v_ptr heads n_q n_k head_size scale".split() + STRIDES
    signature = {name: types[name] for name in order if name not in by_columns}
    tile = {"CAUSAL": False, "M": 64, "N": keys, "D": 32, "FULL": True}
    made = compile_kernel(TUNED, signature, tile | by_columns, num_stages=2)
    if made.sass is None:
        pytest.skip("no disassembler")
    assert any("the assembler lost a value" in text for text in made.warnings) == lost
    tools, cubin = Path(triton.__file__).parent / "backends/nvidia/bin", tmp_path / "made.cubin"
    (tmp_path / "made.ptx").write_text(made.ptx)
    newer = [tools / "ptxas-blackwell", "--gpu-name=sm_90a", tmp_path / "made.ptx", "-o", cubin]
    subprocess.run(newer, check=True, capture_output=True)
    sass = disassemble(cubin.read_bytes())[1]
    assert "HGMMA" in sass and unwritten(sass) == [], "and with the newer assembler it is right"
