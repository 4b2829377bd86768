"""The machine at hand: tier, report, measured ceilings and plain refusals."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from course_lib import device
from course_lib.device import DEVICE, TIER, Ceilings, DeviceError, ceilings, machine, require


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("SPEED_OF_LIGHT_CACHE", str(tmp_path))
    device._ceilings_once.cache_clear()
    yield tmp_path
    device._ceilings_once.cache_clear()


def python(code, **environment):
    """Run code in a fresh process without a GPU; what it printed, or its last error line."""
    kept = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    everything = {**kept, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=everything)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_tier_and_device_belong_together():
    assert (TIER, DEVICE) in {("gpu", "cuda"), ("interpreter", "cpu")}
    assert (TIER == "gpu") == (torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1")


def test_triton_imported_first_in_gpu_mode_is_a_plain_error():
    said = python("import triton.language, course_lib.device")
    assert "Expected course_lib.device to be imported before triton" in said and "Restart the kernel" in said


def test_triton_imported_first_in_interpreter_mode_is_fine():
    code = "import triton.language; from course_lib.device import TIER; print(TIER)"
    assert python(code, TRITON_INTERPRET="1") == "interpreter"


def test_importing_it_makes_no_cuda_context_so_that_a_process_can_fork():
    code = "import course_lib.device, torch; print(torch.cuda.is_initialized())"
    assert python(code, CUDA_VISIBLE_DEVICES=os.environ.get("CUDA_VISIBLE_DEVICES", "0")) == "False"


A_CARD_THAT_ONLY_A_FORK_MAY_ASK = """
import os, types, torch
PARENT, cuda = os.getpid(), torch.cuda
cuda.device_count, cuda.current_device, cuda.is_initialized = lambda: 1, lambda: 0, lambda: False

def properties(*_):
    assert os.getpid() != PARENT, "CUDA was started in the process that forks"
    return types.SimpleNamespace(total_memory=8 << 30)

cuda.get_device_properties = cuda._lazy_init = properties
cuda.get_device_capability = lambda *_: properties() and (7, 5)
cuda.set_per_process_memory_fraction = lambda share: properties() and print(f"held to {share:.3f}")
"""


def test_a_process_that_will_fork_has_a_fork_ask_what_the_card_is():
    bank = """
from autograder.bank import entries
from course_lib import device
device.ask_apart()
todo = [half for entry in entries(["mx.gemv", "flash.forward", "dispatch.meter"]) for half in entry.halves()]
print(len(todo) > 100, {half.needs_machine_to_itself for half in todo}, device.share_of_sizes(), device.has_bf16())
"""
    code = A_CARD_THAT_ONLY_A_FORK_MAY_ASK + bank
    assert python(code, SPEED_OF_LIGHT_GPU_GIB="6", TRITON_INTERPRET="0") == "True {False} 0.125 False"


def test_a_limit_of_memory_holds_in_a_fork_that_starts_cuda():
    rank = """
from course_lib import device
(hold,) = [call for call, _ in cuda._queued_calls if call.__module__ == "course_lib.device"]
if pid := os.fork():
    os.waitpid(pid, 0)
else:
    hold()
"""
    code = A_CARD_THAT_ONLY_A_FORK_MAY_ASK + rank
    assert python(code, SPEED_OF_LIGHT_GPU_GIB="6", TRITON_INTERPRET="0") == "held to 0.750"


def test_the_report_names_the_versions_and_leaves_out_what_is_unknown():
    here = machine()
    assert here.tier == TIER and here.torch == torch.__version__ and here.memory_bytes > 1 << 28
    blind = replace(here, driver=None, memory_bytes=None)
    assert "driver" not in str(blind) and "None" not in str(blind)
    assert "&lt;b&gt;" in replace(here, name="<b>")._repr_html_()


def test_a_machine_without_nvidia_smi_is_still_reported(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    here = machine()
    assert here.name and here.power_w is None and here.driver is None


def test_ceilings_are_measured_once_and_kept(empty_cache):
    first = ceilings()
    assert first.bytes_per_s > 1e8 and first.flops_per_s["fp32"] > 1e8 and first.cos_per_s > 1e6
    assert 1e-8 < first.launch_s < 1e-3
    device._ceilings_once.cache_clear()
    assert ceilings() == first
    (path,) = empty_cache.iterdir()
    assert json.loads(path.read_text())["machine"] == machine().name


FALSE = ["", "{", "[]", '{"machine": "x"}', "null"]


@pytest.mark.parametrize("damage", FALSE)
def test_a_damaged_cache_is_no_measurement(tmp_path, damage):
    path = tmp_path / "ceilings.json"
    path.write_text(damage)
    assert device._read_ceilings(path) is None


@pytest.mark.parametrize("wrong", [{"bytes_per_s": None}, {"launch_s": -1.0}, {"flops_per_s": {}}, {"cos_per_s": "1"}])
def test_a_cache_with_impossible_values_is_no_measurement(tmp_path, wrong):
    sound = Ceilings("m", 4e12, {"fp32": 1e12}, 1e-5, 1e12, "2026-01-01")
    path = tmp_path / "ceilings.json"
    path.write_text(json.dumps(sound.__dict__))
    assert device._read_ceilings(path) == sound
    path.write_text(json.dumps(sound.__dict__ | wrong))
    assert device._read_ceilings(path) is None


def test_a_damaged_cache_is_measured_again(empty_cache, monkeypatch):
    from course_lib import ceilings as measure

    rates = {"bytes_per_s": 1e12, "flops_per_s": {"fp32": 1e12}, "launch_s": 1e-5, "cos_per_s": 1e12}
    monkeypatch.setattr(measure, "on_gpu" if TIER == "gpu" else "on_host", lambda: rates)
    path = device._ceilings_path(machine())
    path.write_text("half a file")
    assert ceilings().bytes_per_s == 1e12
    assert json.loads(path.read_text())["bytes_per_s"] == 1e12
    rates["bytes_per_s"] = 2e12
    assert ceilings().bytes_per_s == 1e12
    assert ceilings(refresh=True).bytes_per_s == 2e12
    assert ceilings().bytes_per_s == 2e12


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    device.write_atomically(blocked / "x.json", "{}")
    device.write_atomically(tmp_path / "y" / "x.json", "{}")
    assert [path.name for path in (tmp_path / "y").iterdir()] == ["x.json"]


@pytest.mark.skipif(TIER != "interpreter", reason="what the interpreter tier refuses")
def test_types_that_are_for_storage_only_are_refused():
    require(torch.float32, torch.float16, torch.zeros(3, dtype=torch.bfloat16), 1024)
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        with pytest.raises(DeviceError, match=r"Expected .* got torch\.\w+\. .* \.to\(tl\.float32\)"):
            require(dtype)


def test_a_tensor_in_the_wrong_place_is_refused():
    require(torch.zeros(2, device=DEVICE))
    elsewhere = torch.zeros(2, 3, device="meta")
    with pytest.raises(DeviceError, match=r"Expected a tensor on .* shape \(2, 3\) on 'meta'.* device=DEVICE"):
        require(elsewhere)


def test_too_much_memory_and_unknown_things_are_refused():
    with pytest.raises(DeviceError, match=r"Expected 1024 TiB of free memory, found"):
        require(1 << 50)
    with pytest.raises(TypeError, match="got str"):
        require("bf16")


CARD = """
import torch
torch.cuda.device_count, torch.cuda.current_device = lambda: 1, lambda: 0
torch.cuda.get_device_capability = lambda *_: {capability}
torch.cuda.get_device_properties = lambda *_: type("P", (), {{"total_memory": {gib} << 30, "name": "A card"}})
held = []
torch.cuda.set_per_process_memory_fraction = held.append
from course_lib import device
"""


@pytest.mark.parametrize(
    ("capability", "gib", "half", "share"),
    [
        ((7, 5), 15, "float16", 0.25),
        pytest.param((8, 9), 8, "bfloat16", 0.125, marks=pytest.mark.slow),
        ((9, 0), 139, "bfloat16", 1.0),
    ],
)
def test_a_card_says_which_type_it_computes_in_and_how_large_sizes_may_be(capability, gib, half, share):
    code = CARD.format(capability=capability, gib=gib) + "print(device.half(), device.share_of_sizes())"
    assert python(code) == f"torch.{half} {share}"


@pytest.mark.slow
def test_a_process_may_be_held_to_some_of_the_memory():
    start = "[call() for call, _ in torch.cuda._queued_calls if call.__module__ == 'course_lib.device']\n"
    code = CARD.format(capability=(9, 0), gib=140) + start + "print(held, device.share_of_sizes())"
    assert python(code, SPEED_OF_LIGHT_GPU_GIB="7") == "[0.05] 0.125"
    assert "to be a number of GiB" in python(code, SPEED_OF_LIGHT_GPU_GIB="all")
    half = CARD.format(capability=(9, 0), gib=140) + "device.take_at_most(0.5); print(held)"
    assert python(half, SPEED_OF_LIGHT_GPU_GIB="7") == "[0.025]" and python(half) == "[0.5]"


def test_bf16_is_refused_in_words_on_a_card_without_it():
    code = CARD.format(capability=(7, 5), gib=15) + (
        "device.machine = lambda: type('M', (), {'name': 'Tesla T4'})\n"
        "try: device.require(torch.bfloat16)\nexcept device.DeviceError as error: print(error)"
    )
    said = python(code)
    assert "a type that Tesla T4 computes in" in said and "torch.float16" in said


def test_an_amd_gpu_is_refused_in_words_and_the_interpreter_is_not():
    code = (
        "import torch; torch.version.hip = '6.4'\n"
        "try:\n from course_lib.device import TIER; print(TIER)\nexcept RuntimeError as error: print(error)"
    )
    said = python(code)
    assert "AMD GPUs (ROCm 6.4)" in said and "TRITON_INTERPRET=1" in said
    assert python(code, TRITON_INTERPRET="1") == "interpreter"


@pytest.mark.gpu
def test_the_gpu_is_read_and_its_ceilings_are_plausible(empty_cache):
    here = machine()
    assert here.capability and here.multiprocessors and here.l2_bytes and here.shared_bytes_per_block
    top = ceilings()
    assert set(top.flops_per_s) == {"bf16", "fp16", "tf32", "fp32"}
    assert top.flops_per_s["bf16"] > top.flops_per_s["tf32"] > top.flops_per_s["fp32"]
    assert 1e-6 < top.launch_s < 1e-4 and top.cos_per_s > 1e10
    print(here, top, sep="\n")


@pytest.mark.gpu
def test_a_gpu_process_may_ask_for_the_interpreter():
    assert python("from course_lib.device import TIER; print(TIER)", TRITON_INTERPRET="1") == "interpreter"
