"""A sysfs tree in a folder: PCI devices, RDMA cards and interfaces, in the forms of Linux 6.1."""

from __future__ import annotations

from pathlib import Path


def write(folder: Path, **files: object) -> None:
    """Attributes of `folder`, each with the newline that the kernel writes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(f"{content}\n")


class SysfsTree:
    """`root` stands for ``/sys``; addresses of PCI devices are such as ``0000:17:00.0``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def pci(self, *way: str, numa: int = 0) -> Path:
        """A device behind `way`, from the root complex (``pci0000:15``) over bridges to its own address."""
        folder = self.root.joinpath("devices", *way)
        write(folder, numa_node=numa)
        link = self.root / "bus/pci/devices" / way[-1]
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to(folder)
        return folder

    def card(self, name: str, *way: str, layer: str = "InfiniBand", numa: int = 0, **counters: int) -> Path:
        """An RDMA card with one active port; the folder of the port."""
        device = self.pci(*way, numa=numa)
        folder = device / "infiniband" / name
        port = folder / "ports/1"
        write(port, state="4: ACTIVE", phys_state="5: LinkUp", link_layer=layer, rate="400 Gb/sec (4X NDR)")
        write(port / "counters", **{"link_downed": 0, "symbol_error": 0, **counters})
        (folder / "device").symlink_to(device)
        link = self.root / "class/infiniband" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(folder)
        return port

    def interface(self, name: str, *way: str, **attributes: object) -> Path:
        """An interface of a PCI device, with carrier; its folder."""
        device = self.pci(*way)
        folder = device / "net" / name
        write(folder, **{"carrier": 1, "speed": 100_000, "carrier_down_count": 0, **attributes})
        write(folder / "statistics", rx_dropped=0, tx_dropped=0, rx_errors=0, rx_bytes=0, tx_bytes=0)
        (folder / "device").symlink_to(device)
        link = self.root / "class/net" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(folder)
        return folder
