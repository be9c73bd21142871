"""What spectune and its tests on a GPU require, read without installing it."""

import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
needed_for_tests = [line for line in project["optional-dependencies"]["dev"] if line.startswith("pytest>")]
print(*project["dependencies"], *needed_for_tests, sep="\n")
