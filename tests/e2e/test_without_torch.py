"""What needs no model runs where torch and transformers are not: from the source tree, and from the wheel."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.checkpoints import save_checkpoint

ROOT = Path(__file__).parents[2]
PAGE = """vllm:spec_decode_num_drafts_total 100
vllm:spec_decode_num_draft_tokens_total 300
vllm:spec_decode_num_accepted_tokens_total 170
"""
COMMANDS = [
    ["--help"],
    ["what-if", "--alpha", "0.8", "--cost-ratio", "0.05"],
    ["recommend", "reference", "-o", "skill.md"],
    ["recommend", "reference", "--verify", "skill.md"],
    ["show", "reference"],
    ["check", "reference", "other"],
    ["export", "reference", "--engine", "vllm"],
    ["telemetry", "page.txt"],
    ["doctor", "--target", "target", "--draft", "draft", "--engine", "vllm", "-k", "4"],
    ["doctor", "--target", "target", "--draft", "ngram", "--engine", "transformers"],
]
RUN = f"""
import sys
import spectune
from spectune.cli.app import run
print(spectune.__file__)
for command in {COMMANDS!r}:
    print(run(command), command[0])
    assert not {{"torch", "transformers"}} & set(sys.modules), command
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """All that the commands are told of, and a torch and transformers that cannot be imported."""
    folder = tmp_path_factory.mktemp("elsewhere")
    for name in ("reference", "other"):
        shutil.copytree(ROOT / "profiles" / "reference", folder / name)
    for seed, name in enumerate(("target", "draft")):
        save_checkpoint(folder / name, seed=seed)
    (folder / "page.txt").write_text(PAGE)
    for name in ("torch", "transformers"):
        (folder / f"{name}.py").write_text(f"raise ImportError('there is no {name} here')\n")
    return folder


def run_commands(python: Path | str, folder: Path, path: str) -> Path:
    """Where spectune was taken from."""
    environment = {"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "HOME": str(folder), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([python, "-c", RUN], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    place, *answers = done.stdout.splitlines()
    ends = [line for line in answers if line[2:] in {command[0] for command in COMMANDS}]
    enough = {"0", "4"}  # the reference holds too little for a verdict
    assert len(ends) == len(COMMANDS), done.stdout
    assert {line[0] for line in ends} <= enough, done.stdout
    return Path(place)


def test_from_the_source_tree(folder) -> None:
    assert run_commands(sys.executable, folder, f"{folder}:{ROOT}").is_relative_to(ROOT)


def call(*command: object, folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    line = [str(part) for part in command]
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built as `make wheel` does, but with the setuptools that is here, so that no index is needed."""
    pytest.importorskip("setuptools", minversion="77")
    source = tmp_path_factory.mktemp("source")
    shutil.copytree(ROOT / "spectune", source / "spectune", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    call(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", "dist", ".",
         folder=source)  # fmt: skip
    (file,) = (source / "dist").glob("spectune-*.whl")
    return file


def test_the_wheel_holds_the_whole_package(wheel) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "spectune").rglob("*") if "__pycache__" not in path.parts}
    wanted = {name for name in files if (ROOT / name).is_file()}
    assert "spectune/workload/builtin.jsonl" in wanted
    assert {name for name in inside if name.startswith("spectune/")} == wanted
    assert {name.partition("/")[0] for name in inside - wanted} == {f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"}


def test_from_the_wheel(wheel, folder, tmp_path) -> None:
    call(sys.executable, "-m", "venv", "--without-pip", "env", folder=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    call(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, folder=tmp_path)
    (own,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    assert run_commands(python, folder, str(folder)).is_relative_to(own)
    done = subprocess.run(
        [tmp_path / "env" / "bin" / "spectune", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("spectune ")
