"""Facts about cards: what belongs together, and what is refused."""

import pytest

from course_lib.cards import ARCHITECTURES, CARDS, architecture, card, sold_as


def test_every_architecture_has_cards_and_every_card_an_architecture():
    assert list(ARCHITECTURES) == sorted(ARCHITECTURES) == [75, 80, 86, 89, 90, 100, 103, 120]
    assert {one.arch for one in CARDS.values()} == set(ARCHITECTURES)
    assert sold_as(90) == "H100, H200" and sold_as(75) == "T4, RTX 2080 Ti"


def test_limits_are_those_of_the_programming_guide():
    most = {75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99}
    assert {number: one.shared_limit_bytes // 1024 for number, one in ARCHITECTURES.items()} == most
    threads = {75: 1024, 80: 2048, 86: 1536, 89: 1536, 90: 2048, 100: 2048, 103: 2048, 120: 1536}
    assert {number: 32 * one.warps for number, one in ARCHITECTURES.items()} == threads
    assert {number: one.programs for number, one in ARCHITECTURES.items() if one.programs != 32} == {
        75: 16, 86: 16, 89: 24, 120: 24,
    }  # fmt: skip


def test_only_turing_has_no_bf16_and_no_tensor_cores_for_triton():
    assert [one.number for one in ARCHITECTURES.values() if not one.bf16] == [75]
    assert [one.number for one in ARCHITECTURES.values() if not one.tensor_cores] == [75]
    assert [one.number for one in ARCHITECTURES.values() if one.copy_engine] == [90, 100, 103, 120]
    for one in CARDS.values():
        assert ("bf16" in one.flops_per_s) == architecture(one.name).bf16
        assert one.flops_per_s["fp16"] >= one.flops_per_s["tf32"] >= one.flops_per_s["fp32"] * 0.99


def test_what_is_unknown_is_refused_with_what_is_known():
    with pytest.raises(ValueError, match="RTX 4090"):
        card("RTX 9090")
    with pytest.raises(ValueError, match=r"90 \(H100, H200\)"):
        architecture(91)
    assert architecture("L4").number == 89 and architecture(89).capability == (8, 9)
