"""All engines, and choosing one by name and version."""

import re
from dataclasses import dataclass

from spectune.engines.adapters import llama_cpp, sglang, tensorrt_llm, transformers, vllm
from spectune.engines.engine import Engine
from spectune.errors import ConfigError

ENGINES: dict[str, Engine] = {
    "vllm": vllm.ENGINE,
    "sglang": sglang.ENGINE,
    "tensorrt-llm": tensorrt_llm.ENGINE,
    "llama.cpp": llama_cpp.ENGINE,
    "transformers": transformers.ENGINE,
}
_ALSO = {"trtllm": "tensorrt-llm", "trt-llm": "tensorrt-llm", "llamacpp": "llama.cpp", "hf": "transformers"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineVersion:
    """An engine in the version that is to serve."""

    engine: Engine
    version: str

    @property
    def unchecked(self) -> str | None:
        """What is to be said where it differs from that checked in a number that both give, or gives too few."""
        given, checked = (re.findall(r"\d+", text) for text in (self.version, self.engine.checked_against))
        common = min(len(given), len(checked))
        if common >= min(2, len(checked)) and given[:common] == checked[:common]:
            return None
        return f"not checked against {self.engine.name} {self.version}, only against {self.engine.checked_against}"


def engine_named(text: str) -> EngineVersion:
    """The engine and version of `vllm@0.32`, by default the one it was checked against. Raises: ConfigError."""
    name, _, version = text.partition("@")
    known = _ALSO.get(name.lower(), name.lower())
    if known not in ENGINES:
        raise ConfigError(f"engine {name!r} is not known", f"give one of {', '.join(ENGINES)}, as in vllm@0.32")
    return EngineVersion(engine=ENGINES[known], version=version or ENGINES[known].checked_against)
