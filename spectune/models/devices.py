"""Where models run: device, dtype, what room there is, and that nothing is offloaded."""

from pathlib import Path
from typing import Any

import torch

from spectune.checkpoints.size import ModelSize
from spectune.errors import ConfigError, DeviceError


def resolve_device(name: str = "auto") -> torch.device:
    """`auto`, `cpu`, `cuda`, `cuda:1`, …  Raises: DeviceError where there is none such."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        found = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        raise DeviceError(f"there is no device {name!r} here", f"use one of: {', '.join(found)}") from error
    return device


def resolve_dtype(name: str, device: torch.device, checkpoint: torch.dtype | None) -> torch.dtype:
    """`auto`: the checkpoint's, where the device computes it; a CPU does not compute float16 to speak of."""
    if name != "auto":
        names = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
        if name not in names:
            raise ConfigError(f"there is no dtype {name!r}", f"use one of: auto, {', '.join(names)}")
        return names[name]
    if device.type == "cuda":
        return checkpoint or torch.bfloat16
    return torch.bfloat16 if checkpoint == torch.bfloat16 else torch.float32


def placement(device: torch.device) -> dict[str, Any]:
    """Any CUDA device: the first that has room, and the next ones for what is left (accelerate's device_map)."""
    return {"device_map": "sequential"} if device.type == "cuda" and device.index is None else {}


def refuse_offload(network: Any, name: str) -> None:
    """Weights that wait in main memory or on disk would make every timing one of the bus."""
    places = {str(place) for place in getattr(network, "hf_device_map", {}).values()}
    if places & {"cpu", "disk"}:
        raise DeviceError(f"{name} does not fit on the CUDA devices here", "use a smaller model, or more devices")


def free_bytes(device: torch.device) -> float:
    """Memory that is free on a device, on all of them for plain `cuda`; infinite where it is not known."""
    if device.type == "cuda":
        devices = range(torch.cuda.device_count()) if device.index is None else [device.index]
        return float(sum(torch.cuda.mem_get_info(index)[0] for index in devices))
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return float("inf")


def require_room(size: ModelSize | None, name: str, dtype: torch.dtype, device: torch.device) -> None:
    """Refuse weights that cannot fit before they are read. Raises: DeviceError."""
    needed, free = (size.parameters if size else 0) * dtype.itemsize, free_bytes(device)
    if needed > free:
        problem = (
            f"{name} needs {needed / 1e9:,.1f} GB for its weights alone; {free / 1e9:,.1f} GB are free on {device}"
        )
        raise DeviceError(problem, "use a smaller model, a narrower --dtype or another device")
