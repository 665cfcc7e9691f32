"""`make trace`: prints the figures and renews the table of docs/explanation/follow-one-token.md."""

from tools.trace.measured import measure
from tools.trace.page import PAGE, renewed

if __name__ == "__main__":
    measured = measure()
    for name, profile in measured._asdict().items():
        print(f"{name}: {profile.calls} calls, {profile.changes} changes of file, {len(profile.files)} files")
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8"), measured), encoding="utf-8")
