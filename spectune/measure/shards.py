"""Finished parts of a long run, kept beside the profile-to-be, so that an interrupted run goes on where it stopped."""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from spectune.errors import ProfileError, reason_of
from spectune.profile.store import UNFINISHED_MARKER, unfinished_folder
from spectune.profile.tables import write_table


def require_same_run(output: Path, run: Sequence[str]) -> None:
    """Refuse, before anything loads, to go on with what a run of other options left; `run` is how it differs from none.

    Raises: ProfileError naming them.
    """
    left = left_behind(output)
    before = left.get("identity", {}).get("run", run)
    if before != run:
        other = dict.fromkeys(text.split(" (")[0] for text in (*before, *run) if (text in before) != (text in run))
        problem = f"an unfinished run stands beside {output}, of another {', '.join(other)}"
        raise ProfileError(problem, f"go on with it: {left.get('command')}; or discard it with --force")


def left_behind(output: Path) -> dict[str, Any]:
    """What an unfinished run beside the output said of itself; empty where there is none."""
    try:
        left = json.loads((unfinished_folder(output) / UNFINISHED_MARKER).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return left if isinstance(left, dict) else {}


class Shards:
    """A folder of tables, each written whole under a temporary name and never again; it appears with the first."""

    def __init__(self, output: Path, identity: Mapping[str, Any], command: str, force: bool = False) -> None:
        """Beside `output`, with the command to go on with. What another identity left is discarded by `force` only.

        Raises: ProfileError where it stands, or where nothing can be written.
        """
        self._identity, self._command = identity, command
        self._folder = unfinished_folder(output)
        left = left_behind(output).get("identity")
        self.resumed = left == identity
        if left is not None and not self.resumed and not force:
            other = ", ".join(name for name in identity if left.get(name) != identity[name])
            problem = f"an unfinished run stands beside {output}, of another {other}"
            raise ProfileError(problem, "--force discards it; or choose another -o")

    def kept(self, name: str, schema: pa.Schema, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """The table of that name as it is read from the folder: made now, unless an earlier run made it."""
        path = self._folder / f"{name}.parquet"
        if not self.has(name):
            frame = make()
            try:
                self._open()
                self._write(path.name, lambda partial: write_table(frame, schema, partial))
            except OSError as error:
                problem = f"{path} cannot be written: {reason_of(error)}"
                raise ProfileError(problem, "choose another directory with -o") from error
        table: pd.DataFrame = pq.read_table(path).to_pandas()
        return table

    def has(self, name: str) -> bool:
        """Whether that table is there, and whole: a machine that loses power can tear a file that was renamed."""
        path = self._folder / f"{name}.parquet"
        try:
            return self.resumed and pq.ParquetFile(path).metadata is not None
        except (OSError, pa.ArrowException):
            return False

    def told(self) -> str:
        """What is kept so far, in a line."""
        kept = [file.stem.partition("-")[0] for file in self._folder.glob("*.parquet")]
        names = {"tape": "texts", "evidence": "evidence", "costs": "costs"}
        parts = [
            f"{name} in {kept.count(part)} file{'s'[: kept.count(part) > 1]}"
            for part, name in names.items()
            if part in kept
        ]
        return f"kept: {', '.join(parts)}" if parts else "nothing is kept yet: texts are kept batch by batch"

    def discard(self) -> None:
        """Nothing is left to go on with."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _open(self) -> None:
        if not self.resumed:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True)
            marker = json.dumps({"identity": self._identity, "command": self._command})
            self._write(UNFINISHED_MARKER, lambda path: path.write_text(marker, "utf-8"))
            self.resumed = True

    def _write(self, name: str, write: Callable[[Path], object]) -> None:
        partial = self._folder / f".{name}.{os.getpid()}"
        write(partial)
        os.replace(partial, self._folder / name)
