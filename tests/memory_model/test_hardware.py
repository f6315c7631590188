"""Names of cards and cloud machines."""

from __future__ import annotations

import pytest

from torchwise_memory import hardware
from torchwise_memory.hardware import MIB, UnknownGpuError, find, instance


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("t4", "t4"),
        ("Tesla T4", "t4"),
        ("NVIDIA T4", "t4"),
        ("nvidia-tesla-t4", "t4"),
        ("a100-80gb", "a100-80gb"),
        ("A100 80GB", "a100-80gb"),
        ("A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("a100_80g", "a100-80gb"),
        ("A100 80 GiB", "a100-80gb"),
        ("nvidia-a100-80gb", "a100-80gb"),
        ("A100 80GB SXM4", "a100-80gb"),
        ("8xA100-80GB", "a100-80gb"),
        ("A100-80GB:8", "a100-80gb"),
        ("A100 80GB x8", "a100-80gb"),
        ("A100", "a100-40gb"),
        ("A100-SXM4-40GB", "a100-40gb"),
        ("RTX 3090", "rtx-3090"),
        ("rtx3090", "rtx-3090"),
        ("3090", "rtx-3090"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("RTX 3090 24GB", "rtx-3090"),
        ("GeForce RTX 2080 Ti", "rtx-2080-ti"),
        ("2080ti", "rtx-2080-ti"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "rtx-4070-ti-super"),
        ("NVIDIA GeForce RTX 3060 Laptop GPU", "rtx-3060-laptop"),
        ("V100", "v100-16gb"),
        ("Tesla V100-SXM2-32GB", "v100-32gb"),
        ("H100", "h100-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("H100 PCIe", "h100-pcie-80gb"),
        ("NVIDIA H100 NVL", "h100-nvl-94gb"),
        ("H200", "h200"),
        ("NVIDIA H200", "h200"),
        ("B200", "b200"),
        ("L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("A10", "a10"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("A6000", "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("Quadro RTX 8000", "quadro-rtx-8000"),
        ("RTX PRO 6000 Blackwell", "rtx-pro-6000"),
        ("Titan RTX", "titan-rtx"),
        ("AMD Instinct MI300X", "mi300x"),
        ("V100 (Big Basin; 16GB nodes)", "v100-16gb"),
        ("g4dn.xlarge", "t4"),
        ("p4d.24xlarge", "a100-40gb"),
        ("p4de.24xlarge", "a100-80gb"),
        ("a2-ultragpu-1g", "a100-80gb"),
        ("Standard_NC24ads_A100_v4", "a100-pcie-80gb"),
        ("gpu_1x_a10", "a10"),
        ("BM.GPU4.8", "a100-40gb"),
        ("2x RTX 3090", "rtx-3090"),
        ("16GB V100", "v100-16gb"),
        ("H100 HBM3", "h100-80gb"),
        ("RTX 4070 Mobile", "rtx-4070-laptop"),
        ("Colab T4", "t4"),
        ("A30", "a30"),
        ("Tesla M40 24GB", "m40-24gb"),
        ("A100 (size not stated)", "a100-40gb"),
        ("A100/H100", "a100-40gb"),
        ("RTX 3090 or 4090", "rtx-4090"),
        ("A100 MIG 3g.20gb", "a100-40gb-mig-3g.20gb"),
        ("NVIDIA A100-SXM4-80GB MIG 2g.20gb", "a100-80gb-mig-2g.20gb"),
        ("3g.40gb", "a100-80gb-mig-3g.40gb"),
        ("A30 MIG 2g.12gb", "a30-mig-2g.12gb"),
        ("24GB GPU", "24gb"),
        ("not stated (48GB class)", "48gb"),
    ],
)
def test_spellings(spelling: str, name: str) -> None:
    assert find(spelling).name == name
    assert find(spelling.upper()).name == name


def test_every_card_and_machine_finds_itself() -> None:
    for gpu in hardware.gpus():
        assert find(gpu.name) is gpu
        assert find(gpu.title).total_bytes == gpu.total_bytes
        assert gpu.total_seen or gpu.why
    for machine in hardware.instances():
        assert find(machine.name) is machine.gpu


def test_totals_are_what_pytorch_prints_and_not_the_nominal_size() -> None:
    assert find("t4").total_bytes == 14913 * MIB
    assert find("a100-80gb").total_bytes == 81050 * MIB
    for gpu in hardware.gpus():
        if gpu.nominal_gb is not None:
            assert 0.85 <= gpu.total_bytes / (gpu.nominal_gb * 1024 * MIB) <= 1.06, gpu.name


def test_compute_capability() -> None:
    assert [find(name).sm for name in ("t4", "a100", "3090", "h100", "b200", "mi300x")] == [
        75, 80, 86, 90, 100, None,
    ]  # fmt: skip


def test_machines_have_a_count() -> None:
    machine = instance("P4D.24XLarge")
    assert machine is not None
    assert (machine.provider, machine.count, machine.gpu.name) == ("AWS", 8, "a100-40gb")
    assert instance("no-such-machine") is None


def test_an_unknown_name_gets_suggestions() -> None:
    with pytest.raises(UnknownGpuError) as caught:
        find("RTX 3900")
    assert "rtx-3090" in caught.value.suggestions
    with pytest.raises(UnknownGpuError) as caught:
        find("toaster")
    assert "toaster" in str(caught.value)


def test_a_slice_is_smaller_than_its_card_and_keeps_its_chip() -> None:
    whole, part = find("h100-80gb"), find("H100 MIG 3g.40gb")
    assert part.sm == whole.sm
    assert 0.4 < part.total_bytes / whole.total_bytes < 0.5


def test_a_size_alone_stands_for_the_least_of_such_cards() -> None:
    size = find("24 GB card")
    assert size.total_bytes == min(g.total_bytes for g in hardware.gpus() if g.nominal_gb == 24 and g.sm)
    assert size.sm is None


@pytest.mark.parametrize("name", ["TPU v4", "Apple M2 Max", "not stated", "3g.33gb", "1000GB GPU"])
def test_what_is_no_card_of_the_table_is_refused(name: str) -> None:
    with pytest.raises(UnknownGpuError):
        find(name)
