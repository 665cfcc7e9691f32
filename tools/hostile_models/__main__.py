"""Write a folder of hostile model files and give all of them to a daemon: `python -m tools.hostile_models`."""

import argparse
import sys
import tempfile
from pathlib import Path

from tools.hostile_models.folder import hostile_files
from tools.hostile_models.templates import TEMPLATES
from tools.hostile_models.trial import run


def main() -> None:
    """Parse the arguments, write the files, and unless only those are wanted try them; exit code 1 on any fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--templates", type=int, default=len(TEMPLATES))
    parser.add_argument("--headers", type=int, default=1000)
    parser.add_argument("--values", type=int, default=1000)
    parser.add_argument("--cuts", type=int, default=60)
    parser.add_argument("--write", type=Path, help="write the files into this folder, and try nothing")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="card-") as name:
        folder = arguments.write or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        counts = {name: getattr(arguments, name) for name in ("templates", "headers", "values", "cuts")}
        for stem, data in hostile_files(folder, **counts):
            (folder / f"{stem}.gguf").write_bytes(data)
        if arguments.write is None:
            report = run(folder)
            print(report)
            sys.exit(1 if report.faults else 0)


if __name__ == "__main__":
    main()
